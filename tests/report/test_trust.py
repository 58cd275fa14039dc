"""The figures about probabilities are those that the answers give."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.metrics.calibration import calibration_error
from finetune.report import write_report
from tests.made.runs import class_rows, write_class_run

FIGURES = {
    "decision": {"temperature": 1.83, "tuned_on": "validation"},
    "calibration": {
        "validation": {
            "ece": {"before": 0.12, "after": 0.031},
            "nll": {"before": 0.55, "after": 0.41},
        }
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """The part of a report of a calibrated run and an earlier one, and the specs of its plots."""
    from finetune.runs.families import using_families
    from tests.made.runs import FAMILIES

    root: Path = tmp_path_factory.mktemp("trust")
    write_class_run(root / "new", 0.9, [1, 2], **FIGURES)
    write_class_run(root / "old", 0.7, [1, 2])
    with using_families(FAMILIES):
        write_report([root / "new", root / "old"], root / "page.html")
    page = (root / "page.html").read_text(encoding="utf-8")
    (part,) = re.findall(r'<section id="calibration".*?</section>', page, re.DOTALL)
    specs = re.findall(r'<script type="application/json" class="spec">(.*?)</script>', part)
    return part, [json.loads(spec) for spec in specs]


def test_dots_of_reliability_are_bins_of_all_seeds(made: tuple[str, list[Any]]) -> None:
    reliability, _ = made[1]
    for one, accuracy in zip(reliability["series"], (0.7, 0.9), strict=True):  # the baseline last
        rows = [row for seed in (1, 2) for row in class_rows(seed, accuracy)]
        sure = np.array([max(row["probabilities"].values()) for row in rows])
        right = np.array([row["prediction"] == row["label"] for row in rows])
        assert sum(count for *_, count in one["points"]) == len(rows)
        for confidence, fraction, count in one["points"]:
            inside = np.ceil(sure * 15) == np.ceil(confidence * 15)
            assert count == inside.sum()
            assert fraction == pytest.approx(right[inside].mean(), abs=1e-4)


def test_curve_of_coverage_ends_at_the_accuracy_of_all(made: tuple[str, list[Any]]) -> None:
    _, coverage = made[1]
    for one, accuracy in zip(coverage["series"], (0.7, 0.9), strict=True):
        rows = [row for seed in (1, 2) for row in class_rows(seed, accuracy)]
        right = np.mean([row["prediction"] == row["label"] for row in rows])
        assert one["points"][-1] == [1.0, pytest.approx(right, abs=1e-4), len(rows)]
        assert len(one["points"]) <= 160


def test_table_has_the_figures_of_the_results_and_else_of_the_answers(
    made: tuple[str, list[Any]],
) -> None:
    rows = [row for seed in (1, 2) for row in class_rows(seed, 0.7)]
    sure = [max(row["probabilities"].values()) for row in rows]
    right = [row["prediction"] == row["label"] for row in rows]
    for shown in ("1.83", "3.10", "12.00", "0.4100", "0.5500"):
        assert f">{shown}<" in made[0]
    assert f">{100 * calibration_error(sure, right):.2f}<" in made[0]
