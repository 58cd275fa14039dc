"""Exact match and token F1 against independent readings: torchmetrics' SQuAD for 1.1, and for 2.0
a slow one, question by question, of the official definition."""

from __future__ import annotations

import collections
import json
import re
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.text import squad

from finetune.metrics import span_scores
from tests.made.official import official_text

Rows = list[dict[str, Any]]

SMALL = [
    ("Denver Broncos", ["Denver Broncos", "The Denver Broncos", "Broncos"]),
    ("the gold-themed", ["gold", "golden", "gold themed"]),
    ("February 7, 2016 and more", ["February 7, 2016", "February 7", "7 February"]),
    ("24–10", ["24-10", "24–10."]),
    ("nothing right", ["Levi's Stadium"]),
    ("new new york york", ["New York", "York New York"]),
    ("", ["Santa Clara"]),
]


def corrupted(text: str, rng: np.random.Generator) -> str:
    """What a model might answer instead: the text itself, a part, more, or something else."""
    words = text.split()
    kind = rng.integers(6)
    if kind == 0:
        return " ".join(words[: rng.integers(len(words) + 1)])
    if kind == 1:
        return f"the {text.upper()}, of {words[0]}"
    if kind == 2:
        return " ".join(rng.permutation(words))
    if kind == 3:
        return f"{text[1:]}!"
    return text if kind == 4 else "forty-two"


def real_rows(name: str, seed: int) -> Rows:
    """Rows with corrupted gold answers; unanswerable questions are answered at times."""
    rng = np.random.default_rng(seed)
    return [
        {
            "id": question["id"],
            "prediction": corrupted(question["answers"][0]["text"], rng)
            if question["answers"]
            else ("some answer" if rng.random() < 0.5 else ""),
            "null_odds": float(rng.normal() + (0.0 if question["answers"] else 0.7)),
            "answers": question["answers"],
        }
        for article in json.loads(official_text(f"squad/{name}"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def by_torchmetrics(rows: Rows) -> dict[str, float]:
    said = [{"id": row["id"], "prediction_text": row["prediction"]} for row in rows]
    right = [
        {
            "id": row["id"],
            "answers": {
                "text": [answer["text"] for answer in row["answers"]],
                "answer_start": [0] * len(row["answers"]),
            },
        }
        for row in rows
    ]
    return {name: float(value) / 100 for name, value in squad(said, right).items()}


class TestVersion1:
    def test_scores_are_those_of_torchmetrics(self) -> None:
        rows = [
            {"id": str(number), "prediction": text, "answers": [{"text": gold} for gold in golds]}
            for number, (text, golds) in enumerate(SMALL)
        ]
        ours = span_scores(rows, "1.1")
        assert 0 < ours["exact_match"] < ours["f1"] < 1
        assert ours == pytest.approx(by_torchmetrics(rows), abs=1e-7)  # theirs is float32 percent

    @pytest.mark.data
    def test_scores_of_the_real_file_are_those_of_torchmetrics(self) -> None:
        rows = real_rows("dev-v1.1.json", seed=1)
        # torchmetrics gives 1 where both normalise to nothing, the official script 0.
        rows = [row for row in rows if not any(nothing(a["text"]) for a in row["answers"])]
        assert len(rows) > 10_500
        assert span_scores(rows, "1.1") == pytest.approx(by_torchmetrics(rows), abs=1e-5)


# The definition of 2.0 in as few steps at a time as it can be said in; none of our code is used.


def plain(text: str) -> str:
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    for article in ("a", "an", "the"):
        kept = re.sub(rf"\b{article}\b", " ", kept)
    return " ".join(word for word in kept.split())


def nothing(text: str) -> bool:
    return plain(text) == ""


def slow_exact(said: str, right: str) -> float:
    return 1.0 if plain(said) == plain(right) else 0.0


def slow_f1(said: str, right: str) -> float:
    tokens, wanted = plain(said).split(), plain(right).split()
    if not tokens or not wanted:
        return 1.0 if tokens == wanted else 0.0
    have, want = collections.Counter(tokens), collections.Counter(wanted)
    shared = sum(min(have[token], want[token]) for token in have)
    if shared == 0:
        return 0.0
    precision, recall = shared / len(tokens), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def slow_best(rows: Rows, scores: list[float]) -> tuple[float, float]:
    """Answer one question more at a time, the surest first; keep the first best."""
    total = float(sum(1 for row in rows if not row["answers"]))
    best, threshold = total, 0.0
    for number in sorted(range(len(rows)), key=lambda number: rows[number]["null_odds"]):
        row = rows[number]
        if row["answers"]:
            total += scores[number]
        elif row["prediction"]:
            total -= 1
        if total > best:
            best, threshold = total, row["null_odds"]
    return best / len(rows), threshold


def slow_scores(rows: Rows) -> dict[str, float]:
    every: dict[str, float] = {}
    for name, measure in (("exact_match", slow_exact), ("f1", slow_f1)):
        scores = []
        for row in rows:
            golds = [answer["text"] for answer in row["answers"] if not nothing(answer["text"])]
            scores.append(max(measure(row["prediction"], gold) for gold in golds or [""]))
        every[name] = sum(scores) / len(scores)
        for part, wanted in (("has_answer", True), ("no_answer", False)):
            chosen = [
                s for s, row in zip(scores, rows, strict=True) if bool(row["answers"]) is wanted
            ]
            if chosen:
                every[f"{part}_{name}"] = sum(chosen) / len(chosen)
        every[f"best_{name}"], every[f"best_{name}_threshold"] = slow_best(rows, scores)
    return every


# Words, articles, and texts that normalise to nothing.
texts = st.lists(
    st.sampled_from(["the", "An", "cat", "Dog.", "dog", ".", "--", "naïve", "U.S.", "a"]),
    max_size=4,
).map(" ".join)
rows_of_2 = st.lists(
    st.fixed_dictionaries(
        {
            "prediction": texts,
            "null_odds": st.integers(-3, 3).map(lambda number: number / 2),  # many equal ones
            "answers": st.lists(st.fixed_dictionaries({"text": texts}), max_size=3),
        }
    ),
    min_size=1,
    max_size=12,
)


class TestVersion2:
    @given(rows_of_2)
    def test_scores_are_those_of_a_slow_reading(self, rows: Rows) -> None:
        assert span_scores(rows, "2.0") == pytest.approx(slow_scores(rows), abs=1e-12)

    @pytest.mark.data
    @pytest.mark.parametrize("seed", [1, 2])
    def test_scores_of_the_real_file_are_those_of_a_slow_reading(self, seed: int) -> None:
        rows = real_rows("dev-v2.0.cs224n.json", seed)
        assert len(rows) == 6078
        assert span_scores(rows, "2.0") == pytest.approx(slow_scores(rows), abs=1e-12)
