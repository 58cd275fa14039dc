"""A split of a data set on the Hugging Face hub, for one who has no data folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from finetune.errors import DataError


@functools.lru_cache
def hub_split(hub: str, config: str | None, split: str, task: str, folder: str) -> Any:
    """Load a split from the hub or its local cache, once a process.

    Args:
        hub: The data set's name there.
        config: Its configuration, where it has several.
        split: The split's name there.
        task: Our name, for the message.
        folder: The folder that a data folder would hold, for the message.

    Returns:
        A `datasets.Dataset`.

    Raises:
        DataError: `datasets` is not installed, or the hub cannot be reached.
    """
    hint = f"give --data DIR or set FINETUNE_DATA to a folder with {folder}/"
    names = (hub,) if config is None else (hub, config)
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"without a data folder {task} needs `datasets`; {hint}") from error
    try:
        return datasets.load_dataset(*names, split=split)
    except Exception as error:  # the hub's clients raise errors of a dozen unrelated classes
        reason = str(error).partition("\n")[0]
        raise DataError(f"could not load {' '.join(names)} {split} ({reason}); {hint}") from error


def cache_files(rows: Any) -> list[Path]:
    """The files of the local cache that a split from the hub is read from."""
    return [Path(file["filename"]) for file in rows.cache_files]
