"""The machine a run is on: its memory, the processes of a run, the packages that are installed."""
