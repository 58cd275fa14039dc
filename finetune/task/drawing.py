"""Some examples of many, drawn at random: to try a setup, or for a learning curve."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from finetune.task.interface import Example

T = TypeVar("T")
TRAIN_EXAMPLES = 16
"""Keys the draw of training examples, apart from all else that a seed draws."""
FRESH = "_fresh"
"""Ends the name of the half of a validation split that chooses nothing."""


def limited(examples: list[T], limit: int | None) -> list[T]:
    """Examples or texts in their order; of more than the limit, so many of them, drawn at random.

    The draw is the same for every run, whatever its seed.
    """
    if limit is None or len(examples) <= limit:
        return examples
    chosen = np.random.default_rng(0).choice(len(examples), limit, replace=False)
    return [examples[number] for number in sorted(chosen.tolist())]


def halves(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Two halves of a split, each in the split's order: one to choose on, and a fresh one.

    The draw is a function of the texts alone: the same for every run, whatever the order of the
    rows. Examples that share their longest text, such as the questions about a passage, stay
    together, and so does a pair with its mirrored one.

    Args:
        examples: All of the split.
    """
    # Of texts of one length the last in the alphabet: a mirrored pair must not have another one.
    longest = [max(one.texts, key=lambda text: (len(text), text)) for one in examples]
    keys = [hashlib.blake2b(text.encode()).digest() for text in longest]
    ordered = sorted(keys)
    second = next((key for key in ordered if key != ordered[0]), b"")  # so that neither is empty
    middle = max(second, ordered[len(ordered) // 2]) if ordered else b""
    chosen = [one for one, key in zip(examples, keys, strict=True) if key < middle]
    fresh = [one for one, key in zip(examples, keys, strict=True) if key >= middle]
    return chosen, fresh


def stratified(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """Examples in their order, drawn by a seed, with each label in its proportion.

    Draws of one seed are nested: the fewer are among the more.

    Args:
        examples: At least so many.
        count: How many are drawn.
        seed: Of the draw.
    """
    shuffled = np.random.default_rng([seed, TRAIN_EXAMPLES]).permutation(len(examples)).tolist()
    strata: dict[object, list[int]] = {}
    for number, stratum in zip(shuffled, _strata(examples, shuffled), strict=True):
        strata.setdefault(stratum, []).append(number)
    # The k-th of n of a label comes at (k + 1/2) / n: every beginning has them in proportion.
    position = {
        number: (rank + 0.5) / len(numbers)
        for numbers in strata.values()
        for rank, number in enumerate(numbers)
    }
    first = sorted(shuffled, key=lambda number: position[number])[:count]
    return [examples[number] for number in sorted(first)]


def _strata(examples: Sequence[Example], order: Sequence[int]) -> list[object]:
    """What each example is drawn with: its class, its tenth of the numbers, answered or not."""
    labels = [examples[number].label for number in order]
    numbers = [label for label in labels if isinstance(label, int | float)]
    if numbers:
        ends = np.quantile(numbers, np.arange(1, 10) / 10)
        return [
            int(np.searchsorted(ends, label)) if isinstance(label, int | float) else None
            for label in labels
        ]
    return [bool(label) if _is_span(label) else label for label in labels]


def _is_span(label: object) -> bool:
    return isinstance(label, tuple) and not any(isinstance(one, str) for one in label)
