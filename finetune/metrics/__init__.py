"""Metrics: the formulas with numpy alone, and each as an `evaluate.Metric` without a download.

A name is imported from its module when it is first used: `finetune.metrics.semantics`, which
defines what metrics mean, does not wait for numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.metrics.calibration import (
        best_temperature,
        calibration_error,
        coverage,
        negative_log_likelihood,
        reliability,
    )
    from finetune.metrics.classes import (
        auc,
        class_report,
        confusion_matrix,
        indicators,
        macro_f1,
        macro_precision,
        macro_recall,
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
        mean_absolute_error,
        pearson,
        root_mean_squared_error,
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

__all__ = [
    "METRICS",
    "Metric",
    "accuracy",
    "auc",
    "best_temperature",
    "best_threshold",
    "calibration_error",
    "class_report",
    "confusion_matrix",
    "coverage",
    "exact_match",
    "f1",
    "indicators",
    "load",
    "load_spans",
    "macro_f1",
    "macro_precision",
    "macro_recall",
    "matthews_correlation",
    "mean_absolute_error",
    "micro_f1",
    "negative_log_likelihood",
    "normalize_answer",
    "pearson",
    "reliability",
    "root_mean_squared_error",
    "span_scores",
    "spearman",
    "subset_accuracy",
    "token_f1",
    "tuned_threshold",
]


__getattr__ = lazy_names(__name__, __all__, ("scores", "classes", "spans", "calibration"))


def __dir__() -> list[str]:
    return __all__
