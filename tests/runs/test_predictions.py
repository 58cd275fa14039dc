from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.runs import predictions
from finetune.runs.predictions import (
    Origin,
    read_predictions,
    read_texts,
    write_predictions,
    write_texts,
)
from finetune.task.interface import Example

ROWS: list[dict[str, Any]] = [
    {"id": 0, "prediction": "yes", "probabilities": {"yes": 0.75, "no": 0.25}, "label": "no"},
    {"id": "q-17", "prediction": 'a\x85b\u2028c \u00e9\t"', "start": 3, "end": None},
    {"id": 2, "prediction": 3.25},
]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "predictions" / "validation.jsonl"
    write_predictions(ROWS, path)
    assert read_predictions(path) == ROWS


def test_each_row_is_a_line(tmp_path: Path) -> None:
    write_predictions(ROWS, tmp_path / "test.jsonl")
    assert len((tmp_path / "test.jsonl").read_text(encoding="utf-8").splitlines()) == len(ROWS)


def test_interrupted_writing_leaves_the_old_file_whole(tmp_path: Path) -> None:
    def interrupted() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise KeyboardInterrupt

    path = tmp_path / "test.jsonl"
    write_predictions(ROWS, path)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(interrupted(), path)
    assert read_predictions(path) == ROWS
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_number_that_is_not_finite_is_an_error_that_names_the_example(
    tmp_path: Path, number: float
) -> None:
    with pytest.raises(DataError, match="the prediction of example 'x7' is not a finite number"):
        write_predictions([{"id": "x7", "prediction": number}], tmp_path / "test.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": 1, "predic', r"got b'{\"id\": 1, \"pre"),
        (b"\xff\xfe", "got b"),
        (b"", "got b"),
        (b"[1, 2]", "got b"),
        (b'{"prediction": 1}', "got b"),
        (b'{"id": 1}', "got b"),
    ],
)
def test_bad_line_is_an_error_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(b'{"id": 0, "prediction": 1}\n' + line + b"\n")
    start = "test.jsonl:2: expected a JSON object with id and prediction, "
    with pytest.raises(DataError, match=start + message):
        read_predictions(path)


def test_missing_file_is_an_error_that_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a predictions file at .*none.jsonl, got none"):
        read_predictions(tmp_path / "none.jsonl")


def test_texts_are_kept_worst_first_until_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [Example(n, (f"text {n}",), "a", group="g") for n in range(4)]
    rows = [
        {"id": n, "prediction": "a", "label": "a", "probabilities": {"a": share}}
        for n, share in enumerate((0.9, 0.2, 0.5, 0.1))
    ]
    origin, path = Origin("t", "weights", "data"), tmp_path / "texts" / "validation.jsonl"
    write_texts(examples, rows, path, origin)
    kept = read_texts(path, origin)
    assert list(kept) == [3, 1, 2, 0]
    assert kept[3] == Example(3, ("text 3",), group="g")
    assert read_texts(path, replace(origin, data="other")) == {}
    assert read_texts(tmp_path / "none.jsonl", origin) == {}
    path.write_text(path.read_text()[:-4])  # damaged
    assert read_texts(path, origin) == {}
    monkeypatch.setattr(predictions, "MOST_MIB", 120 / 2**20)
    write_texts(examples, rows, path, origin)
    assert list(read_texts(path, origin)) == [3, 1]


def test_no_texts_are_kept_of_examples_without_an_answer(tmp_path: Path) -> None:
    origin, path = Origin("t", "weights", "data"), tmp_path / "test.jsonl"
    write_texts([Example(0, ("text",))], [{"id": 0, "prediction": "a"}], path, origin)
    assert read_texts(path, origin) == {}
