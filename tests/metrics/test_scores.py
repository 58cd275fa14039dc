from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.metrics import (
    METRICS,
    Metric,
    accuracy,
    f1,
    load,
    matthews_correlation,
    pearson,
    spearman,
)


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "expected"),
    [
        (accuracy, [0, 1, 2, 1], [0, 2, 2, 1], 3 / 4),
        (accuracy, ["a", "b"], ["a", "a"], 1 / 2),
        (f1, [1, 1, 0, 0], [1, 0, 1, 0], 1 / 2),  # precision 1/2, recall 1/2
        (f1, [1, 0, 0, 0], [1, 1, 1, 0], 1 / 2),  # precision 1, recall 1/3
        (f1, [1, 1], [1, 1], 1.0),
        (matthews_correlation, [1, 0, 1, 0], [1, 0, 1, 0], 1.0),
        (matthews_correlation, [1, 0, 1, 0], [0, 1, 0, 1], -1.0),
        (matthews_correlation, [1, 1, 1, 0], [1, 1, 0, 0], 1 / 3**0.5),
        (pearson, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0),
        (pearson, [1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -1.0),
        (pearson, [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0], 0.0),
        (spearman, [1.0, 2.0, 100.0], [1.0, 8.0, 9.0], 1.0),
        (spearman, [1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], 4.5 / (4.5 * 5) ** 0.5),
    ],
)
def test_metric_has_the_value_worked_out_by_hand(
    metric: Metric, predictions: list[float], references: list[float], expected: float
) -> None:
    assert metric(predictions, references) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("constant", [0, 1])
@pytest.mark.parametrize("metric", [f1, matthews_correlation, pearson, spearman])
def test_constant_predictions_score_a_number(metric: Metric, constant: int) -> None:
    references = [0, 1, 1, 0, 1]
    score = metric([constant] * 5, references)
    assert score == (pytest.approx(3 / 4) if metric is f1 and constant else 0.0)


@pytest.mark.parametrize("metric", [matthews_correlation, pearson, spearman])
def test_constant_references_score_zero(metric: Metric) -> None:
    assert metric([0, 1, 1, 0], [1, 1, 1, 1]) == 0.0


def test_f1_is_zero_where_the_positive_class_is_nowhere() -> None:
    assert f1([0, 0], [0, 0]) == 0.0


def test_constant_whose_mean_is_rounded_correlates_with_nothing() -> None:
    constant = [0.1] * 3
    assert np.mean(constant) != 0.1
    assert pearson(constant, [1.0, 2.0, 3.0]) == 0.0


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_single_example_scores_a_number(metric: Metric) -> None:
    assert metric([1], [1]) in (0.0, 1.0)


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_score_does_not_depend_on_the_order_of_examples(metric: Metric) -> None:
    rng = np.random.default_rng(0)
    predictions, references = rng.integers(0, 2, (2, 50))
    order = rng.permutation(50)
    shuffled = metric(predictions[order], references[order])
    assert shuffled == pytest.approx(metric(predictions, references), abs=1e-12)


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
@pytest.mark.parametrize(
    ("predictions", "references"), [([], []), ([1], [1, 0]), ([[1], [0]], [[1], [0]])]
)
def test_series_that_do_not_fit_are_an_error(
    metric: Metric, predictions: list[int], references: list[int]
) -> None:
    with pytest.raises(ValueError, match="expected predictions and references of the same length"):
        metric(predictions, references)


def test_importing_the_formulas_does_not_import_evaluate() -> None:
    code = "import sys, finetune.metrics; sys.exit('evaluate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestLoad:
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_gives_a_metric_of_the_evaluate_library(self) -> None:
        import evaluate

        assert isinstance(load("accuracy"), evaluate.Metric)

    @pytest.mark.parametrize("name", METRICS)
    def test_computes_the_formula(self, name: str) -> None:
        rng = np.random.default_rng(1)
        predictions, references = rng.integers(0, 2, (2, 40))
        computed = load(name).compute(predictions=predictions, references=references)
        assert computed == {name: METRICS[name](predictions, references)}

    def test_hands_the_formula_arrays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[Any] = []

        def formula(predictions: Any, references: Any) -> float:
            given.extend((predictions, references))
            return 0.5

        monkeypatch.setitem(METRICS, "accuracy", formula)
        load("accuracy").compute(predictions=[1, 0], references=[1, 1])
        assert all(isinstance(side, np.ndarray) for side in given)
        assert [side.tolist() for side in given] == [[1, 0], [1, 1]]

    def test_computes_several_at_once_over_batches(self) -> None:
        metric = load("pearson", "spearman")
        metric.add_batch(predictions=[0.5, 1.5], references=[1.0, 2.0])
        metric.add(prediction=2.5, reference=4.0)
        scores = metric.compute()
        assert scores["pearson"] == pytest.approx(pearson([0.5, 1.5, 2.5], [1.0, 2.0, 4.0]))
        assert scores["spearman"] == pytest.approx(1.0)

    def test_two_metrics_do_not_mix_their_batches(self) -> None:
        first, second = load("accuracy"), load("accuracy")
        first.add_batch(predictions=[1, 1], references=[1, 1])
        second.add_batch(predictions=[1, 1], references=[0, 0])
        assert (first.compute(), second.compute()) == ({"accuracy": 1.0}, {"accuracy": 0.0})

    def test_writes_nothing(self, tmp_path: Path) -> None:
        import evaluate

        before = set(Path(evaluate.config.HF_METRICS_CACHE).rglob("*"))
        load("accuracy").compute(predictions=[1], references=[1])
        assert set(Path(evaluate.config.HF_METRICS_CACHE).rglob("*")) == before
        assert not list(tmp_path.iterdir())
