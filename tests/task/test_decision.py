"""Answers with calibrated probabilities, decided by numbers of a validation split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.metrics.calibration import best_thresholds, calibration_error
from finetune.task import decision
from finetune.task.interface import Example, Task
from tasks.own.text import ClassifyConfig, classify_task
from tests.made.texts import write_csv

N = 200
NAMES = ("a", "b", "c")


def task_of(tmp_path: Path, labels: list[str], **settings: Any) -> Task:
    file = write_csv(tmp_path / "t.csv", ["text", "label"], [("x", one) for one in labels])
    files = {"train": file, "validation": file}
    return classify_task(files, ClassifyConfig(**settings))


@pytest.fixture
def classes(tmp_path: Path) -> tuple[Task, Any, list[Example]]:
    """Logits of three classes that are twice as sharp as the labels are sure."""
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(N, 3))).astype(np.float32)
    odds = np.exp(logits.astype(float) / 2)
    labels = [NAMES[rng.choice(3, p=row / row.sum())] for row in odds]
    examples = [Example(n, ("x",), label) for n, label in enumerate(labels)]
    return task_of(tmp_path, labels), logits, examples


@pytest.fixture
def several(tmp_path: Path) -> tuple[Task, Any, list[Example]]:
    """Logits of three classes that apply on their own, all of them too low."""
    rng = np.random.default_rng(0)
    logits = (2 * rng.normal(size=(N, 3)) - 2).astype(np.float32)
    applies = rng.random((N, 3)) < 1 / (1 + np.exp(-logits.astype(float) - 1.5))
    sets = [tuple(n for n, yes in zip(NAMES, row, strict=True) if yes) for row in applies]
    examples = [Example(n, ("x",), label) for n, label in enumerate(sets)]
    table = [";".join(one) or "a" for one in sets]
    return task_of(tmp_path, table, kind="multi_label", separator=";"), logits, examples


def test_probabilities_are_those_of_logits_divided_by_the_temperature(classes: Any) -> None:
    task, logits, examples = classes
    numbers = decision.tune(task, logits, examples, [])
    assert 1.5 < numbers["temperature"] < 2.7
    rows = decision.answers(task, logits, examples, [], numbers)
    expected = (torch.tensor(logits).double() / numbers["temperature"]).softmax(dim=-1)
    got = [[row["probabilities"][name] for name in NAMES] for row in rows]
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)


def test_temperature_changes_no_answer(classes: Any) -> None:
    task, logits, examples = classes
    before = decision.answers(task, logits, examples, [], {})
    for temperature in (0.1, 1.0, 1.879, 10.0):
        after = decision.answers(task, logits, examples, [], {"temperature": temperature})
        assert [row["prediction"] for row in after] == [row["prediction"] for row in before]
    # Logits that differ in their last bit are two answers still.
    close = np.array([[1.0, np.nextafter(np.float32(1), np.float32(2)), 0]], dtype=np.float32)
    (row,) = decision.answers(task, close, examples[:1], [], {"temperature": 3.0})
    assert row["prediction"] == "b"


def test_trust_says_what_the_temperature_changed(classes: Any) -> None:
    task, logits, examples = classes
    numbers = decision.tune(task, logits, examples, [])
    figures = decision.trust(task, logits, examples, numbers)
    assert figures["nll"]["after"] < figures["nll"]["before"]
    assert figures["ece"]["after"] < figures["ece"]["before"] / 2
    rows = decision.answers(task, logits, examples, [], numbers)
    sure = [max(row["probabilities"].values()) for row in rows]
    right = [row["prediction"] == row["label"] for row in rows]
    assert calibration_error(sure, right) == pytest.approx(figures["ece"]["after"], abs=1e-4)
    without = decision.trust(task, logits, examples, {})
    assert without["nll"]["after"] == without["nll"]["before"] == figures["nll"]["before"]


def test_without_labels_or_with_all_answers_right_there_is_no_temperature(classes: Any) -> None:
    task, logits, examples = classes
    unlabelled = [Example(one.id, one.texts) for one in examples]
    assert decision.tune(task, logits, unlabelled, []) == {}
    assert decision.trust(task, logits, unlabelled, {}) == {}
    right = [Example(n, ("x",), NAMES[row.argmax()]) for n, row in enumerate(logits)]
    assert decision.tune(task, logits, right, []) == {}


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_outputs_of_diverged_weights_have_no_temperature(classes: Any, value: float) -> None:
    task, logits, examples = classes
    logits[7, 1] = value
    assert decision.tune(task, logits, examples, []) == {}
    assert bool(decision.trust(task, logits, examples, {})) == (value < 0)


def test_numbers_and_passages_have_no_temperature(tmp_path: Path) -> None:
    task = task_of(tmp_path, ["1.5", "2.5", "7.25"])
    examples = [Example(n, ("x",), value) for n, value in enumerate((1.5, 2.5, 7.25))]
    outputs = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    assert decision.tune(task, outputs, examples, []) == {}
    rows = decision.answers(task, outputs, examples, [], {"temperature": 2.0})
    assert [row["prediction"] for row in rows] == [1.0, 2.0, 3.0]


def test_thresholds_of_several_classes_raise_f1_and_decide_by_them(several: Any) -> None:
    task, logits, examples = several
    numbers = decision.tune(task, logits, examples, [])
    thresholds = {name: numbers[f"threshold/{name}"] for name in NAMES}
    assert all(0 < value < 0.5 for value in thresholds.values())
    rows = decision.answers(task, logits, examples, [], numbers)
    for row in rows:
        above = [name for name in NAMES if row["probabilities"][name] > thresholds[name]]
        assert row["prediction"] == above
    fixed = decision.answers(task, logits, examples, [], {"temperature": numbers["temperature"]})
    assert task.score(rows)["macro_f1"] > task.score(fixed)["macro_f1"] + 0.05
    assert task.score(rows)["auc"] == task.score(fixed)["auc"]
    calibrated = [[row["probabilities"][name] for name in NAMES] for row in rows]
    true = [[name in one.label for name in NAMES] for one in examples]
    assert list(thresholds.values()) == best_thresholds(calibrated, true).tolist()


def test_fixed_thresholds_stay_at_one_half(several: Any, tmp_path: Path) -> None:
    _, logits, examples = several
    table = [";".join(one.label) or "a" for one in examples]
    task = task_of(tmp_path, table, kind="multi_label", separator=";", thresholds="fixed")
    numbers = decision.tune(task, logits, examples, [])
    assert list(numbers) == ["temperature"]
    rows = decision.answers(task, logits, examples, [], numbers)
    assert [len(row["prediction"]) for row in rows] == (logits > 0).sum(axis=1).tolist()
