"""Facts about a task's splits as plain values: for the report's data section and `finetune check`.

Texts are equal here if they differ in white space alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from finetune.task.interface import Example, GoldAnswer, Label
from finetune.text.tokenizer.tokenizer import is_empty

Texts = tuple[str, ...]


def data_statistics(splits: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    """Describe the splits of a task, and what they share.

    Args:
        splits: Split -> its examples, at least one.

    Returns:
        `splits`: split -> the facts of `split_statistics`; `shared_texts`: for each two splits, as
        `train/validation`, how many examples of the second have the texts of one of the first
        (splits that share none are left out).

    >>> from finetune.task.interface import Example
    >>> train = [Example(0, ("good",), "yes"), Example(1, ("bad ",), "no")]
    >>> facts = data_statistics({"train": train, "validation": [Example(0, ("bad",), "no")]})
    >>> facts["shared_texts"], facts["splits"]["train"]["classes"]
    ({'train/validation': 1}, {'no': 1, 'yes': 1})
    """
    shared = {
        f"{first}/{second}": count
        for first, second in combinations(splits, 2)
        if (count := shared_texts(splits[first], splits[second]))
    }
    facts = {split: split_statistics(examples) for split, examples in splits.items()}
    return {"splits": facts, "shared_texts": shared}


def split_statistics(examples: Sequence[Example]) -> dict[str, Any]:
    """Describe one split.

    Args:
        examples: At least one.

    Returns:
        `examples`; `unlabelled`; `classes`: class -> examples of it (answers in a context count as
        `answerable` and `unanswerable`); `numbers`: `min`, `mean`, `max` and `std` of a
        regression's labels; `words`: `min`, `median`, `mean`, `p95` and `max` of the words of an
        example, all its texts together; `empty_texts`: examples without any text;
        `duplicate_texts`: examples whose texts an earlier one has; `conflicting_labels`: texts
        that stand under different labels. What does not apply, or is 0, is left out.
    """
    labels = [example.label for example in examples]
    facts: dict[str, Any] = {
        "examples": len(examples),
        "unlabelled": labels.count(None),
        "classes": _classes(labels),
        "numbers": _numbers([label for label in labels if isinstance(label, int | float)]),
        "words": _lengths([_words(example) for example in examples]),
        "empty_texts": sum(all(map(is_empty, example.texts)) for example in examples),
        **_repeated(examples),
    }
    return {name: value for name, value in facts.items() if value}


def shared_texts(first: Iterable[Example], second: Iterable[Example]) -> int:
    """How many examples of the second have the texts of one of the first; empty ones aside."""
    known = {key for example in first if any(key := texts_key(example))}
    return sum(texts_key(example) in known for example in second)


def texts_key(example: Example) -> Texts:
    """The texts of an example without differences in white space."""
    return tuple(" ".join(text.split()) for text in example.texts)


def _words(example: Example) -> int:
    return sum(len(text.split()) for text in example.texts)


def _classes(labels: Sequence[Label | None]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    tuples = [label for label in labels if isinstance(label, tuple)]
    parts = [part for label in tuples for part in label]
    if any(isinstance(part, GoldAnswer) for part in parts):
        counts.update("answerable" if label else "unanswerable" for label in tuples)
    else:
        counts.update(map(str, parts))
    counts.update(label for label in labels if isinstance(label, str))
    return dict(sorted(counts.items()))


def _numbers(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    array = np.asarray(values)
    summary = {"min": array.min(), "mean": array.mean(), "max": array.max(), "std": array.std()}
    return {name: float(value) for name, value in summary.items()}


def _lengths(counts: Sequence[int]) -> dict[str, float]:
    array = np.asarray(counts)
    summary = {
        "min": int(array.min()),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "p95": float(np.percentile(array, 95)),
        "max": int(array.max()),
    }
    return {name: round(value, 1) for name, value in summary.items()}


def _repeated(examples: Iterable[Example]) -> dict[str, int]:
    """Examples whose texts came before, and texts that stand under different labels."""
    labels_of: dict[Texts, set[Label | None]] = {}
    duplicates = 0
    for example in examples:
        key = texts_key(example)
        if not any(key):
            continue
        duplicates += key in labels_of
        labels_of.setdefault(key, set()).add(example.label)
    conflicting = sum(len(labels) > 1 for labels in labels_of.values())
    return {"duplicate_texts": duplicates, "conflicting_labels": conflicting}
