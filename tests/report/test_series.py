"""Curves out of lines of metrics: bands over seeds, thinning, groups of rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.report.collecting import ReportedRun, Seed
from finetune.report.series import Point, band, curve, logged, named, rates, thinned
from finetune.runs.folder import RunFolder


def run_of(*seeds: list[dict[str, float]]) -> ReportedRun:
    made = tuple(Seed(RunFolder(Path(f"seed-{n}")), {}, lines) for n, lines in enumerate(seeds, 1))
    return ReportedRun(RunFolder(Path("run")), "run", {}, made)


def test_lines_without_a_finite_value_are_passed_over() -> None:
    lines = [{"step": 1, "a": 2.0, "epoch": 0.5}, {"step": 2, "a": None}, {"step": 3, "b": 1}]
    assert logged(lines, "a") == [(1, 0.5, 2.0)]


def test_seeds_that_logged_at_the_same_steps_are_put_together_step_by_step() -> None:
    one, other = [(10, 0.1, 1.0), (20, 0.2, 2.0)], [(10, 0.1, 3.0), (20, 0.2, 2.5)]
    assert band([one, other]) == [Point(10, 0.1, 2.0, 1.0, 3.0), Point(20, 0.2, 2.25, 2.0, 2.5)]


def test_other_seeds_are_read_off_between_their_points_as_far_as_all_reach() -> None:
    one, other = [(0, 0, 0.0), (100, 1, 10.0)], [(50, 0.5, 1.0), (75, 0.75, 1.0), (200, 2, 1.0)]
    found = band([one, other])
    assert [point.step for point in found] == [100]
    assert found[0].mean == pytest.approx((10 + 1) / 2)


@pytest.mark.parametrize("seeds", [[], [[]], [[], []]])
def test_nothing_logged_is_no_curve(seeds: list[list[tuple[float, float, float]]]) -> None:
    assert band(seeds) == []


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_mean_lies_in_the_band(values: list[list[float]]) -> None:
    seeds = [[(step, step / 2, value) for step, value in enumerate(of)] for of in values]
    for point, of in zip(band(seeds), np.transpose(values), strict=True):
        assert point.low - 1e-3 <= point.mean <= point.high + 1e-3
        assert point.mean == pytest.approx(float(of.mean()), rel=1e-3, abs=1e-6)


def test_thinning_keeps_both_ends_and_the_order() -> None:
    points = [Point(n, n, n, n, n) for n in range(1000)]
    few = thinned(points, 50)
    assert len(few) == 50
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert few == sorted(few)
    assert thinned(points[:50], 50) == points[:50]


def test_layer_groups_with_the_same_rates_are_one_curve() -> None:
    lines = [
        {"step": n, "lr/embeddings": 0.1, "lr/block_1": 0.1, "lr/head": 0.2 * n} for n in (1, 2)
    ]
    found = rates(run_of(lines, lines))
    assert list(found) == ["embeddings..block_1", "head"]
    assert [point.mean for point in found["head"]] == [0.2, 0.4]


def test_a_row_of_groups_is_named_by_its_ends() -> None:
    assert (named(["head"]), named(["a", "b", "c"])) == ("head", "a..c")


def test_a_run_without_a_metric_has_no_curve_of_it() -> None:
    assert curve(run_of([{"step": 1, "a": 1.0}], []), "b") == []
    assert len(curve(run_of([{"step": 1, "a": 1.0}], []), "a")) == 1
