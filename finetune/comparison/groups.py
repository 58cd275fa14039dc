"""Runs that differ by their seed only, as plain values; `finetune.runs.groups` reads files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError, nearest
from finetune.metrics.semantics import meaning

Answer = dict[str, Any]
"""A row of a predictions file."""


def no_answers(split: str) -> list[Answer] | None:
    """None for every split: for a run of which only the metrics are known."""
    return None


@dataclass(frozen=True)
class Run:
    """A run of one seed that has ended."""

    seed: int
    """Its seed."""
    metrics: dict[str, float]
    """As in its results."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """Rows by split; those of `read` are added on first use."""
    folder: Path | None = None
    """Its folder; runs with the same folder are the same run."""
    degenerate: bool = False
    """Whether it gives one answer to every example."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """All its results."""
    read: Callable[[str], list[Answer] | None] = no_answers
    """Split -> its rows, None where there are none."""

    def rows(self, split: str) -> list[Answer] | None:
        """The answers on a split; None where there are none.

        Raises:
            DataError: One of them is not a JSON object with `id` and `prediction`.
        """
        if split not in self.answers and (rows := self.read(split)) is not None:
            self.answers[split] = rows
        return self.answers.get(split)


@dataclass(frozen=True)
class Group:
    """The runs that differ in their seed only."""

    name: str
    """Its name in tables."""
    task: str
    """Such as `glue/cola`."""
    split: str
    """The split whose metrics go without a prefix."""
    runs: tuple[Run, ...]
    """At least one, by ascending seed."""
    notes: tuple[str, ...] = ()
    """Remarks on where the runs come from."""
    data: str = ""
    """Digest of the scored examples; empty where it is not known."""
    is_baseline: bool = False
    """Whether its runs are a baseline of others, beside each of their seeds."""

    def is_like(self, other: Group) -> bool:
        """Whether the scores of both are of the same task, or of the same examples."""
        same_data = bool(self.data) and self.data == other.data
        return self.split == other.split and (self.task == other.task or same_data)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(run.seed for run in self.runs)

    @property
    def metrics(self) -> list[str]:
        """Metrics that every run has, in the order of the first; without tuned thresholds."""
        return [
            name
            for name in self.runs[0].metrics
            if meaning(name).better and all(name in run.metrics for run in self.runs)
        ]

    def values(self, metric: str) -> list[float]:
        """A metric of every seed.

        Raises:
            ConfigError: Not every run has it.
        """
        if metric not in self.metrics:
            raise ConfigError(
                f"{self.name}: no metric {metric!r} in every seed; {nearest(metric, self.metrics)}"
            )
        return [run.metrics[metric] for run in self.runs]


def split_of(metric: str, split: str) -> tuple[str, str]:
    """The split of a metric and its name there: `validation_mismatched/accuracy`."""
    other, _, name = metric.rpartition("/")
    return other or split, name
