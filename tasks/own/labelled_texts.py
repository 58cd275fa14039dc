"""Texts with what was written beside them as their label, and where such rows come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tasks.own.columns import Columns


class LabelledText(NamedTuple):
    """A row of a table, its label as the file writes it."""

    where: str
    """`FILE:LINE`."""
    id: int | str
    texts: tuple[str, ...]
    label: Any
    """Text, a JSON value, or None where there is none."""


class Source(Protocol):
    """Where the rows of a task come from."""

    @property
    def name(self) -> str:
        """Family and task, such as `classify/own`."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of train, validation and test that there are."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes, where they are known whatever the training file holds."""

    @property
    def columns(self) -> Columns | None:
        """The columns of a table; None where the form of the files is known."""

    @property
    def decimal_commas(self) -> bool:
        """Whether the comma is a decimal sign, as where semicolons separate the cells."""

    def files(self, split: str) -> list[Path]:
        """The files of a split."""

    def rows(self, split: str) -> Iterator[LabelledText]:
        """The rows of a split."""

    def read(self, row: Mapping[str, Any], where: str, number: int) -> LabelledText:
        """Read one row of a user's input."""
