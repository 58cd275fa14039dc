"""Regressions: which one the labels ask for, and what is done about classes that are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def test_parts_have_each_class_alike_and_are_the_same_each_time() -> None:
    labels = ["rare" if n % 10 == 0 else "often" for n in range(100)]
    parts = list(linear.folds(labels))
    assert len(parts) == linear.FOLDS
    assert sorted(np.concatenate([held for _, held in parts]).tolist()) == list(range(100))
    for rest, held in parts:
        assert not set(rest.tolist()) & set(held.tolist())
        assert [labels[row] for row in held].count("rare") == 2
    assert all((a[1] == b[1]).all() for a, b in zip(parts, linear.folds(labels), strict=True))


def test_few_parts_of_a_large_set_are_held_out() -> None:
    assert len(list(linear.folds([0.5 * n for n in range(10_000)]))) == 1
    (rest, held), *_ = linear.folds([float(n) for n in range(100_000)])
    assert (len(rest), len(held)) == (16_000, 4_000)
    assert held.max() > 99_000


def test_middle_penalty_is_taken_where_nothing_can_be_held_out() -> None:
    def never(*_: object) -> Any:
        raise AssertionError

    for labels in (["a", "b"], ["a"] * 9):
        assert linear.choose_inverse((1.0, 3.0, 10.0), labels, never, never) == 3


def test_smallest_of_equally_good_inverse_penalties_is_chosen() -> None:
    labels = ["ab"[n % 2] for n in range(20)]
    values = {1.0: 0.5, 3.0: 0.7, 10.0: 0.7}

    def fit_rows(rows: linear.Rows, inverse: float) -> Callable[[linear.Rows], Any]:
        return lambda held: np.full(len(held), values[inverse])

    chosen = linear.choose_inverse(
        tuple(values), labels, fit_rows, lambda rows, outputs: float(outputs.mean())
    )
    assert chosen == 3
