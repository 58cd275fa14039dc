"""Texts with what was written beside them as their label, where they come from, how they split."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tasks.own.columns import Columns
from tasks.sources.reader import BadRows


class LabelledText(NamedTuple):
    """A row of a table, its label as the file writes it."""

    where: str
    """`FILE:LINE`."""
    id: int | str
    texts: tuple[str, ...]
    """None of them where the text is null, in a table of which such rows are left out."""
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

    def rows(self, split: str, bad: BadRows) -> Iterator[LabelledText]:
        """The rows of a split; those that cannot be used go to `bad`."""

    def read(self, row: Mapping[str, Any], where: str, number: int) -> LabelledText:
        """Read one row of a user's input."""


def held_out(
    rows: Sequence[LabelledText], strata: Sequence[Hashable], *, fraction: float, seed: int
) -> list[bool]:
    """Choose validation rows among training rows: a fraction of the texts of each stratum.

    Args:
        rows: N rows.
        strata: Of each row what it is like, such as its class (N,).
        fraction: How many of the different texts.
        seed: Keys the choice.

    Returns:
        True for those held out (N,): of each stratum that has two texts at least one. Equal texts
        are on one side, also those of a pair in the other order.
    """
    keys = [tuple(sorted(row.texts)) for row in rows]
    texts_of: dict[Hashable, dict[tuple[str, ...], None]] = {}
    for key, stratum in zip(keys, strata, strict=True):
        texts_of.setdefault(stratum, {})[key] = None
    chosen: set[tuple[str, ...]] = set()
    for number, stratum in enumerate(sorted(texts_of, key=str)):
        texts = list(texts_of[stratum])
        count = max(1, round(len(texts) / (1 / fraction))) if len(texts) > 1 else 0
        count = min(count, len(texts) - 1)  # one to learn from
        order = np.random.default_rng([seed, number]).permutation(len(texts))
        chosen.update(texts[index] for index in order[:count].tolist())
    return [key in chosen for key in keys]
