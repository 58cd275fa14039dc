"""GLUE from the hub, for one who has no data folder: rows through `datasets`, in our form."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from finetune.errors import DataError
from finetune.task import Example
from tasks.glue_table import GlueRow

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


@functools.lru_cache
def hub_split(name: str, split: str) -> Any:
    """Load a split from the hub or its local cache, once a process."""
    mend = "give --data DIR or set FINETUNE_DATA to a folder with glue_data/"
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"without a data folder glue/{name} needs `datasets`; {mend}") from error
    try:
        return datasets.load_dataset(HUB, name, split=split)
    except Exception as error:  # the hub's clients raise errors of a dozen unrelated classes
        reason = str(error).partition("\n")[0]
        raise DataError(f"could not load {HUB} {name} {split} ({reason}); {mend}") from error
