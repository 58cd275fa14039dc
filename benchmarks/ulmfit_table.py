"""The table of ULMFiT's grid: errors over seeds, compared, beside those of the paper's LSTM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.comparison import Comparison, Difference, Group, Run, compare, corrected, spread

METRIC = "accuracy"
TITLES = {
    "scratch": "From scratch",
    "full": "Full",
    "full-discr": "Full + discr",
    "last": "Last",
    "chain": "Chain-thaw",
    "freez": "Freez",
    "freez-discr": "Freez + discr",
    "freez-stlr": "Freez + stlr",
    "freez-cos": "Freez + cos",
    "freez-discr-stlr": "Freez + discr + stlr",
    "lm-none": "No LM fine-tuning",
    "lm-full": "LM: Full",
    "lm-full-discr": "LM: Full + discr",
}
"""Arm -> what the paper calls it; LM rows have the classifier of `freez-discr-stlr`, whose own LM
fine-tuning is Full + discr + stlr."""
PAPER: dict[str, dict[str, float]] = {
    "scratch": {"imdb": 9.93, "trec6": 13.36, "agnews": 6.81},
    "full": {"imdb": 6.87, "trec6": 6.86, "agnews": 5.81},
    "full-discr": {"imdb": 5.57, "trec6": 6.21, "agnews": 5.62},
    "last": {"imdb": 6.49, "trec6": 16.09, "agnews": 8.38},
    "chain": {"imdb": 5.39, "trec6": 6.71, "agnews": 5.90},
    "freez": {"imdb": 6.37, "trec6": 6.86, "agnews": 5.81},
    "freez-discr": {"imdb": 5.39, "trec6": 5.86, "agnews": 6.04},
    "freez-stlr": {"imdb": 5.04, "trec6": 6.02, "agnews": 5.35},
    "freez-cos": {"imdb": 5.70, "trec6": 6.38, "agnews": 5.29},
    "freez-discr-stlr": {"imdb": 5.00, "trec6": 5.69, "agnews": 5.38},
    "lm-none": {"imdb": 6.99, "trec6": 6.38, "agnews": 6.09},
    "lm-full": {"imdb": 5.86, "trec6": 6.54, "agnews": 5.61},
    "lm-full-discr": {"imdb": 5.55, "trec6": 6.36, "agnews": 5.47},
}
"""Error rates in percent on a tenth of the training set, one run each (Howard and Ruder, 2018,
tables 6 and 7): an AWD-LSTM pretrained on WikiText-103, IMDb complete."""


def results_of(folder: Path) -> dict[str, Any] | None:
    """What a run found on the validation and the test split; None where it has not ended."""
    files = {"validation": folder / "results.json", "test": folder / "test.json"}
    if not all(file.is_file() for file in files.values()):
        return None
    results = {split: json.loads(file.read_text("utf-8")) for split, file in files.items()}
    return {"folder": folder, **results}


def group(name: str, runs: Sequence[Mapping[str, Any]], split: str) -> Group:
    """The runs of an arm on a split, as the comparison takes them."""
    every = [run[split] for run in runs]
    return Group(
        name,
        every[0]["task"],
        every[0]["split"],
        tuple(
            Run(one["seed"], one["metrics"], folder=run["folder"], degenerate=one["collapsed"])
            for one, run in zip(every, runs, strict=True)
        ),
    )


def baseline(arm: str) -> str:
    """What an arm is compared with: `full` fine-tuning, or no fine-tuning of the LM."""
    return "lm-none" if arm.startswith("lm-") else "full"


def comparisons(groups: Mapping[str, Group]) -> dict[str, Comparison]:
    """Each arm with its baseline, corrected together by Holm's method.

    The whole recipe stands in both of the paper's tables and is compared with both: as
    `freez-discr-stlr` and as `lm-full-discr-stlr`.
    """
    pairs = {arm: (arm, baseline(arm)) for arm in groups if arm != baseline(arm)}
    pairs |= {"lm-full-discr-stlr": ("freez-discr-stlr", "lm-none")}
    compared = {
        name: compare(groups[arm], groups[other], METRIC)
        for name, (arm, other) in pairs.items()
        if arm in groups and other in groups
    }
    return dict(zip(compared, corrected(list(compared.values())), strict=True))


def table(name: str, results: Mapping[str, Sequence[dict[str, Any] | None]], split: str) -> str:
    """The rows of a set in markdown, then the verdicts.

    Args:
        name: The set.
        results: Arm -> what `results_of` gave for each seed.
        split: The one to compare on, validation or test.
    """
    ended = {arm: [run for run in runs if run] for arm, runs in results.items()}
    groups = {arm: group(TITLES[arm], runs, split) for arm, runs in ended.items() if runs}
    compared = comparisons(groups)
    lines = [
        "| fine-tuning | seeds | validation error % | test error % | error less that of the "
        f"baseline, {split} [95 %] | Holm p | paper's LSTM, validation error % |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for arm, runs in ended.items():
        cells = [_error(runs, "validation"), _error(runs, "test"), *_difference(compared.get(arm))]
        lines.append(f"| {TITLES[arm]} | {len(runs)} | {' | '.join(cells)} | {_paper(arm, name)} |")
    notes = [
        "",
        "Baselines: Full for the classifier's rows, no LM fine-tuning for the rows of the LM. "
        "Mean ± standard deviation (n - 1) over seeds of the classifier; the paper has one run a "
        "cell, on the complete sets.",
        "",
        *(f"- {one.verdict}" for one in compared.values()),
    ]
    remarks = dict.fromkeys(note for one in compared.values() for note in one.notes)
    return "\n".join([*lines, *notes, *(f"- note: {note}" for note in remarks)])


def _error(runs: Sequence[Mapping[str, Any]], split: str) -> str:
    if not runs:
        return "-"
    errors = spread([100 * (1 - run[split]["metrics"][METRIC]) for run in runs])
    return f"{errors.mean:.2f}" + (f" ± {errors.std:.2f}" if errors.std is not None else "")


def _difference(comparison: Comparison | None) -> tuple[str, str]:
    """Difference of the errors with its interval, in points, and p."""
    if comparison is None:
        return "-", "-"
    difference: Difference = comparison.differences[0]
    text = f"{-100 * difference.seeds.difference + 0.0:+.2f}"
    if difference.seeds.interval is not None:
        low, high = difference.seeds.interval
        text += f" [{-100 * high + 0.0:+.2f}, {-100 * low + 0.0:+.2f}]"
    p = difference.adjusted_p
    return text, "-" if p is None else "<0.001" if p < 0.0005 else f"{p:.3f}"


def _paper(arm: str, name: str) -> str:
    figure = PAPER.get(arm, {}).get(name)
    return "(not taken over)" if figure is None else f"{figure:.2f}"
