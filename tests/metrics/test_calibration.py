"""Calibration: parity with torchmetrics, scikit-learn and torch, and optima that a search finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import f1_score
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from finetune.metrics.calibration import (
    BINS,
    best_temperature,
    best_thresholds,
    calibration_error,
    confidences,
    coverage,
    negative_log_likelihood,
    reliability,
)


def drawn(classes: int, *, sharpness: float = 3.0) -> tuple[Any, Any, Any]:
    """Logits of too sure a model, the class drawn by logits / 2, and indicators drawn likewise."""
    rng = np.random.default_rng(classes)
    logits = sharpness * rng.normal(size=(400, classes))
    odds = np.exp(logits / 2)
    true = np.array([rng.choice(classes, p=row / row.sum()) for row in odds])
    return logits, true, rng.random(logits.shape) < 1 / (1 + np.exp(-logits / 2))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_error_is_that_of_torchmetrics(classes: int) -> None:
    logits, true, sets = drawn(classes)
    shares = torch.tensor(logits).softmax(dim=-1)
    theirs = multiclass_calibration_error(shares, torch.tensor(true), classes, n_bins=BINS)
    assert calibration_error(*confidences(logits, true)) == pytest.approx(float(theirs), abs=1e-6)
    each = torch.tensor(logits).sigmoid().flatten(), torch.tensor(sets).int().flatten()
    theirs = binary_calibration_error(*each, n_bins=BINS)
    assert calibration_error(*confidences(logits, sets)) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 5])
def test_likelihood_is_that_of_torch(classes: int) -> None:
    logits, true, sets = drawn(classes)
    z = torch.tensor(logits)
    theirs = cross_entropy(z, torch.tensor(true))
    assert negative_log_likelihood(logits, true) == pytest.approx(float(theirs), abs=1e-12)
    theirs = binary_cross_entropy_with_logits(z, torch.tensor(sets).double())
    assert negative_log_likelihood(logits, sets) == pytest.approx(float(theirs), abs=1e-12)
    assert np.isfinite(negative_log_likelihood(1e4 * logits, true))


def test_bins_are_those_of_scikit_learn() -> None:
    logits, _, sets = drawn(4)
    values, true = confidences(logits, sets)
    fractions, means = calibration_curve(true, values, n_bins=BINS)
    bins = reliability(values, true)
    assert [one.accuracy for one in bins] == pytest.approx(fractions.tolist())
    assert [one.confidence for one in bins] == pytest.approx(means.tolist())
    assert sum(one.answers for one in bins) == len(values)


def test_certain_answers_lie_in_the_last_bin_and_empty_bins_are_left_out() -> None:
    (one,) = reliability([1.0, 1.0, 1.0, 1.0], [True, True, True, False])
    assert one == (1.0, 0.75, 4)
    assert calibration_error([1.0, 1.0, 1.0, 1.0], [True, True, True, False]) == 0.25
    assert reliability([0.0], [False]) == [(0.0, 0.0, 1)]


def test_coverage_is_the_accuracy_of_those_at_least_as_sure() -> None:
    rng = np.random.default_rng(0)
    values, right = rng.integers(0, 20, 200) / 20, rng.random(200) < 0.6  # with many ties
    covered, accuracy = coverage(values, right)
    levels = np.unique(values)[::-1]
    given = [values >= level for level in levels]
    assert covered.tolist() == pytest.approx([one.mean() for one in given])
    assert accuracy.tolist() == pytest.approx([right[one].mean() for one in given])
    assert covered[-1] == 1


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_temperature_has_the_least_likelihood_of_a_grid(classes: int) -> None:
    logits, *targets = drawn(classes)
    for true in targets:
        chosen = best_temperature(logits, true)
        assert chosen is not None
        grid = np.geomspace(0.1, 10, 2001)
        losses = [negative_log_likelihood(logits / heat, true) for heat in grid]
        assert chosen == pytest.approx(grid[int(np.argmin(losses))], rel=0.004)
        assert 1.5 < chosen < 2.7  # the labels were drawn at 2
        before, after = (calibration_error(*confidences(logits / t, true)) for t in (1, chosen))
        assert after < before / 2


def test_a_model_that_is_all_right_has_no_temperature_and_a_useless_one_the_highest() -> None:
    logits, true, sets = drawn(3)
    assert best_temperature(logits, logits.argmax(axis=1)) is None
    assert best_temperature(logits, logits > 0) is None
    assert best_temperature(logits, logits.argmin(axis=1)) == 10
    assert best_temperature(0.001 * logits, true) == 0.1
    assert best_temperature(-logits, sets) == 10


def test_temperature_stays_when_examples_change_their_order() -> None:
    logits, true, _ = drawn(3)
    order = np.random.default_rng(1).permutation(len(true))
    assert best_temperature(logits[order], true[order]) == best_temperature(logits, true)


def test_thresholds_have_the_best_f1_of_all() -> None:
    logits, _, sets = drawn(4)
    shares = (1 / (1 + np.exp(-logits))).round(6)
    for values, true, threshold in zip(
        shares.T, sets.T, best_thresholds(shares, sets), strict=True
    ):
        tried = [f1_score(true, values > level) for level in [-1, *np.unique(values)[:-1]]]
        assert f1_score(true, values > threshold) == max(tried)


def test_a_class_of_few_examples_and_one_that_half_suits_as_well_keep_one_half() -> None:
    values = np.linspace(0, 1, 12)
    four = values > 0.7
    assert best_thresholds(values[:, None], four[:, None]).tolist() == [0.5]
    separated = values > 0.5
    assert best_thresholds(values[:, None], separated[:, None]).tolist() == [0.5]
    six = np.where(separated, 0.3, 0.1)  # any threshold between does; the nearest is taken
    assert best_thresholds(six[:, None], separated[:, None]).tolist() == [pytest.approx(0.2)]
    assert best_thresholds(np.full((12, 1), 0.4), separated[:, None]).tolist() == [0.5]
    at_half = np.where(separated, 0.9, 0.5)  # what is at the threshold is not above it
    assert best_thresholds(at_half[:, None], separated[:, None]).tolist() == [0.5]


@pytest.mark.parametrize("count", [5, 7])
def test_five_examples_with_a_class_and_five_without_it_are_enough(count: int) -> None:
    values = np.linspace(0, 0.4, 12)
    (threshold,) = best_thresholds(values[:, None], np.arange(12)[:, None] >= 12 - count)
    assert values[11 - count] < threshold < values[12 - count]


@pytest.mark.parametrize(("logits", "true"), [(np.zeros((2, 2)), [0]), (np.zeros((0, 2)), [])])
def test_sides_that_do_not_fit_are_refused(logits: Any, true: Any) -> None:
    with pytest.raises(ValueError, match="expected logits"):
        negative_log_likelihood(logits, true)
    with pytest.raises(ValueError, match="expected confidences"):
        reliability([0.5], [True, False])
