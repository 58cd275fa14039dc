"""How the label column of a table is read: decided once, from all its rows in all files.

What may be a misreading stops the run with the flag that goes on, or is a warning
(`tasks.own.label_warnings`). Nothing depends on the order of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from finetune.errors import DataError
from finetune.task.interface import Label
from tasks.own.label_kinds import (
    CLASSES,
    MULTI_LABEL,
    REGRESSION,
    as_number,
    class_name,
    is_decimal_comma,
    list_in_text,
    looks_like_list,
    read_class,
    read_classes,
    read_number,
    shown,
    whole_name,
)
from tasks.own.labelled_texts import LabelledText
from tasks.sources.reader import line_list

MISSING = ("error", "drop", "class")
"""What becomes of rows without a label: an error; left out; or their marks are names of classes."""
MARKS = ("-", "-1", "nan")
"""What stands in public sets where a row has no label, besides an empty cell."""

MANY_VALUES = 20
"""Whole numbers are amounts, not class numbers, where more of them differ than this …"""
ROWS_PER_CLASS = 10
"""… and there are fewer rows than this for each on average."""

Rows = Sequence[LabelledText]


@dataclass(frozen=True)
class LabelColumn:
    """How labels are read."""

    kind: str
    """One of `label_kinds.KINDS`."""
    separator: str | None = None
    """What joins the classes of a row in a text."""
    marks: frozenset[str] = frozenset()
    """Besides an empty cell, what stands where a row has no label."""
    is_whole: bool = False
    """The classes are whole numbers, in whatever spelling: 1, 1.0."""
    decimal_commas: bool = False
    """The comma is a decimal sign in this table."""

    def is_unlabeled(self, raw: object) -> bool:
        """Whether a cell holds no label."""
        if isinstance(raw, str) and not raw.strip():  # with a separator: no class holds
            return self.kind != MULTI_LABEL or self.separator is None
        return raw is None or _mark(raw) in self.marks

    def read(self, raw: object, where: str) -> Label:
        """Read a label that is there.

        Raises:
            DataError: It is not of the column's kind.
        """
        if self.kind == REGRESSION:
            return read_number(raw, where)
        if self.kind == MULTI_LABEL:
            return read_classes(raw, self.separator, where)
        return self.plain(read_class(raw, where))

    def plain(self, name: str) -> str:
        """The name of a class in the column's own spelling."""
        return (self.is_whole and whole_name(name, commas=self.decimal_commas)) or name


def find_column(
    splits: Mapping[str, Rows],
    *,
    kind: str = "auto",
    separator: str | None = None,
    missing: str = "error",
    decimal_commas: bool = False,
) -> LabelColumn:
    """Tell how labels are read by all rows that there are.

    Args:
        splits: Split -> its rows; those of a test file may lack their labels.
        kind: One of `KINDS`, or `auto`: see `find_kind`.
        separator: What joins the classes of a row, where the user names it.
        missing: One of `MISSING`.
        decimal_commas: Whether the table is one that has decimal commas.

    Raises:
        DataError: The kind is unclear; the message names the flags that set it.
    """
    rows = [row for own in splits.values() for row in own]
    names = {_mark(row.label) for row in rows}
    learnt = {_mark(row.label) for row in splits["train"]}
    marks = frozenset() if missing == "class" else _marks(names)
    labelled = [row for row in rows if not _is_empty(row.label) and _mark(row.label) not in marks]
    if kind == "auto":
        kind = find_kind(labelled, separator, decimal_commas=decimal_commas)
    if (
        kind != REGRESSION
        and missing != "class"
        and _is_minus_a_mark(names - marks, learnt, missing)
    ):
        marks |= {"-1"}
        labelled = [row for row in labelled if _mark(row.label) != "-1"]
    whole = [whole_name(class_name(row.label), commas=decimal_commas) for row in labelled]
    is_whole = kind == CLASSES and None not in whole
    return LabelColumn(kind, separator, marks, is_whole, decimal_commas)


def known_column(
    labels: Sequence[str],
    kind: str,
    *,
    separator: str | None = None,
    missing: str = "error",
    decimal_commas: bool = False,
) -> LabelColumn:
    """How labels are read for a head that has learnt its classes, whatever the files hold."""
    marks = frozenset() if missing == "class" else frozenset(MARKS) - set(labels)
    if kind == REGRESSION:
        marks -= {"-1"}
    is_whole = bool(labels) and all(whole_name(name) == name for name in labels)
    return LabelColumn(kind, separator, marks, kind == CLASSES and is_whole, decimal_commas)


def find_kind(rows: Rows, separator: str | None = None, *, decimal_commas: bool = False) -> str:
    """Tell by the labels what they are; the rule of `kind: auto`.

    1. Several classes a row, where a separator is given or labels are lists, in JSON or in text.
    2. A number, where all labels read as numbers and at least one of them is no whole number, or
       there are more than 20 different ones and fewer than 10 rows for each of them. A comma is a
       decimal sign in a table whose separator is the semicolon.
    3. One class a row otherwise.

    Args:
        rows: Rows, each with a label.
        separator: What joins the classes of a row, where the user names it.
        decimal_commas: Whether the table is one that has decimal commas.

    Returns:
        One of `KINDS`.

    Raises:
        DataError: Some labels are lists and others are not; among numbers there is an infinity, or
            (where at least half of the labels have a decimal point) a word; numbers have a decimal
            comma in a table that is separated by commas; or most of many classes have one example.
    """
    if separator is not None or any(isinstance(row.label, list) for row in rows):
        return MULTI_LABEL
    if _are_lists(rows):
        return MULTI_LABEL
    if _have_commas(rows):
        if not decimal_commas:
            raise _unclear_comma(rows)
        numbers = [read_number(row.label, row.where) for row in rows]
    else:
        read = [as_number(row.label) for row in rows]
        decimals = [
            number is not None and math.isfinite(number) and _has_decimals(row.label)
            for row, number in zip(rows, read, strict=True)
        ]
        if None in read and 2 * sum(decimals) >= len(rows) > 0:
            _refuse(rows, [number is None for number in read])
        numbers = [number for number in read if number is not None]
    if numbers and len(numbers) == len(rows):
        _refuse(rows, [not math.isfinite(number) for number in numbers])
        if any(number % 1 for number in numbers) or _are_many(numbers):
            return REGRESSION
    _refuse_single_classes(rows)
    return CLASSES


def check_commas(rows: Rows) -> None:
    """Refuse numbers of a regression in which it is unclear what a comma is.

    Raises:
        DataError: All commas may part thousands, or some numbers have points in place of commas.
    """
    with_comma = [row for row in rows if is_decimal_comma(row.label)]
    if not with_comma:
        return
    first = with_comma[0]
    points = [row for row in rows if isinstance(row.label, float) or "." in str(row.label)]
    if points:
        raise DataError(
            f"{first.where}: expected one decimal sign, got {shown(first.label)} here and "
            f"{shown(points[0].label)} in {points[0].where}; write all numbers with a point"
        )
    if all(_may_be_thousand(row.label) for row in with_comma):
        raise DataError(
            f"{first.where}: expected a number, got {shown(first.label)}, of which the comma may "
            "part thousands or decimals; write numbers with a point and without commas"
        )


def unlabeled_error(unlabeled: Rows, count: int, column: LabelColumn) -> DataError:
    """The notice about rows without a label where nobody asked to leave them out.

    Args:
        unlabeled: The rows, at least one.
        count: Of all rows in their file.
        column: How labels are read.
    """
    first = unlabeled[0]
    is_mark = not _is_empty(first.label)
    sign = ", which usually marks a row without a label" if is_mark else ""
    other = "; --missing class reads it as the name of a class" if is_mark else ""
    if column.kind == MULTI_LABEL:
        other += "; [] says that no class applies"
    cell = shown(first.label) if is_mark or first.label is not None else "none"
    return DataError(
        f"{first.where}: expected a label, got {cell}{sign} (in {len(unlabeled):,} of {count:,} "
        f"rows{line_list([row.where for row in unlabeled])}); --missing drop leaves such rows out"
        f"{other}"
    )


def check_header(rows: Rows, names: Iterable[str], label_column: str) -> None:
    """Refuse a row that says the names of the columns, whatever their capitals.

    Args:
        rows: Rows with a label.
        names: Of the columns of the texts, in order.
        label_column: That of the label.

    Raises:
        DataError: There is such a row.
    """
    header = [name.strip().casefold() for name in (*names, label_column)]
    for row in rows:
        cells = [*row.texts, class_name(row.label)]
        if [cell.strip().casefold() for cell in cells] == header:
            raise DataError(
                f"{row.where}: expected a text and its label, got the names of the columns "
                f"({', '.join(header)}); remove this line"
            )


def _is_empty(raw: object) -> bool:
    return raw is None or (isinstance(raw, str) and not raw.strip())


def _mark(raw: object) -> str:
    """A label in the spelling of `MARKS`."""
    name = class_name(raw)
    if name.casefold() == "nan":
        return "nan"
    return whole_name(name) or name


def _marks(names: set[str]) -> frozenset[str]:
    """Which marks stand for no label, whatever the kind; '-' beside '+' is a class."""
    return frozenset({"nan", "-"} if "+" not in names else {"nan"})


def _is_minus_a_mark(names: set[str], learnt: set[str], missing: str) -> bool:
    """Whether -1 stands for no label: the classes are numbers from 0 on.

    Of -1, 0 and 1 in training data nobody can know; they are classes unless rows without a label
    are to be left out.
    """
    others = {name for name in names if name} - {"-1"}
    numbers = others and all(name.isascii() and name.isdecimal() for name in others)
    if "-1" not in names or not numbers or "0" not in others:
        return False
    return missing == "drop" or others != {"0", "1"} or "-1" not in learnt


def _are_lists(rows: Rows) -> bool:
    """Whether the labels are lists in text.

    Raises:
        DataError: Some are, and others are not.
    """
    like_lists = [row for row in rows if looks_like_list(row.label)]
    read = [list_in_text(row.label) for row in rows]
    lists = len(read) - read.count(None)
    if not lists and 2 * len(like_lists) < len(rows) or not like_lists:
        return False
    if None in read:
        odd = rows[read.index(None)]
        raise DataError(
            f"{odd.where}: expected a list of classes such as ['a', 'b'], as {lists:,} of "
            f"{len(rows):,} labels are, got {shown(odd.label)}; write all labels so, or join the "
            "classes of a row by a --separator, or say --kind classes if each is one class"
        )
    return True


def _have_commas(rows: Rows) -> bool:
    """Whether all labels are numbers, some of them with a comma."""
    commas = [is_decimal_comma(row.label) for row in rows]
    return any(commas) and all(
        comma or as_number(row.label) is not None for row, comma in zip(rows, commas, strict=True)
    )


def _unclear_comma(rows: Rows) -> DataError:
    row = next(row for row in rows if is_decimal_comma(row.label))
    return DataError(
        f"{row.where}: expected a class or a number with a decimal point, got "
        f"{shown(row.label)}; say --kind regression if the comma is a decimal sign, --separator , "
        "if it joins two classes, or --kind classes if this is one class"
    )


def _has_decimals(raw: object) -> bool:
    """Whether a number is written as an amount, also where it is whole: 1.0."""
    return isinstance(raw, float) or (isinstance(raw, str) and any(c in raw for c in ".eE"))


def _may_be_thousand(raw: object) -> bool:
    whole, _, decimals = str(raw).strip().lstrip("+-").partition(",")
    return len(decimals) == 3 and len(whole) <= 3 and not whole.startswith("0")


def _are_many(numbers: Sequence[float]) -> bool:
    values = len(set(numbers))
    return values > MANY_VALUES and len(numbers) < ROWS_PER_CLASS * values


def _refuse(rows: Rows, odd: Sequence[bool]) -> None:
    """Stop at a label that makes it unclear whether the column holds numbers or names."""
    for row, is_odd in zip(rows, odd, strict=True):
        if is_odd:
            raise DataError(
                f"{row.where}: expected a finite number as the other labels are, got "
                f"'{row.label}'; correct the row, or say --kind classes if it is a class's name"
            )


def _refuse_single_classes(rows: Rows) -> None:
    """Stop where most of many classes have one example: such a column rather holds texts."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[class_name(row.label)] = counts.get(class_name(row.label), 0) + 1
    single = sum(count == 1 for count in counts.values())
    if len(counts) > MANY_VALUES and 2 * single > len(counts):
        raise DataError(
            f"{rows[0].where}: expected a column of classes, got {len(counts):,} different "
            f"labels in {len(rows):,} rows, {single:,} of them once; name another column by "
            "--label-column, or say --kind classes if they are classes"
        )
