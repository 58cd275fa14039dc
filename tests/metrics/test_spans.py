from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.metrics import (
    best_threshold,
    exact_match,
    load_spans,
    normalize_answer,
    span_scores,
    token_f1,
    tuned_threshold,
)

# Words, articles, punctuation and texts that normalise to nothing.
texts = st.lists(
    st.sampled_from(["the", "An", "cat", "Dog.", "dog", ".", "--", "naïve", "U.S.", "a"]),
    max_size=4,
).map(" ".join)
odds = st.integers(-3, 3).map(lambda number: number / 2)  # many equal ones


@st.composite
def rows_of_2(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows as a model without a threshold gives them: the prediction is its best passage."""
    return draw(
        st.lists(
            st.builds(
                lambda text, golds, odd: {
                    "prediction": text,
                    "null_odds": odd,
                    "answers": [{"text": gold} for gold in golds],
                },
                texts,
                st.lists(texts, max_size=3),
                odds,
            ),
            min_size=1,
            max_size=12,
        )
    )


def row(prediction: str, *golds: str, **more: Any) -> dict[str, Any]:
    return {"prediction": prediction, "answers": [{"text": gold} for gold in golds], **more}


class TestNormalise:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("The  Cat", "cat"),
            ("a cat, an owl and the dog", "cat owl and dog"),
            ("theatre and an-other", "theatre and another"),
            ("U.S.", "us"),
            ("24–10", "24–10"),  # the dash is not ASCII: it stays
            ("$5.40", "540"),
            ("line\nbreak\tand\u00a0space", "line break and space"),
            ("ÉCOLE", "école"),
            ("The", ""),
            ("...", ""),
            ("", ""),
            ("the_a", "thea"),  # punctuation goes before the articles
        ],
    )
    def test_text_is_normalised_by_the_official_rule(self, text: str, expected: str) -> None:
        assert normalize_answer(text) == expected

    @given(st.text())
    def test_normalised_text_is_trimmed_and_has_single_spaces(self, text: str) -> None:
        once = normalize_answer(text)
        assert once == " ".join(once.split())


class TestTexts:
    def test_articles_case_and_punctuation_do_not_count(self) -> None:
        assert exact_match("The Broncos!", "broncos") == 1.0
        assert exact_match("Denver Broncos", "broncos") == 0.0

    def test_f1_counts_shared_tokens_as_often_as_both_have_them(self) -> None:
        # 2 of 3 said, 2 of 4 right: precision 2/3, recall 1/2.
        assert token_f1("new new york", "new york new york", "1.1") == pytest.approx(6 / 7)
        assert token_f1("x new york", "new york y z", "1.1") == pytest.approx(4 / 7)

    @pytest.mark.parametrize(
        ("prediction", "gold", "first", "second"),
        [
            (".", ".", 0.0, 1.0),
            ("the", "", 0.0, 1.0),
            ("", "", 0.0, 1.0),
            ("cat", "", 0.0, 0.0),
            ("", "cat", 0.0, 0.0),
            ("cat", "cat", 1.0, 1.0),
        ],
    )
    def test_versions_differ_where_a_text_normalises_to_nothing(
        self, prediction: str, gold: str, first: float, second: float
    ) -> None:
        assert token_f1(prediction, gold, "1.1") == first
        assert token_f1(prediction, gold, "2.0") == second

    @given(texts, texts, st.sampled_from(["1.1", "2.0"]))
    def test_f1_is_symmetric_and_at_least_one_where_texts_match(
        self, first: str, second: str, version: str
    ) -> None:
        value = token_f1(first, second, version)
        assert value == token_f1(second, first, version)
        assert 0.0 <= value <= 1.0
        if exact_match(first, second) and normalize_answer(first):
            assert value == 1.0

    def test_unknown_version_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"expected the version 1\.1 or 2\.0, got '3'"):
            token_f1("a", "b", "3")
        with pytest.raises(ValueError, match=r"expected the version 1\.1 or 2\.0, got 'v1'"):
            span_scores([row("a", "b")], "v1")


class TestScores:
    def test_best_of_several_golds_counts(self) -> None:
        rows = [row("New York", "York", "new york city", "the New York"), row("x", "y")]
        assert span_scores(rows, "1.1") == {"exact_match": 0.5, "f1": 0.5}

    def test_gold_that_normalises_to_nothing_is_dropped_in_2(self) -> None:
        rows = [row("", ".", "cat", null_odds=0.0)]
        assert span_scores(rows, "2.0")["exact_match"] == 0.0
        rows = [row("", ".", null_odds=0.0)]  # no gold is left: "" is right, and counts as HasAns
        assert span_scores(rows, "2.0")["has_answer_exact_match"] == 1.0

    def test_2_0_tells_answerable_from_unanswerable(self) -> None:
        rows = [
            row("cat", "cat", null_odds=-2.0),
            row("", "two dogs", null_odds=1.0, nbest=[{"text": ""}, {"text": "dogs"}]),
            row("", null_odds=3.0, nbest=[{"text": ""}, {"text": "a mouse"}]),
            row("owl", null_odds=-1.0),
        ]
        assert span_scores(rows, "2.0") == {
            "exact_match": 0.5,
            "f1": 0.5,
            "has_answer_exact_match": 0.5,
            "has_answer_f1": 0.5,
            "no_answer_exact_match": 0.5,
            "no_answer_f1": 0.5,
            "best_exact_match": 0.75,  # only the first is answered
            "best_exact_match_threshold": -2.0,
            "best_f1": 0.75,
            "best_f1_threshold": -2.0,
        }

    def test_headline_comes_first(self) -> None:
        assert next(iter(span_scores([row("a b", "b")], "2.0"))) == "exact_match"

    @pytest.mark.parametrize("answerable", [True, False])
    def test_part_without_questions_has_no_score(self, answerable: bool) -> None:
        golds = ["cat"] if answerable else []
        scores = span_scores([row("cat", *golds, null_odds=0.0)], "2.0")
        assert ("has_answer_f1" in scores) == answerable
        assert ("no_answer_f1" in scores) != answerable

    def test_no_rows_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="expected at least one row to score, got none"):
            span_scores([], "1.1")

    @given(rows_of_2())
    def test_best_scores_are_within_one_and_no_worse_than_answering_none(
        self, rows: list[dict[str, Any]]
    ) -> None:
        scores = span_scores(rows, "2.0")
        unanswerable = sum(not row["answers"] for row in rows) / len(rows)
        assert unanswerable <= scores["best_exact_match"] <= scores["best_f1"] <= 1.0

    def test_ten_thousand_rows_take_about_a_second(self) -> None:
        rng = np.random.default_rng(0)
        words = np.array([f"word{number}" for number in range(500)])

        def text() -> str:
            return " ".join(rng.choice(words, rng.integers(1, 6)))

        rows = [
            row(text(), text(), text(), text(), null_odds=float(rng.normal()))
            for _ in range(10_570)
        ]
        before = time.process_time()
        span_scores(rows, "2.0")
        assert time.process_time() - before < 3.0  # measured: 0.3 s


class TestThreshold:
    def test_first_of_equally_good_steps_is_taken(self) -> None:
        best = best_threshold([1.0, 1.0, 1.0], [0.1, 0.2, 0.3], [True, False, True], [True] * 3)
        assert best == (2 / 3, 0.1)

    def test_none_answered_is_threshold_0(self) -> None:
        assert best_threshold([0.0, 0.0], [-5.0, -4.0], [False, True], [True, True]) == (0.5, 0.0)

    def test_empty_text_for_an_unanswerable_question_costs_nothing(self) -> None:
        best = best_threshold([0.0, 1.0], [1.0, 2.0], [False, True], [False, True])
        assert best == (1.0, 2.0)

    def test_equal_odds_are_steps_of_their_own_as_officially(self) -> None:
        best = best_threshold([1.0, 0.0], [1.0, 1.0], [True, False], [True, True])
        assert best == (1.0, 1.0)  # no threshold can do that: the second has the same odds

    @given(rows_of_2())
    def test_tuned_threshold_gives_the_best_f1_that_any_gives(
        self, rows: list[dict[str, Any]]
    ) -> None:
        def f1_at(threshold: float) -> float:
            decided = [
                one | ({"prediction": ""} if one["null_odds"] > threshold else {}) for one in rows
            ]
            return span_scores(decided, "2.0")["f1"]

        every = [f1_at(threshold) for threshold in [-9.0, *(one["null_odds"] for one in rows)]]
        assert f1_at(tuned_threshold(rows)) == pytest.approx(max(every), abs=1e-12)

    def test_tuned_threshold_lies_between_two_questions(self) -> None:
        right, wrong = row("cat", "cat", null_odds=-3.0), row("dog", null_odds=2.0)
        assert tuned_threshold([right, wrong]) == -0.5
        assert tuned_threshold([right]) == -2.0
        assert tuned_threshold([wrong]) == 1.0

    def test_tuned_threshold_is_below_all_odds_where_none_is_to_be_answered(self) -> None:
        assert tuned_threshold([row("cat", null_odds=-3.0), row("dog", null_odds=2.0)]) < -3.0

    def test_tuned_threshold_is_finite_where_a_question_has_no_passage(self) -> None:
        rows = [row("cat", "cat", null_odds=float("inf")), row("", null_odds=float("inf"))]
        assert np.isfinite(tuned_threshold(rows))


class TestEvaluateMetric:
    def test_computes_without_a_download_what_the_function_gives(self) -> None:
        predictions = [
            {"id": "2", "prediction_text": "dogs", "no_answer_probability": 0.9},
            {"id": "1", "prediction_text": "cat", "no_answer_probability": 0.1},
        ]
        references = [
            {"id": "1", "answers": {"text": ["the cat", "a cat"], "answer_start": [0, 9]}},
            {"id": "2", "answers": {"text": [], "answer_start": []}},
        ]
        expected = span_scores(
            [row("cat", "the cat", "a cat", null_odds=0.1), row("dogs", null_odds=0.9)], "2.0"
        )
        metric = load_spans("2.0")
        assert metric.compute(predictions=predictions, references=references) == expected

    def test_1_1_needs_no_probability_and_takes_batches(self) -> None:
        metric = load_spans()
        for number, text in enumerate(["cat", "two dogs"]):
            metric.add_batch(
                predictions=[{"id": str(number), "prediction_text": text}],
                references=[{"id": str(number), "answers": {"text": ["cat"], "answer_start": [0]}}],
            )
        assert metric.compute() == {"exact_match": 0.5, "f1": 0.5}

    def test_a_version_that_is_not_known_is_an_error_at_once(self) -> None:
        with pytest.raises(ValueError, match="expected the version 1.1 or 2.0, got '2.1'"):
            load_spans("2.1")

    def test_reference_without_a_prediction_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="for every reference, got none for 2"):
            load_spans().compute(
                predictions=[{"id": "1", "prediction_text": "x"}],
                references=[{"id": "2", "answers": {"text": ["x"], "answer_start": [0]}}],
            )
