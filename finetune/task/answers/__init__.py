"""Answers: a head's outputs -> the rows of a predictions file, for each kind of head."""
