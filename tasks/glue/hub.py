"""GLUE from the hub, for one who has no data folder: rows through `datasets`, in our form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finetune.task.interface import Example
from tasks.glue.table import GlueRow
from tasks.sources import hub

HUB = "nyu-mll/glue"


def hub_examples(row: GlueRow, split: str) -> Iterator[Example]:
    """Read a split; a label that is withheld is -1 there and None here.

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
