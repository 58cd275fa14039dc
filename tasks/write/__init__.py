"""Sequence to sequence: a text is read and another one is written."""
