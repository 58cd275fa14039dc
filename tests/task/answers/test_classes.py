"""Several classes read off logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit

from finetune.task.answers.classes import multi_label_answers, sigmoid
from finetune.task.interface import Example

NAMES = ("a", "b", "c")


def test_probability_is_that_of_scipy_at_any_size() -> None:
    logits = np.array([-1e30, -800.0, -3.0, 0.0, 0.5, 40.0, 1e30], dtype=np.float32)
    assert sigmoid(logits) == pytest.approx(expit(logits.astype(float)), abs=1e-15)


def test_classes_above_one_half_hold_in_the_order_of_the_names() -> None:
    outputs = np.array([[2.0, -1.0, 0.1], [-1.0, -1.0, -1.0]], dtype=np.float32)
    examples = [Example(7, ("x",), ("c", "a")), Example("k", ("y",))]
    first, second = multi_label_answers(outputs, examples, NAMES)
    assert first == {
        "id": 7,
        "prediction": ["a", "c"],
        "probabilities": {"a": 0.880797, "b": 0.268941, "c": 0.524979},
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
