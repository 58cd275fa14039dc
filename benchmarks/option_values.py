"""Values of options that several benchmarks take."""

from __future__ import annotations


def names(text: str) -> list[str]:
    """`a,b`."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """`1,2`."""
    return [int(word) for word in text.split(",")]


def limit(text: str) -> tuple[str, int]:
    """`NAME=ROWS`."""
    name, _, rows = text.partition("=")
    return name, int(rows)
