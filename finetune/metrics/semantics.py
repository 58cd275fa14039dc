"""What a metric means: which way is better, how it is shown, and what guessing gives.

This is the only such table; whoever shows, sorts or compares metrics looks the name up here. Pure
functions without numpy, so that a listing of runs need not wait for it. The formulas are in the
modules beside this one.

A name may follow a split or a section (`validation_mismatched/accuracy`, `val/loss`), and a longer
name means what its last words mean: `macro_f1` is an `f1`, `best_f1_threshold` a `threshold`. A
name without a row has the meaning `DEFAULT`: a fraction, higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Meaning:
    """What the values of a metric mean."""

    better: Better | None = "higher"
    """Which way is better; None for a setting that is reported among the metrics."""
    percent: bool = True
    """Whether it is a fraction of one, shown in percent."""
    chance: Callable[[int], float] | None = None
    """Number of choices -> the expected value of a uniform guess among them; None where it depends
    on more than their number."""


DEFAULT = Meaning()
"""A fraction of one, higher is better: the meaning of every name without a row."""
CORRELATION = Meaning(chance=lambda choices: 0.0)
ERROR = Meaning("lower", percent=False)

MEANINGS: Mapping[str, Meaning] = {
    "accuracy": Meaning(chance=lambda choices: 1 / choices),
    "subset_accuracy": Meaning(),  # right in all of several decisions
    "f1": Meaning(),
    "precision": Meaning(),
    "recall": Meaning(),
    "auc": Meaning(chance=lambda choices: 0.5),
    "match": Meaning(),
    "correlation": CORRELATION,
    "pearson": CORRELATION,
    "spearman": CORRELATION,
    "loss": Meaning("lower", percent=False, chance=math.log),  # nats
    "perplexity": Meaning("lower", percent=False, chance=float),
    "word_perplexity": ERROR,  # whatever the tokens are, so that no number of them is its chance
    "nats_per_token": Meaning("lower", percent=False, chance=math.log),
    "bits_per_byte": ERROR,
    "nll": Meaning("lower", percent=False, chance=math.log),  # nats
    "ece": Meaning("lower"),  # of probabilities, not of answers
    "squared_error": ERROR,
    "absolute_error": ERROR,
    "error_rate": Meaning("lower"),  # edits over the length of what is right: may exceed one
    "threshold": Meaning(None, percent=False),  # in the unit of what is compared with it
}
"""Last words of a name -> meaning; the longest match counts."""
TOKEN_ACCURACIES = ("masked_accuracy", "next_token_accuracy")
"""Fraction of the masked tokens that are predicted correctly; with a causal encoder, of all tokens,
each from those before it."""
SECTIONS = {"train": "Training", "val": "Validation"}
"""Section of a logged name -> its word in titles."""


def known(metric: str) -> Meaning | None:
    """The row of a metric; None where it has none."""
    parts = metric.rpartition("/")[2].split("_")
    endings = ("_".join(parts[first:]) for first in range(len(parts)))  # the longest first
    return next((MEANINGS[ending] for ending in endings if ending in MEANINGS), None)


def meaning(metric: str) -> Meaning:
    """What a metric means; `DEFAULT` where it has no row.

    >>> from finetune.metrics.semantics import meaning
    >>> meaning("val/loss").better, meaning("validation_mismatched/accuracy").percent
    ('lower', True)
    """
    return known(metric) or DEFAULT


def goodness(metric: str, value: float) -> float:
    """A value, or a difference of two, with its sign such that higher is better."""
    return -value if meaning(metric).better == "lower" else value


def best_index(metric: str, values: Sequence[float]) -> int:
    """Index of the best of several values, at least one; the first of equal ones."""
    return max(range(len(values)), key=lambda index: goodness(metric, values[index]))


def headline(metrics: Iterable[str]) -> str | None:
    """The metric that stands for a run: the first of its results; for SQuAD, F1.

    Args:
        metrics: Names in the order of the results.

    Returns:
        The first that is not a setting such as a threshold; None where there is none.
    """
    names = [name for name in metrics if meaning(name).better]
    # SQuAD's checkpoints are chosen by F1, and its leaderboard is sorted by it.
    if names[:1] == ["exact_match"] and "f1" in names:
        return "f1"
    return names[0] if names else None


def chance_level(metric: str, choices: int) -> float | None:
    """The value of a uniform guess among at least 1 choices; None where it is not defined."""
    chance = meaning(metric).chance
    return None if chance is None else chance(choices)


def shown(metric: str, value: float, *, signed: bool = False, short: bool = False) -> str:
    """A value or a difference as text: in percent with two digits, or plain with four.

    Args:
        metric: Its name.
        value: As results have it.
        signed: Whether a value above zero gets a plus sign.
        short: Whether to write one digit less.
    """
    if meaning(metric).percent:
        digits, scale = (1 if short else 2), 100
    else:
        digits, scale = (3 if short else 4), 1
    rounded = round(scale * value, digits) + 0.0  # turns -0.0 into 0.0, which shows no sign
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}"


def column_title(metric: str) -> str:
    """A metric as the title of values that `shown` wrote: `accuracy (%)`, `loss`."""
    return f"{metric} (%)" if meaning(metric).percent else metric


def label(metric: str) -> str:
    """A metric's name in words: `matthews_correlation` -> `matthews correlation`."""
    return metric.replace("_", " ")


def of_split(number: int, split: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Scores under their names in results: those of a second split behind its name.

    >>> from finetune.metrics.semantics import of_split
    >>> of_split(0, "matched", {"accuracy": 0.5}) | of_split(1, "mismatched", {"accuracy": 0.4})
    {'accuracy': 0.5, 'mismatched/accuracy': 0.4}

    Args:
        number: Of the split among those that are scored, from 0.
        split: Its name.
        scores: Metric -> value.
    """
    return {f"{split}/{name}" if number else name: value for name, value in scores.items()}


def axis_title(name: str) -> str:
    """The title of a curve: `val/f1` -> `Validation f1, percent`; `train/loss` -> `Training loss`.

    Args:
        name: As it is logged, in one of `SECTIONS`.
    """
    section, _, metric = name.partition("/")
    unit = ", percent" if meaning(metric).percent else ""
    return f"{SECTIONS[section]} {label(metric)}{unit}"
