"""What a run leaves: its folder, settings, inputs, predictions, and lists of runs."""
