"""Checkpoints: our folders, those of Hugging Face, and any encoder by the name of its place."""
