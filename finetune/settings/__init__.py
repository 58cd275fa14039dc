"""Dataclasses as settings: to and from flags and YAML, with messages that name key and value."""
