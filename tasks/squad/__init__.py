"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018)."""
