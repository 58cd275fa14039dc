"""Metrics: the formulas with numpy alone, and each as an `evaluate.Metric` without a download."""

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
    normalise_answer,
    span_scores,
    token_f1,
    tuned_threshold,
)

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
    "normalise_answer",
    "pearson",
    "span_scores",
    "spearman",
    "subset_accuracy",
    "token_f1",
    "tuned_threshold",
]
