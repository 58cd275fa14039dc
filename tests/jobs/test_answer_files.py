"""Answers to a user's rows, in the form that the file's name asks for."""

from __future__ import annotations

import csv
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConfigError
from finetune.jobs.answer_files import Inputs, check_target, write_answer_file
from finetune.text.features.rows import read_rows

ANSWERS: list[dict[str, Any]] = [
    {"id": 0, "prediction": "a", "probabilities": {"a": 0.75, "b": 0.25}},
    {"id": "k", "prediction": "b", "probabilities": {"a": 0.5, "b": 0.5}},
]
ROWS = [
    ("f:1", {"id": "0", "text": "x\ny, z", "prediction": "old"}),
    ("f:2", {"text": "w", "stars": float("nan")}),
]


def beside() -> list[dict[str, Any]]:
    inputs = Inputs(ROWS)
    assert [row for _, row in inputs] == [row for _, row in ROWS]
    return list(inputs.beside(ANSWERS))


def test_columns_of_the_input_stay_beside_the_answer() -> None:
    assert beside() == [
        {**ANSWERS[0], "text": "x\ny, z", "input_prediction": "old"},
        {**ANSWERS[1], "text": "w", "stars": None},
    ]


def test_answers_to_answers_of_another_run_keep_both(tmp_path: Path) -> None:
    row = {
        **{"id": "u", "key": 1, "prediction": "old", "probability_a": "0.1"},
        **{"probability_b": "0.9", "input_prediction": "oldest"},
    }
    inputs = Inputs([("f:1", row)])
    list(inputs)
    path = tmp_path / "a.csv"
    write_answer_file(inputs.beside(ANSWERS[:1]), path)
    with path.open(newline="") as file:
        (cells,) = csv.DictReader(file)
    assert cells == {
        **{"id": "0", "prediction": "a", "probability_a": "0.75", "probability_b": "0.25"},
        **{"input_id": "u", "key": "1", "input_input_prediction": "old"},
        **{"input_probability_a": "0.1", "input_probability_b": "0.9"},
        "input_prediction": "oldest",
    }


def test_json_lines_have_the_rows_as_they_are(tmp_path: Path) -> None:
    write_answer_file(beside(), tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == beside()


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_table_has_a_column_a_field_and_a_class(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    write_answer_file(beside(), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ","))
    assert rows[0] == {
        "id": "0",
        "prediction": "a",
        "probability_a": "0.75",
        "probability_b": "0.25",
        "text": "x y, z" if ending == ".tsv" else "x\ny, z",
        "input_prediction": "old",
        "stars": "",
    }


def test_tsv_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    target = tmp_path / "answers.tsv"
    texts = ['"quoted" at the start', 'a "b" c', "one\ttwo\r\nthree", ""]
    write_answer_file(({"id": n, "text": text} for n, text in enumerate(texts)), target)
    rows = [row for _, row in read_rows(target)]
    assert [row["text"] for row in rows] == [*texts[:2], "one two three", ""]


def test_lists_are_json_in_a_table(tmp_path: Path) -> None:
    write_answer_file([{"id": 0, "prediction": ["a", "b"]}], tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == 'id,prediction\n0,"[""a"", ""b""]"\n'


def test_parquet_has_the_same_columns_and_their_types(tmp_path: Path) -> None:
    import pyarrow.parquet

    write_answer_file(beside(), tmp_path / "a.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["0", "k"]  # a number and a text: both as text
    assert (rows[0]["probability_a"], rows[1]["stars"]) == (0.75, None)


def test_missing_package_is_an_error_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install pyarrow, or name a .csv or .jsonl file"):
        check_target(tmp_path / "a.parquet")
    check_target(tmp_path / "a.csv")


def test_excel_files_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a.xlsx: answers are not written as Excel files; name a"):
        check_target(tmp_path / "a.xlsx")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_rows_of_a_table_are_not_in_memory_together(ending: str, tmp_path: Path) -> None:
    """Thirty thousand rows of 1 KB: 30 MB, and more as Python's objects."""
    tracemalloc.start()
    rows = ({"id": number, "text": f"{number:09}" * 111} for number in range(30_000))
    write_answer_file(rows, tmp_path / f"a{ending}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25e6
    assert [path.name for path in tmp_path.iterdir()] == [f"a{ending}"]
    written = [row for _, row in read_rows(str(tmp_path / f"a{ending}"))]
    assert [int(row["id"]) for row in written] == list(range(30_000))


def test_columns_that_come_late_are_empty_before(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = [{"id": 0}, {"id": 1, "n": 2, "f": 1, "b": True, "m": 1}]
    rows.append({"id": 2, "n": None, "f": 0.5, "m": "x", "none": None})
    for ending in (".csv", ".parquet"):
        write_answer_file(rows, tmp_path / f"a{ending}")
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert table == {
        "id": [0, 1, 2],
        "n": [None, 2, None],
        "f": [None, 1.0, 0.5],
        "b": [None, True, None],
        "m": [None, "1", "x"],
        "none": [None, None, None],
    }
    lines = ["id,n,f,b,m,none", "0,,,,,", "1,2,1,True,1,", "2,,0.5,,x,", ""]
    assert (tmp_path / "a.csv").read_text() == "\n".join(lines)
