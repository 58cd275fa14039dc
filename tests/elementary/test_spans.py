"""Answers in passages: the best spans against a search of all, and a made world that is learnt."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from finetune import find_task
from finetune.elementary.bags import Training
from finetune.elementary.baselines import applicable, fit
from finetune.elementary.spans import LONGEST, _best, _passage, fit_spans
from finetune.errors import DataError
from finetune.task.interface import Example, GoldAnswer
from tests.made.texts import write_lines

NAMES = "Ada Bert Clara Dora Emil Frida Gustav Hanna".split()
TOWNS = "Ulm Bonn Kiel Jena Trier Hamm Celle Gotha".split()


def questions(seed: int, count: int) -> list[dict[str, object]]:
    """Who lives where and since when; each third question asks for a town that is not there."""
    draw = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        names, towns = draw.permutation(NAMES)[:3], draw.permutation(TOWNS)
        years = draw.integers(1900, 2000, size=3)
        context = " ".join(
            f"In {year} the young {name} moved to {town} ."
            for name, town, year in zip(names, towns, years, strict=False)
        )
        asked = int(draw.integers(3))
        who = number % 2
        answer = str(names[asked] if who else years[asked])
        question = f"{'Who' if who else 'When'} moved to {towns[asked]} ?"
        rows.append({"question": question, "context": context, "answer": answer})
    return rows


def examples(seed: int, count: int) -> list[Example]:
    return [
        Example(
            number,
            (str(row["question"]), str(row["context"])),
            (GoldAnswer(str(row["answer"]), str(row["context"]).index(str(row["answer"]))),),
        )
        for number, row in enumerate(questions(seed, count))
    ]


def test_best_spans_are_those_of_a_search_of_all() -> None:
    draw = np.random.default_rng(0)
    first, last, usual = draw.normal(size=30), draw.normal(size=30), draw.normal(size=LONGEST)
    scores = {
        (start, end): first[start] + last[end] + usual[end - start]
        for start, end in product(range(30), repeat=2)
        if 0 <= end - start < LONGEST
    }
    expected = sorted(scores, key=lambda span: -scores[span])[:20]
    found = _best(first, last, usual)
    assert [(int(start), int(end)) for start, end, _ in found] == expected
    assert found[:, 2] == pytest.approx([scores[span] for span in expected])


def test_words_of_a_passage_are_where_the_text_has_them() -> None:
    text = "In 1998, Ada (24) left. Bert stayed."
    passage = _passage(text, lambda word: 1.0)
    tokens = [text[start:end] for start, end in passage.offsets]
    assert tokens == ["In", "1998", ",", "Ada", "(", "24", ")", "left", ".", "Bert", "stayed", "."]
    assert passage.sentences.tolist() == [0] * 9 + [1] * 3


def test_a_made_world_is_learnt(tmp_path: Path) -> None:
    files = {
        split: write_lines(tmp_path / f"{split}.jsonl", questions(seed, count))
        for split, seed, count in (("train", 1, 200), ("validation", 2, 60))
    }
    task = find_task("answer", **files)  # type: ignore[arg-type]
    train, rest = task.examples("train"), task.examples("validation")
    assert applicable(task, train) == ["candidate_spans"]
    rows = fit("candidate_spans", task, train)(rest)
    assert task.score(rows)["exact_match"] > 0.9
    for example, row in zip(rest, rows, strict=True):
        assert row["prediction"] == example.texts[1][row["start"] : row["end"]]
    assert fit("candidate_spans", task, train)(rest) == rows


def test_a_question_about_what_is_not_there_may_have_no_answer(tmp_path: Path) -> None:
    def some(seed: int, count: int) -> list[dict[str, object]]:
        rows = questions(seed, count)
        for row in rows[::3]:
            row |= {"question": "Why does it rain on the sea ?", "answer": ""}
        return rows

    files = {
        split: write_lines(tmp_path / f"{split}.jsonl", some(seed, count))
        for split, seed, count in (("train", 1, 200), ("validation", 2, 60))
    }
    task = find_task("answer", **files)  # type: ignore[arg-type]
    rows = fit("candidate_spans", task, task.examples("train"))(task.examples("validation"))
    assert [row["prediction"] == "" for row in rows] == [n % 3 == 0 for n in range(60)]


def test_an_empty_passage_has_no_answer() -> None:
    outputs, windows = fit_spans(Training(examples(1, 20)))([Example(0, ("Who ?", ""))])
    assert np.isneginf(outputs[0, 1:, 2]).all()
    assert windows[0].context == (0, 0)


def test_questions_without_an_answer_teach_nothing() -> None:
    with pytest.raises(DataError, match="expected questions with an answer in their passage"):
        fit_spans(Training([Example(0, ("Who ?", "A cat."), ())]))
