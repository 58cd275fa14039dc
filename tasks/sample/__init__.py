"""The embedded sample: a small made world in the official file formats."""
