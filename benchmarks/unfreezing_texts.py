"""The training sets of the unfreezing benchmark: real ones, or made with the same lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from contest import CLS, MASK, SEP

from finetune.text.features.pairs import Features
from finetune.text.tokenizer.tokenizer import Tokenizer

BATCH, LENGTH = 32, 128
TOKENS = {
    "cola": (8551, [4, 6, 7, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 17, 20, 47]),
    "mrpc": (
        3668,
        [19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103],
    ),
    "rte": (
        2490,
        [13, 29, 33, 37, 40, 43, 45, 47, 50, 53, 56, 59, 62, 67, 72, 85, 103, 120, 128, 128, 128],
    ),
}
"""Rows of train.tsv, and tokens of a row by the vocabulary of all-MiniLM-L6-v2, special tokens
included, at most 128: quantiles in steps of 5 %."""


@dataclass(frozen=True)
class Texts:
    """A training set as token ids."""

    name: str
    """Such as cola."""
    features: list[Features]
    """Its sequences, labelled 0 or 1."""
    about: str
    """Where they come from, in words."""

    @property
    def lengths(self) -> Any:
        """Tokens of each sequence, int64 (N,)."""
        return np.array([len(feature.input_ids) for feature in self.features], dtype=np.int64)

    def part(self, fraction: float) -> Texts:
        """A seeded sample, a batch at least."""
        count = max(min(BATCH, len(self.features)), round(fraction * len(self.features)))
        chosen = np.sort(np.random.default_rng(0).permutation(len(self.features))[:count])
        return Texts(self.name, [self.features[row] for row in chosen.tolist()], self.about)


def real_texts(name: str, data: Path, vocabulary: Path) -> Texts:
    """The official training file, cut into tokens."""
    from tasks.glue.task import glue_task

    task = glue_task(name, data, {})
    examples = task.examples("train")
    features = task.features(examples, Tokenizer.load(vocabulary), LENGTH, training=True)
    return Texts(name, features, "official train.tsv")


def made_texts(name: str, vocab_size: int) -> Texts:
    """Random tokens with the lengths of a training file."""
    count, quantiles = TOKENS[name]
    rng = np.random.default_rng(0)
    lengths = np.interp(rng.random(count), np.linspace(0, 1, len(quantiles)), quantiles)
    features = []
    for length in np.rint(lengths).astype(int).tolist():
        ids = [CLS, *rng.integers(MASK + 1, vocab_size, length - 2).tolist(), SEP]
        features.append(Features(ids, [0] * length, int(rng.integers(2))))
    return Texts(name, features, "made, with its lengths")
