"""Classes and numbers read off logits, with the digits that scores need."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from finetune.task.answers.classes import (
    class_answers,
    multi_label_answers,
    number_answers,
    over_windows,
    rounded,
    sigmoid,
    softmax,
)
from finetune.task.interface import Example
from finetune.text.features.pairs import Features
from tasks.own.label_kinds import CLASSES, MULTI_LABEL
from tasks.own.text_scores import scores_of

NAMES = ("a", "b", "c")


def test_probability_is_that_of_scipy_at_any_size() -> None:
    logits = np.array([-1e30, -800.0, -3.0, 0.0, 0.5, 40.0, 1e30], dtype=np.float32)
    assert sigmoid(logits) == pytest.approx(expit(logits.astype(float)), rel=1e-14, abs=0)


def test_classes_above_one_half_hold_in_the_order_of_the_names() -> None:
    outputs = np.array([[2.0, -1.0, 0.1], [-1.0, -1.0, -1.0]], dtype=np.float32)
    examples = [Example(7, ("x",), ("c", "a")), Example("k", ("y",))]
    first, second = multi_label_answers(outputs, examples, NAMES)
    assert first == {
        "id": 7,
        "prediction": ["a", "c"],
        "probabilities": {"a": 0.880797078, "b": 0.268941421, "c": 0.524979188},
        "label": ["c", "a"],
    }
    assert second["prediction"] == []
    assert "label" not in second


def test_logit_of_zero_holds_not() -> None:
    (answer,) = multi_label_answers(np.zeros((1, 3)), [Example(0, ("x",), ())], NAMES)
    assert answer["prediction"] == answer["label"] == []


def test_answers_come_back_from_a_file_as_they_were() -> None:
    answers = multi_label_answers(np.ones((1, 3)), [Example(0, ("x",), ("a",))], NAMES)
    assert json.loads(json.dumps(answers)) == answers


def test_auc_of_a_rare_class_is_that_of_the_logits() -> None:
    rng = np.random.default_rng(0)
    is_rare = rng.random(4000) < 0.01
    margins = (rng.normal(size=4000) * 3 - 16 + 4 * is_rare).astype(np.float32)
    outputs = np.stack([-margins / 2, margins / 2], axis=1)
    names = ("usual", "rare")
    examples = [Example(n, ("x",), names[int(rare)]) for n, rare in enumerate(is_rare)]
    expected = roc_auc_score(is_rare, margins)
    answers = class_answers(outputs, examples, names)
    assert len({one["probabilities"]["rare"] < 5e-7 for one in answers}) == 2  # 6 places: ties
    assert scores_of(CLASSES, answers, names)["auc"] == pytest.approx(expected, abs=1e-9)
    written = json.loads(json.dumps(answers))
    assert scores_of(CLASSES, written, names)["auc"] == pytest.approx(expected, abs=1e-9)
    sets = [Example(n, ("x",), ("rare",) if rare else ()) for n, rare in enumerate(is_rare)]
    answers = multi_label_answers(margins[:, None], sets, ("rare",))
    assert scores_of(MULTI_LABEL, answers, ("rare",))["auc"] == pytest.approx(expected, abs=1e-9)


def test_rounding_keeps_nine_digits_of_the_smaller_side_and_the_order() -> None:
    values = softmax(np.stack([np.linspace(-45, 45, 20_001), np.zeros(20_001)], axis=1))
    for column in (values[:, 0], values[::-1, 1]):
        assert rounded(column) == pytest.approx(column, rel=1e-8, abs=1e-21)
        assert 1 - rounded(column) == pytest.approx(1 - column, rel=1e-8, abs=2e-16)
        assert (np.diff(rounded(column)) >= 0).all()
    assert rounded(np.array([0.0, 0.1, 0.5, 0.9, 1.0])).tolist() == [0.0, 0.1, 0.5, 0.9, 1.0]
    assert rounded(np.array([1 / 3, 2 / 3])).tolist() == [0.333333333, 0.666666667]
    assert rounded(np.array([1 - 1e-10 / 3])).tolist() == [1 - 3.33333333e-11]
    digits = [len(f"{value}") for value in rounded(np.linspace(0.01, 0.99, 9999)).tolist()]
    assert max(digits) <= 12  # such as 0.0123456789


def test_numbers_of_any_size_keep_their_digits() -> None:
    outputs = np.array([1.2345678e-6, -9.8765e9, 0.3, 7.0], dtype=np.float32)
    answers = number_answers(outputs, [Example(n, ("x",)) for n in range(4)])
    written = np.array([one["prediction"] for one in answers]).astype(np.float32)
    assert (written == outputs).all()
    assert number_answers(outputs, [Example(0, ("x",))] * 4, 0, 5)[3]["prediction"] == 5.0


def test_windows_are_averaged_in_probability() -> None:
    logits = np.array([[2.0, -1.0], [0.5, 0.0], [-3.0, 1.0]], dtype=np.float32)
    windows = [Features([1], [0], example=number) for number in (0, 1, 1)]
    merged = over_windows(logits, windows, "classification")
    each = softmax(logits)
    assert softmax(merged) == pytest.approx(np.array([each[0], each[1:].mean(axis=0)]), rel=1e-12)
    both = sigmoid(over_windows(logits, windows, "multi_label"))
    holds = sigmoid(logits)
    assert both == pytest.approx(np.array([holds[0], holds[1:].mean(axis=0)]), rel=1e-12)
    numbers = over_windows(logits[:, 0], windows, "regression")
    assert numbers == pytest.approx(np.array([2.0, -1.25]))


def test_options_are_averaged_over_windows_and_those_that_lack_stay_impossible() -> None:
    lowest = np.finfo(np.float32).min
    logits = np.array([[1.0, 2.0, lowest], [3.0, 0.0, lowest], [0.0, 1.0, 2.0]], dtype=np.float32)
    windows = [Features([1], [0], example=number) for number in (0,) * 6 + (1,) * 3]
    merged = softmax(over_windows(logits, windows, "choice"))
    assert merged[0] == pytest.approx(softmax(logits[:2]).mean(axis=0), rel=1e-12)
    assert merged[1] == pytest.approx(softmax(logits[2:])[0], rel=1e-12)


def test_outputs_of_examples_with_one_window_each_stay_as_they_are() -> None:
    logits = np.ones((2, 3), dtype=np.float32)
    windows = [Features([1], [0], example=number) for number in (0, 1)]
    assert over_windows(logits, windows, "classification") is logits
    assert over_windows(logits, [], "classification") is logits
