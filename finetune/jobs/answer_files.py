"""Answers to a user's rows beside the columns of the input, in the form that a name asks for."""

from __future__ import annotations

import csv
import json
import math
import re
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from finetune.errors import ConfigError
from finetune.files.writing import new_file
from finetune.runs.predictions import write_predictions
from finetune.task.interface import Answer

Row = tuple[str, Mapping[str, Any]]
PARQUET_ROWS = 4_096
"""Rows that are in memory at a time, a group of rows in the file."""


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
    if ending not in WRITERS:  # those of files that have columns
        write_predictions(answers, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The columns of the last row are known when all have been read: until then rows lie in a file.
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as waiting:
        kinds = _set_down(map(_cells, answers), waiting)
        waiting.seek(0)
        WRITERS[ending](map(json.loads, waiting), kinds, target)


Rows = Iterator[dict[str, Any]]
Kinds = dict[str, set[type]]
"""Column -> the types of its values."""


def _set_down(rows: Iterable[dict[str, Any]], file: IO[str]) -> Kinds:
    """Write rows as JSON lines; which columns they have, in their order."""
    kinds: Kinds = {}
    for row in rows:
        file.write(json.dumps(row) + "\n")
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    return kinds


def _write_csv(rows: Rows, kinds: Kinds, target: Path) -> None:
    with new_file(target) as file:
        writer = csv.DictWriter(file, list(kinds), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_tsv(rows: Rows, kinds: Kinds, target: Path) -> None:
    header: list[Any] = list(kinds)
    lines = chain([header], ([row.get(name) for name in kinds] for row in rows))
    with new_file(target) as file:
        file.writelines("\t".join(map(_tsv_cell, line)) + "\n" for line in lines)


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


def _write_parquet(rows: Rows, kinds: Kinds, target: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, _type_of(kind)) for name, kind in kinds.items()])
    with new_file(target, "wb") as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while part := list(islice(rows, PARQUET_ROWS)):
            arrays = [
                pyarrow.array([_as(field.type, row.get(field.name)) for row in part], field.type)
                for field in schema
            ]
            writer.write_table(pyarrow.table(arrays, schema=schema))


def _type_of(kinds: set[type]) -> Any:
    """The type of a column; text where its values are of several types."""
    import pyarrow

    types = {
        frozenset[type](): pyarrow.null(),
        frozenset({bool}): pyarrow.bool_(),
        frozenset({int}): pyarrow.int64(),
        frozenset({float}): pyarrow.float64(),
        frozenset({int, float}): pyarrow.float64(),
    }
    return types.get(frozenset(kinds - {type(None)}), pyarrow.string())


def _as(kind: Any, value: Any) -> Any:
    return value if value is None or str(kind) != "string" else str(value)


WRITERS: dict[str, Callable[[Rows, Kinds, Path], None]] = {
    ".csv": _write_csv,
    ".tsv": _write_tsv,
    ".parquet": _write_parquet,
}
"""Ending of a table's name -> what writes it, a few rows in memory at a time."""
