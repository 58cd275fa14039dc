"""Made groups of runs, with random answers or with values alone: in memory, and as folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.comparison import Answer, Group, Run
from tests.made.texts import write_json, write_lines

CLASSES = ("no", "yes")


def answers(accuracy: float, seed: int, examples: int = 200) -> list[Answer]:
    """Rows of which a random share of this size is right."""
    labels = np.random.default_rng(0).integers(2, size=examples)
    right = np.random.default_rng([seed, round(1e6 * accuracy)]).random(examples) < accuracy
    said = np.where(right, labels, 1 - labels)
    return [
        {"id": number, "prediction": CLASSES[one], "label": CLASSES[other]}
        for number, (one, other) in enumerate(zip(said, labels, strict=True))
    ]


def accuracy_of(rows: Sequence[Answer]) -> float:
    return float(np.mean([row["prediction"] == row["label"] for row in rows]))


def make_group(name: str, accuracy: float, seeds: Sequence[int], examples: int = 200) -> Group:
    """A group whose metrics are those of its answers."""
    runs = []
    for seed in seeds:
        rows = answers(accuracy, seed, examples)
        runs.append(Run(seed, {"accuracy": accuracy_of(rows)}, {"validation": rows}))
    return Group(name, "glue/sst2", "validation", tuple(runs))


def values_group(name: str, values: Sequence[float], metric: str = "accuracy") -> Group:
    """A group with metrics and no answers, seeds from 1."""
    runs = tuple(Run(seed, {metric: value}) for seed, value in enumerate(values, start=1))
    return Group(name, "glue/sst2", "validation", runs)


def results_of(run: Run, group: Group) -> dict[str, Any]:
    return {
        "task": group.task,
        "split": group.split,
        "metrics": run.metrics,
        "seed": run.seed,
        "collapsed": run.degenerate,
    }


def write_seed(folder: Path, run: Run, group: Group) -> None:
    """A run folder of one seed."""
    write_json(folder / "results.json", results_of(run, group))
    for split, rows in run.answers.items():
        write_lines(folder / "predictions" / f"{split}.jsonl", rows)
