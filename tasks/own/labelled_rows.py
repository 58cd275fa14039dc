"""The rows of a source and how their labels are read: those without a label are an error or go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from finetune.console.output import counted
from finetune.errors import DataError
from tasks.own.classify_config import ClassifyConfig
from tasks.own.label_column import LabelColumn, find_column, known_column, unlabeled_error
from tasks.own.label_kinds import CLASSES
from tasks.own.labelled_texts import LabelledText, Source


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
        self._missing: dict[str, list[LabelledText]] = {}

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
                unlabeled=config.unlabeled,
                decimal_commas=source.decimal_commas,
            )
        return find_column(
            {split: self.rows(split) for split in source.splits},
            kind=config.kind,
            separator=config.separator,
            unlabeled=config.unlabeled,
            decimal_commas=source.decimal_commas,
        )

    def rows(self, split: str) -> list[LabelledText]:
        """All rows of a split."""
        if split not in self._read:
            self._read[split] = list(self.source.rows(split))
        return self._read[split]

    def unlabeled(self, split: str) -> list[LabelledText]:
        """The rows that are to have a label and lack it; none in a test file without labels."""
        if split not in self._missing:
            rows = self.rows(split)
            missing = [row for row in rows if self.column.is_unlabeled(row.label)]
            withheld = split == "test" and len(missing) == len(rows)
            self._missing[split] = [] if withheld else missing
        return self._missing[split]

    def labelled(self, split: str) -> list[LabelledText]:
        """The rows of a split that are learnt from or scored.

        Raises:
            DataError: Rows lack their label and are not to be left out, or all of them lack it.
        """
        rows, missing = self.rows(split), self.unlabeled(split)
        if not missing:
            return rows
        if self.config.unlabeled != "drop":
            raise unlabeled_error(missing, len(rows), self.column)
        if len(missing) == len(rows):
            raise DataError(
                f"{self.source.files(split)[0]}: expected rows with a label, got none in "
                f"{counted(len(rows), 'row')}; name another file or column"
            )
        return [row for row in rows if not self.column.is_unlabeled(row.label)]
