"""Tables of answers: which there are, what is in them, hardest first, of a limited size."""

from __future__ import annotations

from typing import Any

from finetune.jobs.answer_tables import LONGEST_TEXT, answer_tables, hardest
from finetune.task.interface import Answer, Example
from finetune.tracking import Table


def tables(rows: list[Answer], *examples: Example, most: int = 10) -> dict[str, Table]:
    found = answer_tables("validation", rows, {one.id: one for one in examples}, most)
    return {table.name: table for table in found}


def cells(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def choice(number: int, share: float, label: str | None = "yes") -> Answer:
    row = {
        "id": number,
        "prediction": "yes" if share > 0.5 else "no",
        "probabilities": {"no": 1 - share, "yes": share},
    }
    return row | ({} if label is None else {"label": label})


def test_classes_have_answers_confusion_and_scores() -> None:
    rows = [choice(0, 0.75), choice(1, 0.25), choice(2, 0.75, "no"), choice(3, 0.0)]
    found = tables(rows, *(Example(number, (f"text {number}",), "yes") for number in range(4)))
    assert [*found] == ["predictions/validation", "confusion/validation", "classes/validation"]
    assert cells(found["predictions/validation"])[0] == {
        "id": "3",
        "text": "text 3",
        "gold": "yes",
        "prediction": "no",
        "right": False,
        "probability": 1.0,
        "p no": 1.0,
        "p yes": 0.0,
    }
    assert found["confusion/validation"].columns == ["Actual", "Predicted", "nPredictions"]
    counts = [["no", "no", 0], ["no", "yes", 1], ["yes", "no", 2], ["yes", "yes", 1]]
    assert found["confusion/validation"].rows == counts
    assert found["classes/validation"].rows == [
        ["no", 0.0, 0.0, 0.0, 1],
        ["yes", 1 / 2, 1 / 3, 2 / 5, 3],
    ]


def test_hardest_come_first_and_no_more_than_wanted_but_all_are_counted() -> None:
    rows = [choice(number, number / 10) for number in range(1, 10)]
    found = tables(rows, most=2)
    assert [line["id"] for line in cells(found["predictions/validation"])] == ["1", "2"]
    assert sum(row[2] for row in found["confusion/validation"].rows) == 9


def test_without_gold_the_least_sure_come_first() -> None:
    rows = [choice(0, 0.9, None), choice(1, 0.45, None), choice(2, 0.2, None)]
    assert [row["id"] for row in hardest(rows)] == [1, 2, 0]
    (table,) = tables(rows).values()
    assert "right" not in table.columns
    assert cells(table)[0]["gold"] is None


def test_a_pair_has_two_columns_and_a_long_text_is_cut() -> None:
    example = Example(0, ("a" * 2000, "b"), "yes", group="easy")
    (line,) = cells(tables([choice(0, 0.5)], example)["predictions/validation"])
    assert (line["group"], line["text 2"]) == ("easy", "b")
    assert line["text 1"] == "a" * (LONGEST_TEXT - 1) + "…"


def test_options_are_listed_one_by_one() -> None:
    row = {
        "id": "q",
        "prediction": "B",
        "probabilities": {"A": 0.25, "B": 0.75},
        "label": "A",
    }
    found = tables([row], Example("q", ("passage", "question?", "one", "two"), "A"))
    assert cells(found["options/validation"]) == [
        {
            "id": "q",
            "question": "question?",
            "option": option,
            "text": text,
            "probability": share,
            "right": option == "A",
            "chosen": option == "B",
        }
        for option, text, share in (("A", "one", 0.25), ("B", "two", 0.75))
    ]
    (line,) = cells(found["predictions/validation"])
    assert (line["passage"], line["question"]) == ("passage", "question?")
    assert line["options"] == "A: one\nB: two"


def span(number: int, said: str, answers: list[str]) -> Answer:
    nbest = [("cat", 0.6), ("", 0.3), ("the mat", 0.1)]
    return {
        "id": number,
        "prediction": said,
        "start": 4,
        "end": 7,
        "score": 1.0,
        "null_odds": -2.5,
        "nbest": [{"text": text, "start": 0, "end": 1, "probability": p} for text, p in nbest],
        "answers": [{"text": text, "start": 0} for text in answers],
    }


def test_spans_have_their_best_list_and_the_odds_of_none() -> None:
    rows = [span(0, "cat", ["the cat", "cat"]), span(1, "cat", [])]
    examples = [Example(number, ("who?", "the cat sat")) for number in range(2)]
    found = tables(rows, *examples)
    assert [*found] == ["predictions/validation", "nbest/validation"]
    worst, right = cells(found["predictions/validation"])
    assert (worst["id"], worst["right"], worst["gold"], worst["f1"]) == (
        "1",
        False,
        "(no answer)",
        0.0,
    )
    assert right == {
        "id": "0",
        "question": "who?",
        "context": "the cat sat",
        "gold": "the cat | cat",
        "prediction": "cat",
        "right": True,
        "f1": 1.0,
        "probability": 0.6,
        "null odds": -2.5,
    }
    first = cells(found["nbest/validation"])[:3]
    assert [(one["rank"], one["text"], one["right"]) for one in first] == [
        (1, "cat", False),
        (2, "(no answer)", True),
        (3, "the mat", False),
    ]
    assert {one["null odds"] for one in first} == {-2.5}


def test_numbers_have_an_error_and_several_classes_one_cell() -> None:
    (table,) = tables([{"id": 0, "prediction": 3.0, "label": 1.0}]).values()
    assert cells(table) == [{"id": "0", "gold": 1.0, "prediction": 3.0, "error": 2.0}]
    held = {"id": 0, "prediction": ["a", "b"], "probabilities": {"a": 0.9, "b": 0.6}, "label": []}
    (table,) = tables([held]).values()
    (line,) = cells(table)
    assert (line["prediction"], line["gold"], line["right"]) == ("a | b", "", False)
