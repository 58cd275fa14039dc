"""Metrics: the formulas with numpy alone, and each as an `evaluate.Metric` without a download.

A name is imported from its module when it is first used: `finetune.metrics.semantics`, which
defines what metrics mean, does not wait for numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.metrics.classes import (
        class_report,
        confusion_matrix,
        indicators,
        macro_f1,
        micro_f1,
        subset_accuracy,
    )
    from finetune.metrics.scores import (
        METRICS,
        Metric,
        accuracy,
        f1,
        load,
        matthews_correlation,
        pearson,
        spearman,
    )
    from finetune.metrics.spans import (
        best_threshold,
        exact_match,
        load_spans,
        normalize_answer,
        span_scores,
        token_f1,
        tuned_threshold,
    )

_HOMES = {
    "METRICS": "scores",
    "Metric": "scores",
    "accuracy": "scores",
    "best_threshold": "spans",
    "class_report": "classes",
    "confusion_matrix": "classes",
    "exact_match": "spans",
    "f1": "scores",
    "indicators": "classes",
    "load": "scores",
    "load_spans": "spans",
    "macro_f1": "classes",
    "matthews_correlation": "scores",
    "micro_f1": "classes",
    "normalize_answer": "spans",
    "pearson": "scores",
    "span_scores": "spans",
    "spearman": "scores",
    "subset_accuracy": "classes",
    "token_f1": "spans",
    "tuned_threshold": "spans",
}

__all__ = [
    "METRICS",
    "Metric",
    "accuracy",
    "best_threshold",
    "class_report",
    "confusion_matrix",
    "exact_match",
    "f1",
    "indicators",
    "load",
    "load_spans",
    "macro_f1",
    "matthews_correlation",
    "micro_f1",
    "normalize_answer",
    "pearson",
    "span_scores",
    "spearman",
    "subset_accuracy",
    "token_f1",
    "tuned_threshold",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'finetune.metrics' has no attribute {name!r}")
    return getattr(importlib.import_module(f"finetune.metrics.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
