"""RACE (Lai et al., 2017)."""
