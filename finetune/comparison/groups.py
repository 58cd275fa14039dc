"""Runs that differ by their seed only, read from their folders: metrics, and answers on demand."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError, DataError, nearest
from finetune.metrics.semantics import meaning

Answer = dict[str, Any]
"""A row of a predictions file."""


@dataclass(frozen=True)
class Run:
    """One seed."""

    seed: int
    """Its seed."""
    metrics: dict[str, float]
    """As in results.json."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """Rows by split; those of `folder` are added when they are asked for."""
    folder: Path | None = None
    """Where it lies."""
    degenerate: bool = False
    """Whether it gives one answer to every example."""

    def rows(self, split: str) -> list[Answer] | None:
        """The answers on a split; None where there are none.

        Raises:
            DataError: A line of the file is not a JSON object with `id` and `prediction`.
        """
        if split not in self.answers and self.folder is not None:
            path = self.folder / "predictions" / f"{split}.jsonl"
            if path.is_file():
                self.answers[split] = _read_rows(path)
        return self.answers.get(split)


@dataclass(frozen=True)
class Group:
    """The runs of one way of training, one a seed."""

    name: str
    """What it is called in tables."""
    task: str
    """Such as `glue/cola`."""
    split: str
    """The split whose metrics go without a prefix."""
    runs: tuple[Run, ...]
    """At least one, by ascending seed."""
    notes: tuple[str, ...] = ()
    """What a reader is to know about where they come from."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(run.seed for run in self.runs)

    @property
    def metrics(self) -> list[str]:
        """Metrics that every run has, in the order of the first; settings are none."""
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
    """The split that a metric is about and its own name: `validation_mismatched/accuracy`."""
    other, _, name = metric.rpartition("/")
    return other or split, name


def read_group(places: Path | Sequence[Path]) -> Group:
    """Read a run of one or several seeds, a folder of runs, or a list of either.

    Args:
        places: A run folder (results.json of one seed, or of several), a folder whose sub-folders
            are such, or several of them, all of one task.

    Returns:
        One run a seed, by ascending seed.

    Raises:
        DataError: There is no results.json, or one is damaged; the runs are of different tasks or
            splits; a seed occurs twice.
    """
    folders = [places] if isinstance(places, Path) else list(places)
    if not folders:
        raise DataError("expected at least one run folder, found none; name a run")
    notes: list[str] = []
    found = [part for folder in folders for part in _read_place(folder, notes)]
    kinds = {(results["task"], results["split"]): folder for folder, results in found}
    if len(kinds) > 1:
        (one, here), (other, there) = list(kinds.items())[:2]
        raise DataError(
            f"expected runs of one task, found {_kind(one)} in {here} and {_kind(other)} in "
            f"{there}; name runs that differ by their seed only"
        )
    runs = sorted((_run(folder, results) for folder, results in found), key=lambda run: run.seed)
    seed, times = Counter(run.seed for run in runs).most_common(1)[0]
    if times > 1:
        places_of = " and ".join(str(run.folder) for run in runs if run.seed == seed)
        raise DataError(
            f"expected one run a seed, found seed {seed} {times} times: {places_of}; leave all but "
            "one out"
        )
    ((task, split),) = kinds
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    return Group(f"{folders[0]}{more}", task, split, tuple(runs), tuple(notes))


def _kind(kind: tuple[str, str]) -> str:
    return f"{kind[0]} ({kind[1]})"


def _read_place(folder: Path, notes: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folder and results of each seed; the results are checked."""
    if (folder / "results.json").is_file():
        yield from _seeds(folder)
        return
    inside = sorted(path.parent for path in folder.glob("*/results.json"))
    if not inside:
        raise DataError(
            f"{folder}: expected a run with results.json, or a folder of such runs, found neither; "
            "name a run that has ended"
        )
    notes.append(f"{folder} has no results.json of its own: the {len(inside)} runs in it are taken")
    for run in inside:
        yield from _seeds(run)


def _seeds(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    file = folder / "results.json"
    try:
        results = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{file}: expected JSON, found {error}") from None
    if not isinstance(results, dict) or "seeds" not in results:
        yield folder, _checked(results, file)
        return
    runs = results.get("runs")
    if not isinstance(runs, list) or not runs:
        raise DataError(
            f"{file}: expected the results of each seed under 'runs', found none; train again"
        )
    for run in runs:
        run = _checked(run, file)
        yield folder / f"seed-{run['seed']}", run


def _checked(results: Any, file: Path) -> dict[str, Any]:
    kinds = {"task": str, "split": str, "metrics": dict, "seed": int}
    for key, kind in kinds.items():
        if not isinstance(results, dict) or not isinstance(results.get(key), kind):
            raise DataError(
                f"{file}: expected results with task, split, metrics and seed, found no {key}; "
                "train or evaluate again"
            )
    for name, value in results["metrics"].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise DataError(f"{file}: expected a number as {name}, found {value!r}; train again")
    return dict(results)


def _run(folder: Path, results: dict[str, Any]) -> Run:
    return Run(
        seed=results["seed"],
        metrics=dict(results["metrics"]),
        folder=folder,
        degenerate=bool(results.get("collapsed")),
    )


def _read_rows(path: Path) -> list[Answer]:
    with path.open("rb") as file:
        return [_row(line, f"{path}:{number}") for number, line in enumerate(file, start=1)]


def _row(line: bytes, where: str) -> Answer:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not {"id", "prediction"} <= row.keys():
        raise DataError(
            f"{where}: expected a JSON object with id and prediction, found {line[:40]!r}; "
            "`finetune evaluate` writes the file again"
        )
    return row
