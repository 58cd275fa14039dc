"""The rows of a source and how their labels are read: those without a label are an error or go."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from finetune.console.output import counted
from finetune.errors import DataError
from tasks.own.classify_config import ClassifyConfig
from tasks.own.label_column import LabelColumn, find_column, known_column, unlabeled_error
from tasks.own.label_kinds import CLASSES, REGRESSION, read_number, whole_name
from tasks.own.labelled_texts import LabelledText, Source, held_out
from tasks.sources.reader import BadRows

PARTS = ("train", "validation")
"""The splits that the training file is cut into where rows are held out."""
NUMBER_STRATA = 10
"""Rows of a regression are drawn from so many ranges of their labels."""


class UnknownLabel(DataError):
    """A row is of a class that the training data lack."""


class LabelledRows:
    """Each split of a source, read once."""

    def __init__(
        self, source: Source, config: ClassifyConfig, order: Sequence[str] | None = None
    ) -> None:
        """Keep the parts; nothing is read yet.

        Args:
            source: Where the rows come from.
            config: What the user says of the labels.
            order: The classes that a trained head knows.
        """
        self.source, self.config, self.order = source, config, order
        self._read: dict[str, list[LabelledText]] = {}
        self._unlabeled: dict[str, list[LabelledText]] = {}
        self._textless: dict[str, int] = {}
        self._bad: dict[str, BadRows] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the source, and the one that is held out."""
        if self.config.holdout is None:
            return self.source.splits
        return (*PARTS, *(split for split in self.source.splits if split not in PARTS))

    def files(self, split: str) -> list[Path]:
        """The files of a split."""
        return self.source.files(self._read_from(split))

    def _read_from(self, split: str) -> str:
        return "train" if self.config.holdout is not None and split in PARTS else split

    @cached_property
    def column(self) -> LabelColumn:
        """How labels are read: by the rows of all files, or as a trained head has learnt them.

        Raises:
            DataError: The labels are unclear.
        """
        config, source = self.config, self.source
        if source.classes is not None:
            return LabelColumn(CLASSES)
        if self.order is not None and config.kind != "auto":
            return known_column(
                self.order,
                config.kind,
                separator=config.separator,
                missing=config.missing,
                decimal_commas=source.decimal_commas,
            )
        return find_column(
            {split: self._file_rows(split) for split in source.splits},
            kind=config.kind,
            separator=config.separator,
            missing=config.missing,
            decimal_commas=source.decimal_commas,
        )

    def _file_rows(self, split: str) -> list[LabelledText]:
        """All rows of a split's file that have a text."""
        if split not in self._read:
            self._bad[split] = BadRows()
            rows = list(self.source.rows(split, self._bad[split]))
            self._read[split] = [row for row in rows if row.texts]
            self._textless[split] = len(rows) - len(self._read[split])
            if not rows:
                self._refuse_bad(split)
        return self._read[split]

    def rows(self, split: str) -> list[LabelledText]:
        """All rows of a split."""
        rows = self._file_rows(self._read_from(split))
        if self.config.holdout is None or split not in PARTS:
            return rows
        return [
            row
            for row, is_out in zip(rows, self._held_out, strict=True)
            if is_out == (split == "validation")
        ]

    @cached_property
    def _held_out(self) -> list[bool]:
        """Of each row of the training file, whether it is held out."""
        rows, config = self._file_rows("train"), self.config
        assert config.holdout is not None
        strata = self._strata(rows)
        return held_out(rows, strata, fraction=config.holdout, seed=config.holdout_seed)

    def _strata(self, rows: Sequence[LabelledText]) -> list[Hashable]:
        """The classes of rows, or the range that their number is in."""
        if self.column.kind != REGRESSION:
            return [str(row.label) for row in rows]
        numbers = [
            None if self.column.is_unlabeled(row.label) else read_number(row.label, row.where)
            for row in rows
        ]
        known = [number for number in numbers if number is not None]
        inner = np.linspace(0, 1, min(NUMBER_STRATA, max(1, len(known) // 2)) + 1)[1:-1]
        limits = np.quantile(known or [0.0], inner)
        return [None if one is None else int(np.searchsorted(limits, one)) for one in numbers]

    def _refuse_bad(self, split: str, unlabeled: Sequence[LabelledText] = ()) -> None:
        """Report the rows that cannot be read, and with them those without a label."""
        file = self._read_from(split)
        bad = self._bad[file]
        if not bad:
            return
        hint, count = "correct them", len(bad) + len(self._file_rows(file)) + self._textless[file]
        if self.config.missing == "error":
            hint += "; --missing drop leaves out rows without a label, or whose text is null"
            for row in unlabeled:
                bad.add(DataError(f"{row.where}: expected a label, got none"))
        bad.report(self.files(split)[0], count, hint)

    def unlabeled(self, split: str) -> list[LabelledText]:
        """The rows that are to have a label and lack it; none in a test file without labels."""
        if split not in self._unlabeled:
            rows = self.rows(split)
            unlabeled = [row for row in rows if self.column.is_unlabeled(row.label)]
            withheld = split == "test" and len(unlabeled) == len(rows)
            self._unlabeled[split] = [] if withheld else unlabeled
        return self._unlabeled[split]

    def skipped(self, split: str) -> dict[str, int]:
        """Rows of a split that are left out, by reason."""
        counts = {"unlabeled_rows": len(self.unlabeled(split))}
        if split != "validation" or self._read_from(split) == split:  # counted once
            counts["rows_without_text"] = self._textless.get(split, 0)
        return counts

    def labelled(self, split: str) -> list[LabelledText]:
        """The rows of a split that are learnt from or scored.

        Raises:
            DataError: Rows lack their label and are not to be left out, or all of them lack it.
        """
        rows, unlabeled = self.rows(split), self.unlabeled(split)
        self._refuse_bad(split, unlabeled)
        if not unlabeled:
            return rows
        if self.config.missing != "drop":
            raise unlabeled_error(unlabeled, len(rows), self.column)
        if len(unlabeled) == len(rows):
            raise DataError(
                f"{self.files(split)[0]}: expected rows with a label, got none in "
                f"{counted(len(rows), 'row')}; name another file or column"
            )
        return [row for row in rows if not self.column.is_unlabeled(row.label)]


def known_class(name: str, labels: Sequence[str], where: str) -> str:
    """A class of the training data, where a whole number may be written in another way.

    Raises:
        UnknownLabel: They have no such class.
    """
    if name in labels:
        return name
    whole = whole_name(name)
    same = [label for label in labels if whole and whole_name(label) == whole]
    if len(same) != 1:
        raise UnknownLabel(
            f"{where}: expected a class that the training data have ({listed(labels)}), got "
            f"'{name}'; --unknown-label drop leaves such rows out"
        )
    return same[0]


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first names in one line, and how many there are."""
    rest = f", … ({len(names)} in all)" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + rest
