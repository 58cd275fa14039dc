"""Unfreezing: which groups of parameters train in which epoch, at which rate."""
