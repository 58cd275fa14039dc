"""The frozen part of an encoder: its hidden states computed once, and cached."""
