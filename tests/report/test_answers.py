"""Answers judged: class scores as scikit-learn gives them, how wrong a row is, the hardest ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finetune.comparison.answers import (
    class_scores,
    confidences,
    confusion,
    form_of,
    is_right,
    span_f1,
    wrongness,
)
from finetune.report.answers import judged
from finetune.report.hardest import hardest
from tests.made.runs import class_rows

SPAN = {"answers": [{"text": "the cat", "start": 0}]}
CLASSES = {"prediction": "a", "probabilities": {"a": 0.7, "b": 0.3}, "label": "b"}
HELD = {"prediction": ["a"], "probabilities": {"a": 0.9, "b": 0.4}, "label": ["a", "b"]}


def test_class_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rows = class_rows(1, 0.7)
    matrix = confusion([rows])
    assert matrix is not None
    right, said = ([row[key] for row in rows] for key in ("label", "prediction"))
    expected = metrics.precision_recall_fscore_support(right, said, labels=matrix.classes)
    np.testing.assert_allclose(np.transpose(class_scores(matrix)), expected, atol=1e-12)
    counts = metrics.confusion_matrix(right, said, labels=matrix.classes)
    assert matrix.counts == counts.tolist()


def test_seeds_are_counted_together() -> None:
    one, other = class_rows(1, 0.7), class_rows(2, 0.7)
    matrix = confusion([one, other])
    assert matrix is not None
    assert (matrix.seeds, sum(map(sum, matrix.counts))) == (2, 80)
    assert matrix.classes == ["no", "yes"]


def test_a_class_that_is_never_answered_scores_zero() -> None:
    rows = [{"id": n, "prediction": "a", "label": label} for n, label in enumerate("ab")]
    matrix = confusion([rows])
    assert matrix is not None
    assert class_scores(matrix)[1] == (0.0, 0.0, 0.0, 1)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"id": 0, "prediction": "a"}],
        [{"id": 0, "prediction": 1.5, "label": 2.0}],
        [{"id": n, "prediction": f"{n}", "label": f"{n}"} for n in range(21)],
    ],
)
def test_what_is_no_few_classes_has_no_matrix(rows: list[dict[str, Any]]) -> None:
    assert confusion([rows]) is None


@pytest.mark.parametrize(
    ("row", "form", "wrong"),
    [
        (CLASSES, "classes", 0.7),
        ({**CLASSES, "label": "a"}, "classes", 0.3),
        ({"prediction": "a", "label": "b"}, "classes", 1.0),
        (HELD, "sets of classes", (0.1 + 0.6) / 2),
        ({"prediction": 2.5, "label": 4.0}, "number", 1.5),
        ({"prediction": "the cat", **SPAN}, "span", 0.0),
        ({"prediction": "dog", **SPAN}, "span", 1.0),
        (
            {"prediction": "dog", "nbest": [{"text": "dog", "probability": 0.4}], **SPAN},
            "span",
            0.4,
        ),
        ({"prediction": "", "answers": []}, "span", 0.0),
        ({"prediction": "dog", "answers": []}, "span", 1.0),
    ],
)
def test_how_wrong_an_answer_is(row: dict[str, Any], form: str, wrong: float) -> None:
    assert form_of(row) == form
    assert wrongness({"id": 0, **row}) == pytest.approx(wrong)


def test_what_has_no_known_form_is_none() -> None:
    assert form_of({"prediction": None}) is None


def test_an_answer_is_right_by_its_form() -> None:
    assert is_right({"prediction": "cat", **SPAN})  # articles do not count
    assert not is_right({"prediction": "a cat sat", **SPAN})
    assert not is_right(HELD)
    assert is_right({**HELD, "label": ["a"]})
    assert not is_right({"prediction": 1.0, "label": 1.0})
    assert span_f1({"prediction": "cat sat", **SPAN}) == pytest.approx(2 / 3)


def test_the_hardest_are_the_most_wrong_over_all_seeds() -> None:
    shares = [[0.9, 0.2, 0.4], [0.9, 0.3, 0.1]]
    seeds = [
        [
            {
                "id": n,
                "prediction": "ab"[p < 0.5],
                "probabilities": {"a": p, "b": 1 - p},
                "label": "a",
            }
            for n, p in enumerate(of)
        ]
        for of in shares
    ]
    found = hardest(seeds)
    assert [(one.id, round(one.wrong, 3)) for one in found] == [(1, 0.75), (2, 0.75)]
    assert [one.id for one in hardest(seeds, 1)] == [1]


def test_examples_that_a_seed_lacks_or_without_label_are_left_out() -> None:
    one = [{"id": n, "prediction": "a", "label": "b"} for n in range(3)]
    assert [found.id for found in judged([one, one[1:]])] == [1, 2]
    assert judged([[{"id": 0, "prediction": "a"}]]) == []
    assert judged([]) == []


class TestConfidences:
    def test_of_classes_are_the_probabilities_of_the_predicted_ones(self) -> None:
        rows = class_rows(1, 0.7)
        sure, right = confidences([rows, rows]) or ([], [])
        assert sure == 2 * [max(row["probabilities"].values()) for row in rows]
        assert right == 2 * [row["prediction"] == row["label"] for row in rows]

    def test_of_sets_are_those_of_each_class(self) -> None:
        assert confidences([[HELD]]) == ([0.9, 0.4], [True, True])

    def test_of_spans_are_the_probabilities_of_the_texts(self) -> None:
        nbest = [{"text": "the cat", "probability": 0.8}, {"text": "", "probability": 0.2}]
        row = {"id": 0, "prediction": "the cat", "nbest": nbest, **SPAN}
        assert confidences([[row, row | {"prediction": ""}]]) == ([0.8, 0.2], [True, False])

    def test_numbers_and_answers_without_labels_or_probabilities_have_none(self) -> None:
        assert confidences([[{"prediction": 1.0, "label": 2.0}]]) is None
        assert confidences([[{"prediction": "a", "probabilities": {"a": 1.0}}]]) is None
        assert confidences([[{"prediction": "a", "label": "a"}]]) is None
        assert confidences([]) is None
