"""Tokenizers: trained, loaded, and read from the files of other tools."""
