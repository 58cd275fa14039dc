"""Predictions files: one JSON object a line, an example each, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.files import new_file
from finetune.placeholders import refuse_placeholder_file


def write_predictions(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows as JSONL; the file appears under its name only when it is complete.

    Args:
        rows: The task's answers, each with its `id`.
        path: The file to write; its folder is made, a file of that name is replaced, a device or
            pipe is streamed into.

    Raises:
        DataError: A row holds NaN or infinity, which JSON cannot.
    """
    with new_file(path) as file:
        for row in rows:
            file.write(_line(row))


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a predictions file, in order.

    Args:
        path: A file that `write_predictions` wrote, or one of the same form.

    Returns:
        One dict a line.

    Raises:
        DataError: The file is missing, or a line is not a JSON object with an `id`.
    """
    if not path.is_file():
        raise DataError(
            f"expected a predictions file at {path}, found none; "
            "`finetune evaluate` and `finetune predict` write them"
        )
    refuse_placeholder_file(path, DataError)
    with path.open("rb") as file:
        return [_row(line, f"{path}:{number}") for number, line in enumerate(file, start=1)]


def _line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError as error:
        raise DataError(
            f"the prediction of example {row.get('id')!r} is not a finite number; "
            "the weights have diverged: train again with a lower learning_rate"
        ) from error


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:  # bytes that are no UTF-8 included
        raise DataError(f"{where}: expected a JSON object, found {line[:40]!r}") from error
    if not isinstance(row, dict) or "id" not in row:
        raise DataError(f"{where}: expected a JSON object with an 'id', found {line[:40]!r}")
    return row
