"""What the library knows about a task: examples in, answers out.

A task is its files' form and how an answer is read off the logits. It owns no loop, no optimizer
and no logger; the loss belongs to the head that it names, the official metrics belong to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig
    from finetune.text.features import Features
    from finetune.text.tokenizer import Tokenizer

Answer = dict[str, Any]
"""One row of a predictions file: `id`, `prediction`, what led to it, and `label` where known."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a task's file."""

    id: int | str
    """The data's own id, or the row's number from 0 where it has none."""
    texts: tuple[str, ...]
    """One text, or the two texts of a pair, as the file holds them."""
    label: str | float | None = None
    """The class by name, the number to predict, or None where the file withholds it."""


class Task(Protocol):
    """A benchmark task or the user's own."""

    @property
    def name(self) -> str:
        """Family and task, such as `glue/cola`: the name in results and run folders."""

    @property
    def monitor(self) -> str:
        """The metric of `score` by which the best checkpoint is chosen; higher is better."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits; empty for regression."""

    @property
    def train_split(self) -> str:
        """The split to train on."""

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """The splits that are scored; the first one is monitored."""

    @property
    def test_splits(self) -> tuple[str, ...]:
        """The splits whose answers are submitted."""

    def data_files(self, split: str) -> list[Path]:
        """The files that `examples` reads, for reports and cache keys.

        Raises:
            DataError: A file is missing.
        """

    def examples(self, split: str) -> list[Example]:
        """Read a split, in the file's order.

        Raises:
            DataError: A file is missing, or a row is not in the official form (file and line).
        """

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int
    ) -> list[Features]:
        """Turn examples into token ids of at most `max_length`, special tokens counted."""

    def head(self, config: EncoderConfig, head: HeadConfig) -> nn.Module:
        """The head whose logits `answers` reads, with fresh weights."""

    def answers(self, logits: npt.NDArray[Any], examples: Sequence[Example]) -> list[Answer]:
        """Read the answers off the logits.

        Args:
            logits: One row an example: (N, C), or (N,) for regression.
            examples: The N examples, in the same order.

        Returns:
            One row of the predictions file an example, in the same order.
        """

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """The official metrics of labelled answers, as fractions, the headline first.

        Raises:
            DataError: The answers carry no labels.
        """

    def write_submission(
        self, answers_by_split: Mapping[str, Sequence[Answer]], folder: Path
    ) -> list[Path]:
        """Write test answers in the benchmark's own format; returns the files."""


def majority(task: Task, split: str) -> dict[str, float]:
    """Score the trivial answer: the most frequent training label, or the mean, for every example.

    Args:
        task: Any task whose labels are classes or numbers.
        split: The labelled split to score on.

    Returns:
        The task's metrics, as `score` gives them.
    """
    train = [example.label for example in task.examples(task.train_split)]
    numbers = [label for label in train if isinstance(label, float)]
    prediction = float(np.mean(numbers)) if numbers else Counter(train).most_common(1)[0][0]
    return task.score(
        [
            {"id": example.id, "prediction": prediction, "label": example.label}
            for example in task.examples(split)
        ]
    )
