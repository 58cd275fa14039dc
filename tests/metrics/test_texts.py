from __future__ import annotations

import random

import pytest

from finetune.metrics.semantics import meaning
from finetune.metrics.texts import TEXT_METRICS, text_scores, words_of

RIGHT = ["the cat sat on the mat", "a dog barks", "it's late, isn't it?"]


def edits(written: list[str], right: list[str]) -> int:
    """Levenshtein's distance, as its definition has it."""
    row = list(range(len(right) + 1))
    for number, one in enumerate(written, start=1):
        before, row[0] = row[0], number
        for place, other in enumerate(right, start=1):
            cost = min(row[place] + 1, row[place - 1] + 1, before + (one != other))
            before, row[place] = row[place], cost
    return row[-1]


def test_error_rates_are_edits_over_what_is_right() -> None:
    rng = random.Random(0)
    pairs = [
        [" ".join(rng.choices("abcd", k=rng.randint(1, 9))) for _ in range(2)] for _ in range(30)
    ]
    written, right = [one for one, _ in pairs], [one for _, one in pairs]
    scores = text_scores(written, right, ["word_error_rate", "character_error_rate"])
    for name, split in (("word_error_rate", str.split), ("character_error_rate", list)):
        wrong = sum(edits(list(split(a)), list(split(b))) for a, b in pairs)
        assert scores[name] == pytest.approx(wrong / sum(len(split(b)) for b in right), abs=1e-6)


def test_right_texts_score_best_whatever_their_case_and_spaces() -> None:
    written = [text.upper().replace(",", " , ") for text in RIGHT]
    scores = text_scores(written, RIGHT)
    best = {name: 0.0 if meaning(name).better == "lower" else 1.0 for name in scores}
    assert scores == pytest.approx(best, abs=1e-6)
    assert list(scores) == [*list(TEXT_METRICS)[:-1], "rouge1", "rouge2", "rougeL"]


def test_empty_texts_score_worst() -> None:
    scores = text_scores([""] * 3, RIGHT)
    assert scores["word_error_rate"] == 1.0
    assert {scores[name] for name in ("exact_match", "bleu", "chrf", "rougeL")} == {0.0}


def test_rouge_is_the_f1_of_shared_words() -> None:
    scores = text_scores(["the cat sat"], ["the cat"], ["rouge"])
    assert scores == pytest.approx({"rouge1": 0.8, "rouge2": 2 / 3, "rougeL": 0.8})


def test_punctuation_marks_are_words() -> None:
    assert words_of("It's  LATE, no?") == "it ' s late , no ?"


def test_a_lower_error_rate_is_better_and_shown_in_percent() -> None:
    for name in ("word_error_rate", "val/phoneme_error_rate"):
        assert (meaning(name).better, meaning(name).percent) == ("lower", True)
