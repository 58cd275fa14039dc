"""The user's own tables: a file a split, in any form that `read_rows` knows, with any columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from finetune.console.output import counted
from finetune.errors import DataError
from finetune.text.features.rows import (
    EXCEL,
    Refuse,
    delimiter_of,
    kind_of,
    read_rows,
    refuse,
)
from tasks.own.columns import Columns, as_indicator, find_columns, id_column, names_in
from tasks.own.labelled_texts import LabelledText
from tasks.own.names import name_of
from tasks.sources.reader import BadRows, UniqueIds, is_file

SPLITS = ("train", "validation", "test")
LONGEST_NUMBER = 18
"""Digits of an id that is kept as a number: more do not fit what others read JSON with."""


@dataclass(frozen=True)
class OwnTable:
    """A file for each split; the training file's columns are those of all."""

    paths: Mapping[str, Path]
    """Split -> file."""
    text_column: str | None = None
    """The text, or the first of a pair; None looks for a usual name."""
    pair_column: str | None = None
    """The second text, likewise."""
    label_column: str | None = None
    """The label, likewise."""
    id_column: str | None = None
    """The row's id, likewise."""
    drop_missing: bool = False
    """Rows whose text is null are read without texts, so that they can be left out."""

    given_name: str | None = None
    """What the user calls the data; None names them after the training file."""

    classes = None

    @property
    def name(self) -> str:
        """`classify/` and the name of the data."""
        return f"classify/{self.given_name or name_of(self.paths['train'], self.columns.label)}"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a file."""
        return tuple(split for split in SPLITS if split in self.paths)

    @cached_property
    def columns(self) -> Columns:
        """The columns: all named ones, or else what the training file's header says.

        Raises:
            DataError: The training file has no rows, or no clear columns.
        """
        if self.text_column is not None and self.label_column is not None:
            return Columns(self.text_column, self.pair_column, self.label_column)
        where, row = next(self._rows("train"))
        named = (self.text_column, self.pair_column, self.label_column)
        where = _header_place(self.paths["train"], where)
        return find_columns(row, *named, where=where, identity=self.id_column)

    @cached_property
    def decimal_commas(self) -> bool:
        """Whether a file has semicolons between its cells, as spreadsheets write them there."""
        return any(
            path.is_file() and kind_of(path) == "csv" and delimiter_of(path) == ";"
            for path in self.paths.values()
        )

    def files(self, split: str) -> list[Path]:
        """The file of a split."""
        if split not in self.paths:
            raise DataError(
                f"{self.name}: no file for the {split} split; name it by --{split} FILE"
            )
        path = self.paths[split]
        if not is_file(path):
            raise DataError(f"{path}: expected the {split} file, got none; name one that is there")
        return [path]

    def _rows(self, split: str, on_error: Refuse = refuse) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows, at least one, each with its place."""
        (path,) = self.files(split)
        if (kind := kind_of(path)) == "text":
            raise DataError(
                f"{path}: expected a table with labels (.csv, .tsv, .jsonl), got plain text"
            )
        is_empty = True

        def refused(error: DataError) -> None:
            nonlocal is_empty
            is_empty = False
            on_error(error)

        for where, row in read_rows(path, kind, refused):
            is_empty = False
            yield where, row
        if is_empty:
            header = " after the header" if kind in ("csv", "tsv", EXCEL) else ""
            raise DataError(f"{path}: expected rows of examples, got none{header}")

    def rows(self, split: str, bad: BadRows) -> Iterator[LabelledText]:
        """Read a split; rows that cannot be used go to `bad`.

        Raises:
            DataError: The file is bad, or has no rows.
        """
        ids, seen = None, UniqueIds()
        for number, (where, row) in enumerate(self._rows(split, bad.add), start=1):
            if number == 1:
                ids = self._check_header(row, where, split)
            with bad.collected():
                read = self._read(row, where, number - 1, ids)
                if ids is not None:
                    hint = f"; correct it, or rename column '{ids}' if it contains no ids"
                    seen.add(read.id, where, hint)
                yield read

    def _check_header(self, row: Mapping[str, Any], where: str, split: str) -> str | None:
        """Check that a split has the columns; returns that of the ids."""
        columns, label = self.columns, self.columns.label
        if split == "test" and not self._has_label(row):
            label = None
        find_columns(
            row,
            columns.text,
            columns.pair,
            label,
            where=_header_place(self.paths[split], where),
            labelled=False,
            identity=self.id_column,
        )
        return self._id_column(row)

    def _has_label(self, row: Mapping[str, Any]) -> bool:
        label = self.columns.label
        return label is not None and set(names_in(label, row)) <= set(row)

    def _id_column(self, row: Mapping[str, Any]) -> str | None:
        """The column of the ids: the one that is named, or one with a usual name."""
        if self.id_column is not None:
            return self.id_column if self.id_column in row else None
        taken = [one for named in self.columns.chosen().values() for one in names_in(named, row)]
        return id_column(name for name in row if name not in taken)

    def read(self, row: Mapping[str, Any], where: str, number: int) -> LabelledText:
        """Read one row of a user's input: a row of such a table, or a bare text.

        Raises:
            DataError: A field is missing or holds no text, or an id is no id.
        """
        row = self._by_column(row, where)
        return self._read(row, where, number, self._id_column(row), labelled=False)

    def _by_column(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """A bare text, or the texts of a tuple (`text1`, …), as a row of the table."""
        columns = [name for name in (self.columns.text, self.columns.pair) if name is not None]
        bare = ["text"] if set(row) == {"text"} else [f"text{n + 1}" for n in range(len(row))]
        named = {part for name in columns for part in names_in(name, row)}
        if set(row) != set(bare) or named <= set(row):
            return row
        if len(bare) != len(columns):
            raise DataError(
                f"{where}: expected {_texts_of(columns)}, got {counted(len(bare), 'text')}"
            )
        return dict(zip(columns, (row[name] for name in bare), strict=True))

    def _read(
        self,
        row: Mapping[str, Any],
        where: str,
        number: int,
        ids: str | None,
        *,
        labelled: bool = True,
    ) -> LabelledText:
        sides = [name for name in (self.columns.text, self.columns.pair) if name is not None]
        texts: tuple[str, ...] = ()
        if not (self.drop_missing and any(_is_null(row, name) for name in sides)):
            texts = tuple(_joined(row, name, where) for name in sides)
        identity = number if ids is None else row_id(row.get(ids), where)
        label = self._label(row, where) if labelled else None
        return LabelledText(where, identity, texts, label)

    def _label(self, row: Mapping[str, Any], where: str) -> Any:
        """What the label column holds; of several, the names of those that hold 1."""
        if self.columns.label is None or not self._has_label(row):
            return None
        names = names_in(self.columns.label, row)
        if len(names) == 1:
            return row[names[0]]
        return [name for name in names if _holds(row, name, where)]


def _texts_of(columns: Sequence[str]) -> str:
    fields = ", ".join(f"'{name}'" for name in columns)
    if len(columns) == 1:
        return f"1 text (the field {fields})"
    return f"{len(columns)} texts (the fields {fields}; in Python also a tuple)"


def _header_place(path: Path, first_row: str) -> str:
    """Where the columns are named: in a table's first line, or by the fields of the first row."""
    return first_row if kind_of(path) == "jsonl" else f"{path}:1"


def _holds(row: Mapping[str, Any], column: str, where: str) -> bool:
    holds = as_indicator(row[column])
    if holds is None:
        raise DataError(
            f"{where}: expected 0 or 1 in '{column}', one of several label columns, got "
            f"'{str(row[column])[:60]}'; correct the row"
        )
    return holds


def _is_null(row: Mapping[str, Any], named: str) -> bool:
    names = names_in(named, row)
    return all(name in row and row[name] is None for name in names)


def _joined(row: Mapping[str, Any], named: str, where: str) -> str:
    """The text of a column, or those of several, as far as they are not null."""
    names = names_in(named, row)
    some = [name for name in names if row.get(name, "") is not None] or names
    return " ".join(_text(row, name, where) for name in some)


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    if column not in row:
        fields = ", ".join(f"'{name}'" for name in row) or "none"
        raise DataError(f"{where}: expected a field '{column}', got {fields}")
    text = row[column]
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise DataError(f"{where}: expected text in '{column}', got {kind}")
    return text


def row_id(raw: Any, where: str) -> int | str:
    """Read a row's own id; a whole number becomes one if it is written the usual way.

    Raises:
        DataError: It is empty, or neither text nor a whole number.
    """
    if isinstance(raw, str) and raw:
        is_number = raw.isdecimal() and len(raw) <= LONGEST_NUMBER and str(int(raw)) == raw
        return int(raw) if is_number else raw
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    shown = "none" if raw is None or raw == "" else str(raw)[:60]
    raise DataError(f"{where}: expected an id, text or a whole number, got {shown}")
