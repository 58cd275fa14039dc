"""Published figures that a report sets beside a run's own; each with its source.

They are there for orientation: most were measured on test sets that only the leaderboard can score,
by far larger models, and trained on all of the data.
"""

from __future__ import annotations

from finetune.runs.families import Anchor
from tasks.glue.table import GLUE

_TINY = "Turc et al., 2019: table of the 24 small models in google-research/bert"
_BASE = "Devlin et al., 2019, table 1"
_TINY_GLUE = {
    "cola": {"matthews_correlation": 0.0},
    "sst2": {"accuracy": 83.2},
    "mrpc": {"accuracy": 71.1, "f1": 81.1},
    "stsb": {"pearson": 74.3, "spearman": 73.6},
    "qqp": {"accuracy": 83.4, "f1": 62.2},
    "mnli": {"accuracy": 70.2},
    "qnli": {"accuracy": 81.5},
    "rte": {"accuracy": 57.2},
    "wnli": {"accuracy": 62.3},
}
_BASE_GLUE = {
    "cola": {"matthews_correlation": 52.1},
    "sst2": {"accuracy": 93.5},
    "mrpc": {"f1": 88.9},
    "stsb": {"spearman": 85.8},
    "qqp": {"f1": 71.2},
    "mnli": {"accuracy": 84.6},
    "qnli": {"accuracy": 90.5},
    "rte": {"accuracy": 66.4},
}
_ULMFIT = "Howard and Ruder, 2018, tables 2 and 3"


OFFICIAL = {
    "squad/1.1": 87_599 + 10_570,
    "squad/2.0": 130_319 + 11_873,
    "race/all": 87_866 + 4_887,
    "classify/imdb": 25_000,
    "classify/trec6": 5_452,
    "classify/agnews": 120_000,
}
"""Examples of the official training and validation data; those of GLUE are in its table."""


def _anchors(
    model: str, percent: dict[str, dict[str, float]], split: str, source: str
) -> dict[str, list[Anchor]]:
    return {
        task: [
            Anchor(metric, round(value / 100, 4), model, split, source, _official(task))
            for metric, value in metrics.items()
        ]
        for task, metrics in percent.items()
    }


def _official(task: str) -> int:
    if task in OFFICIAL:
        return OFFICIAL[task]
    first, second, *_ = GLUE[task.removeprefix("glue/")].splits.values()  # train, validation
    return first.rows + second.rows


def glue_anchors() -> dict[str, list[Anchor]]:
    """BERT-tiny and BERT-base, on the test sets."""
    tiny = _anchors("BERT-tiny", _TINY_GLUE, "test", _TINY)
    base = _anchors("BERT-base", _BASE_GLUE, "test", _BASE)
    return {f"glue/{task}": tiny[task] + base.get(task, []) for task in tiny}


def squad_anchors() -> dict[str, list[Anchor]]:
    """BERT-base for 1.1 and BERT-large for 2.0, single models on the development sets."""
    base = {"squad/1.1": {"exact_match": 80.8, "f1": 88.5}}
    large = {"squad/2.0": {"exact_match": 78.7, "f1": 81.9}}
    return {
        **_anchors("BERT-base", base, "validation", "Devlin et al., 2019, table 2"),
        **_anchors("BERT-large", large, "validation", "Devlin et al., 2019, table 3"),
    }


def race_anchors() -> dict[str, list[Anchor]]:
    """RoBERTa-large, on the test set of both levels."""
    scores = {"race/all": {"accuracy": 83.2}}
    return _anchors("RoBERTa-large", scores, "test", "Liu et al., 2019, section 5.3")


def classify_anchors() -> dict[str, list[Anchor]]:
    """ULMFiT, on the test sets."""
    scores = {"imdb": 95.4, "trec6": 96.4, "agnews": 94.99}
    return _anchors(
        "ULMFiT",
        {f"classify/{name}": {"accuracy": score} for name, score in scores.items()},
        "test",
        _ULMFIT,
    )
