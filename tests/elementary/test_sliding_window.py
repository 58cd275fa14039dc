"""The sliding window against the sum that its definition writes out."""

from __future__ import annotations

import math

import pytest

from finetune.elementary.sliding_window import LENGTHS, sliding_window
from finetune.task.interface import Example

PASSAGE = "The cat sat on the mat. A dog ran far away, and the bird flew to the old tree."
WORDS = "the cat sat on the mat a dog ran far away and the bird flew to the old tree".split()


def by_definition(wanted: set[str]) -> float:
    """Richardson et al., 2013, algorithm 1, once for each length."""

    def window(start: int, length: int) -> float:
        there = [word for word in WORDS[start : start + length] if word in wanted]
        return sum(math.log(1 + 1 / WORDS.count(word)) for word in there)

    return sum(max(window(start, length) for start in range(len(WORDS))) for length in LENGTHS)


def test_scores_are_those_of_the_definition() -> None:
    example = Example(0, (PASSAGE, "Who flew?", "the bird", "the dog"))
    expected = [
        by_definition({"who", "flew", "the", "bird"}),
        by_definition({*"who flew the dog".split()}),
    ]
    scores = sliding_window([example], ("A", "B"))
    assert scores[0] == pytest.approx(expected)
    assert scores[0, 0] > scores[0, 1]


def test_scores_are_in_the_order_of_the_letters() -> None:
    example = Example(0, (PASSAGE, "Who flew?", "the bird", "the dog", "nobody"))
    scores = sliding_window([example], ("A", "B", "C"))
    assert sliding_window([example], ("C", "A", "B")) == pytest.approx(scores[:, [2, 0, 1]])


@pytest.mark.parametrize("passage", ["", "?", "cat"])
def test_passage_without_words_scores_nothing(passage: str) -> None:
    assert sliding_window([Example(0, (passage, "", "dog", "bird"))], ("A", "B")).tolist() == [
        [0, 0]
    ]
