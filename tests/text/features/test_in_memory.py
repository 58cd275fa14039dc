"""Rows of what a program has in memory: texts, lists, dictionaries, DataFrames, Datasets."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from finetune.errors import DataError
from finetune.text.features.in_memory import rows_of

TWO = [{"review": "good", "stars": 5}, {"review": "bad", "stars": 1}]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("one text", [{"text": "one text"}]),
        (("first", "second"), [{"text1": "first", "text2": "second"}]),
        (["a", "b"], [{"text": "a"}, {"text": "b"}]),
        ([("a", "b"), ["c", "d"]], [{"text1": "a", "text2": "b"}, {"text1": "c", "text2": "d"}]),
        ({"review": "good", "stars": 5}, TWO[:1]),
        ({"question": "?", "options": ["x", "y"]}, [{"question": "?", "options": ["x", "y"]}]),
        ({"review": ["good", "bad"], "stars": [5, 1]}, TWO),
        ({"review": np.array(["good", "bad"]), "stars": np.array([5, 1])}, TWO),
        (TWO, TWO),
        (iter(TWO), TWO),
        (pd.DataFrame(TWO), TWO),
        (pd.DataFrame(TWO, index=["x", "y"]), TWO),
        (pd.Series(["a", "b"]), [{"text": "a"}, {"text": "b"}]),
        (datasets.Dataset.from_list(TWO), TWO),
        ([], []),
    ],
)
def test_rows_are_the_same_whatever_they_come_in(data: Any, expected: list[Any]) -> None:
    rows = list(rows_of(data))
    assert rows == expected
    for row in rows:
        assert {type(value) for value in row.values()} <= {str, int, list}


def test_missing_values_of_a_frame_are_none() -> None:
    frame = pd.DataFrame({"text": ["a", None], "label": [1.5, float("nan")]})
    assert list(rows_of(frame)) == [{"text": "a", "label": 1.5}, {"text": None, "label": None}]
    assert list(rows_of([{"label": float("nan")}])) == [{"label": None}]


def test_class_numbers_of_a_dataset_become_names() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {"text": "c", "label": -1}]
    made = datasets.Dataset.from_list(rows, features=features)
    assert [row["label"] for row in rows_of(made)] == ["pos", "neg", None]


def test_wrong_data_are_refused_by_place() -> None:
    with pytest.raises(DataError, match=r"train\[1\]: expected a text, .* got int"):
        list(rows_of(["a", 3], "train"))
    with pytest.raises(DataError, match="texts: expected texts, rows, .* got int"):
        list(rows_of(3, "texts"))
    with pytest.raises(DataError, match="expected columns of one length, got a 1, b 2"):
        list(rows_of({"a": [1], "b": [1, 2]}))
    split = datasets.Dataset.from_list(TWO)
    both = datasets.DatasetDict({"train": split, "test": split})
    with pytest.raises(DataError, match="expected one split, got a dictionary of train, test"):
        list(rows_of(both))
