from __future__ import annotations

from typing import Any

import pytest

from finetune.errors import DataError
from tasks.own.options import letters, read_question, with_option


@pytest.mark.parametrize(
    ("question", "option", "expected"),
    [
        ("Who is it?", "Tom", "Who is it? Tom"),
        ("It is  _  .", "Tom", "It is  Tom  ."),
        ("_", "Tom", "Tom"),
        ("It is ____.", "Tom", "It is Tom."),
        ("The man was_ .", "rich", "The man was rich ."),
        ("We_him", "saw", "We saw him"),
        ("The _ is by the _ .", "sofa; bed", "The sofa is by the bed ."),
        ("The _ is by the _ .", "bed", "The bed is by the bed ."),
        ("The _ is by the _ .", "a; b; c", "The a; b; c is by the a; b; c ."),
        ("It is _ .", "a; b", "It is a; b ."),
        ("It is _ .", r"\1 \g<0> _", r"It is \1 \g<0> _ ."),
        ("", "", " "),
    ],
)
def test_blanks_are_filled_and_others_joined(question: str, option: str, expected: str) -> None:
    assert with_option(question, option) == expected


def test_every_option_is_somewhere_in_its_question() -> None:
    for question in ("", "_", "a_b_", "___ _", "Who?"):
        for option in ("", "x", "x; y", "x;y;z"):
            filled = with_option(question, option)
            assert all(part.strip() in filled for part in option.split(";"))
            assert "_" not in filled


def test_options_go_by_letters() -> None:
    assert letters(4) == ("A", "B", "C", "D")
    assert letters(26)[-1] == "Z"


@pytest.mark.parametrize(
    "row",
    [
        {"context": "p", "question": "q", "options": ["x", "y", "z"]},
        {"question": "q", "passage": "p", "choices": ["x", "y", "z"], "options_seen": 3},
        {"article": "p", "question": "q", "endings": ["x", "y", "z"]},
        {"sent1": "p", "sent2": "q", "ending1": "y", "ending0": "x", "ending2": "z", "label": 0},
    ],
)
def test_a_question_is_read_under_its_usual_names(row: dict[str, Any]) -> None:
    assert read_question(row, "f:1") == ("p", "q", "x", "y", "z")


def test_up_to_26_endings_are_read_in_the_order_of_their_numbers() -> None:
    endings = {f"ending{number}": f"text {number}" for number in reversed(range(26))}
    texts = read_question({"sent1": "p", "sent2": "q", **endings}, "f:1")
    assert texts == ("p", "q", *(f"text {number}" for number in range(26)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": []}, "expected 2 to 26 options, got 0"),
        ({"options": ["x"]}, "expected 2 to 26 options, got 1"),
        ({"options": ["x"] * 27}, "expected 2 to 26 options, got 27"),
        ({"options": "xyz"}, 'expected options as a list of texts, got "xyz"'),
        ({"options": ["x", 2]}, r'expected options as a list of texts, got \["x", 2\]'),
        ({"options": None}, "expected options as a list of texts, got null"),
        ({"context": None}, "expected 'context' to be a text, got null"),
        ({"question": ["q"]}, r"expected 'question' to be a text, got \[\"q\"\]"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, Any], message: str) -> None:
    row = {"context": "p", "question": "q", "options": ["x", "y"], **changes}
    with pytest.raises(DataError, match=f"^f:3: {message}"):
        read_question(row, "f:3")


def test_a_missing_field_is_named_with_those_that_are_there() -> None:
    with pytest.raises(
        DataError,
        match="f:3: expected a field question or sent2, got the fields context, options",
    ):
        read_question({"context": "p", "options": ["x", "y"]}, "f:3")
    with pytest.raises(
        DataError, match="expected a field options or choices or endings, got the fields none"
    ):
        read_question({}, "f:3")


def test_endings_must_be_numbered_without_a_gap() -> None:
    row = {"sent1": "p", "sent2": "q", "ending0": "x", "ending2": "y"}
    with pytest.raises(
        DataError, match="expected the fields ending0, ending1, got ending0, ending2"
    ):
        read_question(row, "f:3")
