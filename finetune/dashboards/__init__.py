"""Dashboards: what runs show in Weights & Biases, and the workspace and report that arrange it.

`shown` gathers the tables and artifacts of a run that has ended; `panels` is the arrangement, as
plain data; `spec` puts it into the form of Weights & Biases, to be saved there or written to a
file. Nothing here is logged while a run trains.
"""
