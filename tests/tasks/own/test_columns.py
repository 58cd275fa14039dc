"""Which columns are taken: named ones, usual names, and the one that is left."""

from __future__ import annotations

import pytest

from finetune.errors import DataError
from tasks.own.columns import LABELS, PAIRS, TEXTS, Columns, find_columns, id_column

WHERE = "f.csv:1"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("text,label", Columns("text", None, "label")),
        ("id,Review,Stars", Columns("Review", None, "Stars")),
        ("label,sentence_1,sentence-2", Columns("sentence_1", "sentence-2", "label")),
        ("premise,hypothesis,gold_label", Columns("premise", "hypothesis", "gold_label")),
        ("Quality,#1 ID,#2 ID,#1 String,#2 String", Columns("#1 String", "#2 String", "Quality")),
        ("text,text_pair,label", Columns("text", "text_pair", "label")),
        ("text,label,label_text", Columns("text", None, "label")),  # the first name goes first
        ("text,title,label", Columns("text", None, "label")),
        ("words,label", Columns("words", None, "label")),  # the one that is left
        ("idx,text,verdict", Columns("text", None, "verdict")),
    ],
)
def test_columns_with_usual_names_are_found(header: str, expected: Columns) -> None:
    assert find_columns(header.split(","), where=WHERE) == expected


@pytest.mark.parametrize("name", TEXTS)
def test_every_usual_text_is_found(name: str) -> None:
    assert find_columns([name, "label"], where=WHERE) == Columns(name, None, "label")


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_usual_pair_is_found(pair: tuple[str, str]) -> None:
    assert find_columns([*pair, "label"], where=WHERE) == Columns(*pair, "label")


@pytest.mark.parametrize("name", LABELS)
def test_every_usual_label_is_found(name: str) -> None:
    assert find_columns(["text", name], where=WHERE) == Columns("text", None, name)


def test_named_columns_go_before_usual_names() -> None:
    header = ["text", "label", "body", "verdict"]
    found = find_columns(header, text="body", label="verdict", where=WHERE)
    assert found == Columns("body", None, "verdict")


def test_pair_is_not_looked_for_where_a_text_is_named() -> None:
    header = ["premise", "hypothesis", "label"]
    assert find_columns(header, text="premise", where=WHERE) == Columns("premise", None, "label")
    found = find_columns(header, pair="premise", text="hypothesis", where=WHERE)
    assert found == Columns("hypothesis", "premise", "label")


def test_label_need_not_be_there_where_none_is_asked_for() -> None:
    assert find_columns(["text"], where=WHERE, labelled=False) == Columns("text")
    header = ["text", "score", "rating"]
    assert find_columns(header, where=WHERE, labelled=False) == Columns("text")


def test_choice_is_told_by_role() -> None:
    assert Columns("a", None, "b").chosen() == {"text": "a", "label": "b"}


def test_id_column_goes_by_its_usual_name() -> None:
    assert id_column(["text", "ID"]) == "ID"
    assert id_column(["text", "label"]) is None


@pytest.mark.parametrize(
    ("header", "named", "message"),
    [
        (
            "text,lable",
            {"label": "label"},
            "expected a column 'label', got the columns 'text', 'lable'; did you mean 'lable'?",
        ),
        ("a,b,label", {}, "expected a text column (text, sentence, review, content, …), got"),
        ("a,b,text", {}, "expected a label column (label, labels, goldlabel, class, …), got"),
        ("text", {}, "expected a label column"),
        (
            "title,body,label",
            {},
            "expected one text column, got title, body; say which by --text-column",
        ),
        (
            "text,score,rating",
            {},
            "expected one label column, got score, rating; say which by --label-column",
        ),
        ("text,sentence1,sentence2,label", {}, "expected a text or a pair of texts, got both"),
        (
            "text,label",
            {"text": "text", "label": "text"},
            "expected a column of its own for each of text, pair and label, got 'text' named",
        ),
    ],
)
def test_unclear_header_is_listed(header: str, named: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as raised:
        find_columns(header.split(","), **named, where=WHERE)
    assert str(raised.value).startswith(f"{WHERE}: {message}")
    assert "\n" not in str(raised.value)
