"""What the label column of a table holds: one class a row, several, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from finetune.errors import DataError
from tasks.labelled_texts import LabelledText

CLASSES, MULTI_LABEL, REGRESSION = "classes", "multi_label", "regression"
KINDS = (CLASSES, MULTI_LABEL, REGRESSION)

MANY_VALUES = 20
"""Whole numbers are amounts, not class numbers, where more of them differ than this …"""
ROWS_PER_CLASS = 10
"""… and there are fewer rows than this for each on average."""


def find_kind(rows: Sequence[LabelledText], separator: str | None = None) -> str:
    """Tell by the labels of the training rows what they are; the rule of `kind: auto`.

    1. Several classes a row, where a separator is given or a label is a list.
    2. A number, where all labels read as numbers and at least one of them is written with a decimal
       point or an exponent, or there are more than 20 different ones and fewer than 10 rows for
       each of them.
    3. One class a row otherwise.

    Args:
        rows: The training rows, each with a label.
        separator: What joins the classes of a row, where the user names it.

    Returns:
        One of `KINDS`.

    Raises:
        DataError: Among numbers there is NaN, an infinity, or (where at least half of the labels
            have a decimal point) a word: a kind cannot be told.
    """
    if separator is not None or any(isinstance(row.label, list) for row in rows):
        return MULTI_LABEL
    numbers = [_number(row.label) for row in rows]
    fractions = sum(
        number is not None and _is_fraction(row.label)
        for row, number in zip(rows, numbers, strict=True)
    )
    if None not in numbers:
        _refuse(rows, [not math.isfinite(number or 0) for number in numbers])
        return REGRESSION if fractions or _are_many(numbers) else CLASSES
    if 2 * fractions >= len(rows):
        _refuse(rows, [number is None for number in numbers])
    return CLASSES


def _are_many(numbers: Sequence[float | None]) -> bool:
    values = len(set(numbers))
    return values > MANY_VALUES and len(numbers) < ROWS_PER_CLASS * values


def _refuse(rows: Sequence[LabelledText], odd: Sequence[bool]) -> None:
    """Stop at a label that makes it unclear whether the column holds numbers or names."""
    for row, is_odd in zip(rows, odd, strict=True):
        if is_odd:
            raise DataError(
                f"{row.where}: expected a finite number as the other labels are, found "
                f"'{row.label}'; mend the row, or say --kind classes if it is a class's name"
            )


def _number(raw: Any) -> float | None:
    """The number that a label is; None where it is none."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    if isinstance(raw, str) and "_" in raw:  # Python reads 1_000, no table means it
        return None
    try:
        return float(raw)
    except (ValueError, OverflowError):
        return None


def _is_fraction(raw: Any) -> bool:
    """Whether a number is written as no whole one."""
    return isinstance(raw, float) or (isinstance(raw, str) and any(c in raw for c in ".eE"))


def read_number(raw: Any, where: str) -> float:
    """Read a label of a regression.

    Raises:
        DataError: It is no finite number.
    """
    number = _number(raw)
    if number is None or not math.isfinite(number):
        raise DataError(
            f"{where}: expected a finite number as the label, found {_shown(raw)}; mend the row"
        )
    return number


def read_class(raw: Any, where: str) -> str:
    """Read the name of a class; spaces around it are dropped, 1 and true are names too.

    Raises:
        DataError: It is empty, or a list or an object.
    """
    name = _class_name(raw)
    if not name:
        raise DataError(f"{where}: expected a class as the label, found {_shown(raw)}")
    return name


def read_classes(raw: Any, separator: str | None, where: str) -> tuple[str, ...]:
    """Read the names of the classes of a row, none or several, in `class_order`.

    Args:
        raw: A list, or text in which `separator` joins the names; empty parts are dropped, and a
            class named twice counts once.
        separator: What joins the names in a text.
        where: `FILE:LINE`, for the message.

    Raises:
        DataError: It is neither, or there is no separator to cut a text at.
    """
    if isinstance(raw, list):
        return tuple(class_order({read_class(name, where) for name in raw}))
    if not isinstance(raw, str):
        raise DataError(
            f"{where}: expected a list of classes as the label, found {_shown(raw)}; write [] "
            "where none holds"
        )
    if separator is None:
        raise DataError(
            f"{where}: expected a list of classes as the label, found {_shown(raw)}; "
            "--separator says what joins the classes in a text, such as ';'"
        )
    return tuple(class_order({name.strip() for name in raw.split(separator) if name.strip()}))


def class_order(names: Iterable[str]) -> list[str]:
    """Sort names of classes: numbers by their value, then words by their letters."""

    def key(name: str) -> tuple[float, str]:
        number = _number(name)
        return (math.inf if number is None or not math.isfinite(number) else number, name)

    return sorted(names, key=key)


def balanced_weights(labels: Sequence[str], names: Sequence[str]) -> list[float]:
    """The weights that make all classes count alike: N / (C n) for a class of n examples.

    Args:
        labels: The class of each of N training examples.
        names: The C classes.

    Returns:
        (C,); over the training examples they are 1 on average.
    """
    return [len(labels) / (len(names) * max(1, labels.count(name))) for name in names]


def _class_name(raw: Any) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()  # as JSON writes it
    return str(raw).strip() if isinstance(raw, int | float | str) else ""


def _shown(raw: Any) -> str:
    if raw is None:
        return "null"
    if isinstance(raw, str):
        return f"'{raw[:60]}'" if raw.strip() else "an empty cell"
    return "a list" if isinstance(raw, list) else f"{raw}"[:60]
