"""Predictions files: one JSON object a line, an example each, written whole or not at all.

A row has `id`, `prediction` and, where it is known, the gold as `label`. A class (or an option, by
its letter) and a list of all classes that hold have `probabilities` by name; a number has neither.
A span has `start`, `end` (characters of the passage, end exclusive, null for no answer), `score`,
`null_odds` and `nbest` (text, start, end, probability), and its gold as `answers` (text, start).

Beside SPLIT.jsonl, SPLIT.json says whose answers to what they are: digests of the checkpoint, of
the examples, and of the predictions file itself. The last one ties the two files together: where
one of them is written or changed alone, or a kill comes between them, the answers are not trusted.
Texts of the examples that were answered worst lie in a file of their own (`write_texts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.checkpoints.seed_folders import BASELINES
from finetune.errors import DataError
from finetune.files.checksums import file_digest
from finetune.files.placeholders import refuse_placeholder_file
from finetune.files.writing import new_file, write_json

if TYPE_CHECKING:
    from finetune.task.interface import Example

MOST_MIB = 1.0
"""Of texts that are saved with the answers on a split, so that a report needs the run alone."""


@dataclass(frozen=True)
class Origin:
    """Whose answers to what a predictions file holds."""

    task: str
    """Such as `glue/rte`."""
    checkpoint: str
    """`Checkpoint.digest`, or the one answer that every example gets."""
    data: str
    """`examples_digest` of the split."""


def write_predictions(
    rows: Iterable[Mapping[str, Any]], path: Path, origin: Origin | None = None
) -> None:
    """Write rows as JSONL; the file appears under its name only when it is complete.

    Args:
        rows: The task's answers, each with its `id`.
        path: The file to write; its folder is made, a file of that name is replaced, a device or
            pipe is streamed into.
        origin: Written beside it, as SPLIT.json; left out, nothing is.

    Raises:
        DataError: A row holds NaN or infinity, which JSON cannot.
    """
    with new_file(path) as file:
        for row in rows:
            file.write(_line(row))
    if origin is not None:
        content = {**asdict(origin), "predictions": file_digest(path)}
        write_json(path.with_suffix(".json"), content)


def read_origin(path: Path) -> Origin | None:
    """Whose answers to what a predictions file holds; None where that is not certain.

    Args:
        path: The predictions file, which exists.
    """
    try:
        content = json.loads(path.with_suffix(".json").read_bytes())
        if content.pop("predictions") != file_digest(path):
            return None
        return Origin(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def baseline_file(run: Path, name: str, split: str) -> Path:
    """The answers of an elementary baseline on a split, in a run's folder."""
    return run / BASELINES / f"{name}.{split}.jsonl"


def write_texts(
    examples: Sequence[Example], rows: Sequence[Mapping[str, Any]], path: Path, origin: Origin
) -> None:
    """Save the texts of labelled examples, so that they can be shown when their files are gone.

    Those that were answered worst come first, until `MOST_MIB` is full.

    Args:
        examples: Those of a split.
        rows: The answers to them, in the same order.
        path: The file to write: a line that says of which data, then one for each example.
        origin: Whose answers to what the rows are.
    """
    from finetune.comparison.answers import wrongness

    pairs = [pair for pair in zip(examples, rows, strict=True) if _has_gold(pair[1])]
    pairs.sort(key=lambda pair: -wrongness(dict(pair[1])))  # equals stay in the data's order
    left = int(MOST_MIB * 2**20)
    with new_file(path) as file:
        file.write(json.dumps({"data": origin.data}) + "\n")
        for example, _ in pairs:
            line = _line({"id": example.id, "texts": example.texts, "group": example.group})
            if (left := left - len(line)) < 0:
                break
            file.write(line)


def read_texts(path: Path, origin: Origin) -> dict[int | str, Example]:
    """Read the examples of a file that `write_texts` wrote, by id, without their labels.

    Args:
        path: The file.
        origin: Of the answers; {} comes back where the texts are of other data, or damaged.
    """
    from finetune.task.interface import Example

    try:
        about, *rows = map(json.loads, path.read_bytes().splitlines())
        if about["data"] != origin.data:
            return {}
        return {
            row["id"]: Example(row["id"], tuple(row["texts"]), group=row["group"]) for row in rows
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _has_gold(row: Mapping[str, Any]) -> bool:
    return "label" in row or "answers" in row


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a predictions file, in order.

    Args:
        path: A file that `write_predictions` wrote, or one of the same form.

    Returns:
        One dict a line.

    Raises:
        DataError: The file is missing, or a line is not a JSON object with `id` and `prediction`.
    """
    if not path.is_file():
        raise DataError(
            f"expected a predictions file at {path}, got none; "
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
    except ValueError:  # bytes that are no UTF-8 included
        row = None
    if not isinstance(row, dict) or not {"id", "prediction"} <= row.keys():
        raise DataError(
            f"{where}: expected a JSON object with id and prediction, got {line[:40]!r}; "
            "`finetune evaluate` writes the file again"
        )
    return row
