"""Custom data: tables of texts and labels, questions and options of a user, and published sets."""
