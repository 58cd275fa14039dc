"""What a label of a table is: one class a row, several, or a number; each read off its cell.

What kind of labels a column holds is decided in `tasks.own.label_column`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from finetune.errors import DataError
from finetune.task.interface import Label

CLASSES, MULTI_LABEL, REGRESSION = "classes", "multi_label", "regression"
KINDS = (CLASSES, MULTI_LABEL, REGRESSION)

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
"""A number as it is written where the comma is the decimal sign."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(inf|infinity|nan)", re.A | re.I)
# Programs write 1.5e+16 or 1e-05: what has neither point nor sign is rather a code, such as 10e1.
_CODE = re.compile(r"[+-]?\d+e\d+", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"([+-]?(?:0|[1-9]\d*))(?:[.,]0*)?", re.ASCII)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_BARE = r"[+-]?\d+(?:\.\d*)?|True|False"
_ITEM = re.compile(rf"\s*({_QUOTED}|{_BARE})\s*(,|$)", re.ASCII)
_INDICATORS = {"0", "1", "0.0", "1.0", "true", "false"}


def as_number(raw: Any) -> float | None:
    """The number that a label is beyond doubt; None where it is none, or may be a code (`10e1`)."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    if isinstance(raw, str) and (not _NUMBER.fullmatch(raw.strip()) or is_code(raw)):
        return None
    try:
        return float(raw)
    except OverflowError:
        return None


def is_code(raw: Any) -> bool:
    """Whether a text reads as a number by an exponent that no program would write so."""
    return isinstance(raw, str) and _CODE.fullmatch(raw.strip()) is not None


def whole_name(name: str, *, commas: bool = False) -> str | None:
    """A whole number without its empty decimals: `1` for `1.0` and, on request, for `1,0`.

    Args:
        name: A class as it is written.
        commas: Whether the comma is a decimal sign.

    Returns:
        The plain number; None where the name is none, or has leading zeros.
    """
    match = _WHOLE.fullmatch(name)
    if match is None or ("," in name and not commas):
        return None
    return "0" if match[1] in ("-0", "+0") else match[1].removeprefix("+")


def looks_like_list(raw: Any) -> bool:
    """Whether a text stands in the brackets of a list."""
    return isinstance(raw, str) and raw.strip()[:1] == "[" and raw.strip()[-1:] == "]"


def list_in_text(raw: Any) -> list[Any] | None:
    """The list that a text is written as, by Python (`['a', 'b']`) or JSON; None where it is none.

    numpy's form without commas is none: nobody can know where its names end.
    """
    if not looks_like_list(raw):
        return None
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        return _python_list(raw.strip()[1:-1])
    flat = isinstance(read, list) and not any(isinstance(item, list | dict) for item in read)
    return read if flat else None


def _python_list(inside: str) -> list[Any] | None:
    items: list[Any] = []
    position = 0
    while position < len(inside.rstrip()):
        match = _ITEM.match(inside, position)
        if match is None:
            return None
        text = match[1]
        quoted = text[0] in "'\""
        items.append(re.sub(r"\\(.)", r"\1", text[1:-1]) if quoted else text)
        position = match.end()
    return items


def read_number(raw: Any, where: str) -> float:
    """Read a label of a regression, also one with a decimal comma.

    Raises:
        DataError: It is no finite number.
    """
    number = None
    if not isinstance(raw, bool) and isinstance(raw, int | float | str):
        text = raw.replace(",", ".") if isinstance(raw, str) and is_decimal_comma(raw) else raw
        # Python reads 1_000, no table means it.
        if not (isinstance(text, str) and "_" in text):
            try:
                number = float(text)
            except (ValueError, OverflowError):
                number = None
    if number is None or not math.isfinite(number):
        raise DataError(
            f"{where}: expected a finite number as the label, got {shown(raw)}; correct the row"
        )
    return number


def is_decimal_comma(raw: Any) -> bool:
    """Whether a text is a number with a decimal comma, or a thousand with a separator."""
    return isinstance(raw, str) and DECIMAL_COMMA.fullmatch(raw.strip()) is not None


def read_class(raw: Any, where: str) -> str:
    """Read the name of a class; spaces around it are dropped, 1 and true are names too.

    Raises:
        DataError: It is empty, or a list or an object.
    """
    name = class_name(raw)
    if not name:
        raise DataError(f"{where}: expected a class as the label, got {shown(raw)}")
    return name


def read_classes(raw: Any, separator: str | None, where: str) -> tuple[str, ...]:
    """Read the names of the classes of a row, none or several, in `class_order`.

    Args:
        raw: A list, also one written in a text, or text in which `separator` joins the names; empty
            parts are dropped, and a class named twice counts once.
        separator: What joins the names in a text.
        where: `FILE:LINE`, for the message.

    Raises:
        DataError: It is neither, or has a 0 or 1 for each class, or there is no separator to cut a
            text at.
    """
    if (names := raw if isinstance(raw, list) else list_in_text(raw)) is not None:
        classes = [read_class(name, where) for name in names]
        if len(set(classes)) < len(classes) and set(classes) <= _INDICATORS:
            raise DataError(
                f"{where}: expected the names of the classes that apply, got 0 or 1 for each "
                f"class, {shown(raw)}; write the names, as a list in JSON lines or joined by a "
                "--separator"
            )
        return tuple(class_order(set(classes)))
    if not isinstance(raw, str):
        raise DataError(
            f"{where}: expected a list of classes as the label, got {shown(raw)}; write [] "
            "where none applies"
        )
    if separator is None:
        raise DataError(
            f"{where}: expected a list of classes as the label, got {shown(raw)}; "
            "--separator says what joins the classes in a text, such as ';'"
        )
    return tuple(class_order({name.strip() for name in raw.split(separator) if name.strip()}))


def class_order(names: Iterable[str]) -> list[str]:
    """Sort names of classes: numbers by their value, then words by their letters."""

    def key(name: str) -> tuple[float, str]:
        number = as_number(name)
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


def class_name(raw: Any) -> str:
    """A label as the name of a class; empty where it can be none."""
    if isinstance(raw, bool):
        return str(raw).lower()  # as JSON writes it
    return str(raw).strip() if isinstance(raw, int | float | str) else ""


def shown(raw: Any) -> str:
    """A label as a message quotes it."""
    if raw is None:
        return "null"
    if isinstance(raw, str):
        return f"'{raw[:60]}'" if raw.strip() else "an empty cell"
    return f"{raw}"[:60]


def target_of(label: Label | None, classes: Sequence[str]) -> int | float | list[float] | None:
    """A label as the loss takes it: a class's number, one decision for each class, or a number."""
    if isinstance(label, str):
        return classes.index(label)
    if isinstance(label, tuple):
        return [float(name in label) for name in classes]
    return label
