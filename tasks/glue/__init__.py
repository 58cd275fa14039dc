"""GLUE: nine tasks and the diagnostic set (Wang et al., 2019)."""
