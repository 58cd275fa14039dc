"""The rows of a GLUE task's file, or of the hub, as examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.task.interface import Example
from tasks.glue.table import HIGHEST_SCORE, LOWEST_SCORE, GlueRow
from tasks.sources import hub
from tasks.sources.reader import UniqueIds
from tasks.sources.tsv import read_table

HUB = "nyu-mll/glue"
MOST_SHORT = 10
"""At most one in so many rows of an official file may have too few cells."""


def read_examples(
    row: GlueRow, path: Path, *, labelled: bool, skip_short: bool = False
) -> tuple[list[Example], int]:
    """Read a file.

    Args:
        row: The task.
        path: A file in the task's official form.
        labelled: Whether it must have labels.
        skip_short: Skip rows with too few cells, which are an error otherwise.

    Returns:
        The examples in the file's order, and how many rows were skipped.

    Raises:
        DataError: A row is not in the official form, or rows with too few cells are no exception.
    """
    short: list[str] = []
    table = read_table(
        path,
        required=(*row.texts, row.label) if labelled else row.texts,
        headerless=row.headerless,
        optional=row.optional,
        short=short if skip_short else None,
    )
    examples = list(_examples(row, table))
    if MOST_SHORT * len(short) > (rows := len(short) + len(examples)):
        raise DataError(
            f"{path}: expected the official file, got {len(short):,} of {rows:,} rows with too "
            f"few cells, the first in {short[0]}; download it again"
        )
    return examples, len(short)


def _examples(row: GlueRow, table: Iterable[tuple[str, dict[str, str]]]) -> Iterator[Example]:
    ids = UniqueIds()
    for number, (where, cells) in enumerate(table):
        identity = row_id(cells.get(row.index), number)
        ids.add(identity, where)
        yield Example(
            id=identity,
            texts=tuple(cells[column] for column in row.texts),
            label=_label(row, cells[row.label], where) if row.label in cells else None,
        )


def _label(row: GlueRow, cell: str, where: str) -> str | float:
    if row.labels:
        written = row.written or row.labels
        if cell not in written:
            way_out = (
                ", which marks a row without a label; remove such rows"
                if cell in ("", "-", "-1")
                else ""
            )
            raise DataError(
                f"{where}: expected a {row.label} of {', '.join(written)}, got '{cell}'{way_out}"
            )
        return row.labels[written.index(cell)]
    try:
        score = float(cell)
    except ValueError:
        score = float("nan")
    if not LOWEST_SCORE <= score <= HIGHEST_SCORE:  # false for NaN too
        raise DataError(
            f"{where}: expected a {row.label} from {LOWEST_SCORE:g} to {HIGHEST_SCORE:g}, "
            f"got '{cell}'"
        )
    return score


def row_id(cell: str | None, number: int) -> int | str:
    """The data's own id, as a number where it is one; the row's number where there is none."""
    if not cell:
        return number
    return int(cell) if cell.isdecimal() else cell


def hub_examples(row: GlueRow, split: str) -> Iterator[Example]:
    """Read a split from the hub; a label that is withheld is -1 there and None here.

    Args:
        row: The task.
        split: Its name on the hub.

    Raises:
        DataError: `datasets` is not installed, or the hub cannot be reached.
    """
    rows = hub_split(row.name, split)
    for cells in rows:
        label = cells["label"]
        known = label >= 0
        if known and row.labels:
            label = rows.features["label"].int2str(label)
        texts = tuple(cells[column] for column in row.hub_texts or row.texts)
        yield Example(id=cells["idx"], texts=texts, label=label if known else None)


def hub_split(name: str, split: str) -> Any:
    """The rows of a split as the hub has them."""
    return hub.hub_split(HUB, name, split, f"glue/{name}", "glue_data")
