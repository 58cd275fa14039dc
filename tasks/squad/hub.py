"""Where the releases of SQuAD are found: official file names, and rows from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from finetune.task.interface import Example
from tasks.sources import hub
from tasks.squad.files import read_hub_rows


class Release(NamedTuple):
    """Where a version of SQuAD is found; its test set is hidden."""

    hub: str
    """Its name on the hub."""
    files: Mapping[str, str]
    """Split -> official file name."""


OFFICIAL = {
    "1.1": Release("rajpurkar/squad", {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}),
    "2.0": Release(
        "rajpurkar/squad_v2", {"train": "train-v2.0.json", "validation": "dev-v2.0.json"}
    ),
}
"""Version -> release."""


def hub_examples(version: str, split: str) -> list[Example]:
    """Read a split from the hub.

    Raises:
        DataError: `datasets` is not installed, or the hub cannot be reached.
    """
    return read_hub_rows(hub_split(version, split), f"{OFFICIAL[version].hub} {split}")


def hub_split(version: str, split: str) -> Any:
    """The rows of a split as the hub has them."""
    return hub.hub_split(OFFICIAL[version].hub, None, split, f"squad/{version}", "squad")
