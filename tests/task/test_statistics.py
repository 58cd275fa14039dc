from __future__ import annotations

from finetune.elementary.baselines import thinned
from finetune.task.interface import Example, GoldAnswer, most_frequent
from finetune.task.statistics import data_statistics, shared_texts, split_statistics


def of_classes(*rows: tuple[str, str | None]) -> list[Example]:
    return [Example(number, (text,), label) for number, (text, label) in enumerate(rows)]


def test_classes_lengths_and_repeated_texts_are_counted() -> None:
    examples = of_classes(("a b", "x"), ("a  b ", "y"), ("c", "x"), ("\u200b", "x"), ("d", None))
    assert split_statistics(examples) == {
        "examples": 5,
        "unlabelled": 1,
        "classes": {"x": 3, "y": 1},
        "words": {"min": 1, "median": 1.0, "mean": 1.4, "p95": 2.0, "max": 2},
        "empty_texts": 1,
        "duplicate_texts": 1,
        "conflicting_labels": 1,
    }


def test_numbers_have_a_range_and_a_spread() -> None:
    facts = split_statistics([Example(0, ("a",), 1.0), Example(1, ("b",), 3.0)])
    assert facts["numbers"] == {"min": 1.0, "mean": 2.0, "max": 3.0, "std": 1.0}
    assert "classes" not in facts


def test_whole_numbers_are_numbers_too() -> None:
    examples = [Example(0, ("a",), 1), Example(1, ("b",), 4)]
    assert split_statistics(examples)["numbers"]["mean"] == 2.5
    assert most_frequent([1, None, 4]) == 2.5
    assert [one.label for one in thinned([Example(0, ("a",), n) for n in (9, 10, 8)], 2)] == [10, 8]


def test_several_classes_a_row_count_each_and_a_row_without_one_is_no_question() -> None:
    labels = [("x", "y"), ("x",), ()]
    facts = split_statistics([Example(n, ("a",), label) for n, label in enumerate(labels)])
    assert facts["classes"] == {"x": 2, "y": 1}


def test_questions_are_answerable_or_not() -> None:
    answered = Example(0, ("q", "c"), (GoldAnswer("c", 0),))
    assert split_statistics([answered, Example(1, ("r", "c"), ())])["classes"] == {
        "answerable": 1,
        "unanswerable": 1,
    }


def test_shared_texts_are_those_of_the_second_split_that_the_first_has() -> None:
    train = of_classes(("a b", "x"), ("", "y"), ("c", "x"))
    validation = of_classes(("a\tb", "y"), ("a b", "x"), ("", "x"), ("d", "x"))
    assert shared_texts(train, validation) == 2
    facts = data_statistics(
        {"train": train, "validation": validation, "test": of_classes(("d", None))}
    )
    assert facts["shared_texts"] == {"train/validation": 2, "validation/test": 1}
    assert list(facts["splits"]) == ["train", "validation", "test"]
