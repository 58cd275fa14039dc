"""Answers to a user's rows beside the columns of the input, in the form that a name asks for."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError
from finetune.files.writing import new_file
from finetune.runs.predictions import write_predictions
from finetune.task.interface import Answer

Row = tuple[str, Mapping[str, Any]]
TABLES = (".csv", ".tsv", ".parquet")
"""Endings of files that have columns; all others are JSON lines."""


class Inputs:
    """Rows on their way to a model, each remembered until its answer has come."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Read nothing yet."""
        self._rows = rows
        self._waiting: deque[Mapping[str, Any]] = deque()

    def __iter__(self) -> Iterator[Row]:
        """The rows, in order."""
        for where, row in self._rows:
            self._waiting.append(row)
            yield where, row

    def beside(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        """Each answer with the columns of its row behind it.

        A column with the name of a field of the answer, such as `prediction`, is `input_prediction`
        there; an id is the answer's own already.
        """
        for answer in answers:
            row = self._waiting.popleft()
            taken = {*answer, *_cells(answer)}  # also as the columns of a table
            yield answer | {
                _free(name, taken, row) if name in taken else name: _plain(value)
                for name, value in row.items()
                if name != "id" or str(value) != str(answer.get("id"))
            }


def _free(name: str, taken: Collection[str], row: Mapping[str, Any]) -> str:
    """A name for a column of the input that neither the answer nor the input has."""
    while name in taken or name in row:
        name = f"input_{name}"
    return name


def _plain(value: Any) -> Any:
    """A value of the input as JSON can have it: NaN is null, a date is text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | list | dict | None) else str(value)


def check_target(target: Path) -> None:
    """Refuse, before anything is answered, a form of file that cannot be written.

    Raises:
        ConfigError: The package for it is not installed, or it is Excel's.
    """
    if target.suffix.lower() in (".xlsx", ".xls", ".xlsm"):
        raise ConfigError(
            f"--output {target}: answers are not written as Excel files; name a .csv file, which "
            "Excel opens"
        )
    if target.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"--output {target}: Parquet files are written by the package pyarrow; pip install "
                "pyarrow, or name a .csv or .jsonl file"
            ) from error


def write_answer_file(answers: Iterable[Answer], target: Path) -> None:
    """Write answers to a file, whole or not at all, by the ending of its name.

    Args:
        answers: Rows as in a predictions file, and more fields.
        target: `.csv`, `.tsv` or `.parquet` for a table with a column a field, a column
            `probability_NAME` for each class, and lists as JSON; JSON lines otherwise. In `.tsv`
            a tab or line break inside a text becomes a space.
    """
    ending = target.suffix.lower()
    if ending not in TABLES:
        write_predictions(answers, target)
        return
    rows = [_cells(answer) for answer in answers]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if ending == ".parquet":
        _write_parquet(rows, columns, target)
        return
    with new_file(target) as file:
        if ending == ".tsv":
            lines: list[list[Any]] = [
                list(columns),
                *([row.get(name) for name in columns] for row in rows),
            ]
            file.writelines("\t".join(map(_tsv_cell, line)) + "\n" for line in lines)
            return
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _tsv_cell(value: Any) -> str:
    """A cell as `text/features/rows.py` reads it: in TSV files a quotation mark is a letter."""
    return "" if value is None else re.sub(r"\r\n|[\t\r\n]", " ", str(value))


def _cells(answer: Answer) -> dict[str, Any]:
    """One value a column."""
    cells: dict[str, Any] = {}
    for name, value in answer.items():
        if name == "probabilities" and isinstance(value, Mapping):
            cells |= {f"probability_{label}": number for label, number in value.items()}
        elif isinstance(value, list | dict):
            cells[name] = json.dumps(value, ensure_ascii=False)
        else:
            cells[name] = value
    return cells


def _write_parquet(rows: list[dict[str, Any]], columns: list[str], target: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = [_array([row.get(name) for row in rows]) for name in columns]
    with new_file(target, "wb") as file:
        pyarrow.parquet.write_table(pyarrow.table(arrays, names=columns), file)


def _array(values: list[Any]) -> Any:
    """A column; as text where its values are of several types."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except pyarrow.ArrowException:
        return pyarrow.array([None if value is None else str(value) for value in values])
