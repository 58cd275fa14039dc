"""All that reaches a terminal: lines and tables."""
