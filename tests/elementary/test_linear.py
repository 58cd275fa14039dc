"""Regressions: which one the labels ask for, and what is done about classes that are missing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from finetune.elementary import linear
from finetune.errors import DataError

FEATURES = np.random.default_rng(0).normal(size=(60, 3))


def test_logits_of_three_classes_are_in_the_order_of_the_names() -> None:
    labels = ["abc"[number] for number in FEATURES.argmax(1)]
    logits = linear.fit(FEATURES, labels, ("c", "a", "b"), inverse=1)(FEATURES)
    model = LogisticRegression().fit(FEATURES, labels)
    expected = model.decision_function(FEATURES)[:, [2, 0, 1]]
    assert logits == pytest.approx(expected, abs=0.05)


def test_class_without_training_examples_is_never_the_answer() -> None:
    labels = ["ab"[number] for number in (FEATURES[:, 0] > 0).astype(int)]
    logits = linear.fit(FEATURES, labels, ("a", "never", "b"), inverse=1)(FEATURES)
    assert (logits[:, 1] == -np.inf).all()
    assert (np.array(["a", "never", "b"])[logits.argmax(1)] == labels).mean() > 0.9


def test_several_classes_are_decided_one_by_one() -> None:
    labels = [
        ("always", *(name for name, value in zip("ab", row, strict=False) if value > 0))
        for row in FEATURES
    ]
    logits = linear.fit(FEATURES, labels, ("a", "b", "always", "never"), inverse=10)(FEATURES)
    assert ((logits[:, :2] > 0) == (FEATURES[:, :2] > 0)).mean() > 0.9
    assert (logits[:, 2] > 0).all()
    assert (logits[:, 3] < 0).all()


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="expected at least two classes to train on, got 'a' alone"):
        linear.fit(FEATURES, ["a"] * 60, ("a", "b"), inverse=1)
