"""The values that a setting may have; its range is written beside the field.

`check_values` is the one check of them. Every dataclass of settings calls it when it is made, so
that a flag, a YAML key, a field of config.json and an argument in Python meet the same check.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from finetune.console.output import quoted
from finetune.errors import ConfigError, nearest

MOST_STEPS = 10**12
"""Steps, epochs or batches: more than any run takes, and far from where whole numbers overflow."""
MOST_SEED = 2**63 - 1
"""The largest whole number of 64 bits, as generators of random numbers take it."""
MOST_TOKENS = 1_000_000
"""Tokens of a sequence."""


@dataclass(frozen=True)
class Range:
    """All numbers between two, these included unless it is said otherwise."""

    least: float
    most: float
    above: bool = False
    """The least one itself is not allowed."""
    below: bool = False
    """The most one itself is not allowed."""
    hint: str = ""
    """What to choose instead, for the message."""

    def allows(self, number: float) -> bool:
        """Whether a number lies in the range; nan lies in none."""
        over = number > self.least if self.above else number >= self.least
        under = number < self.most if self.below else number <= self.most
        return over and under

    def __str__(self) -> str:
        """The range in words: `from 1 to 1,000`, `above 0 and below 1`."""
        least, most = _number(self.least), _number(self.most)
        if self.above:
            return f"above {least} and {'below' if self.below else 'at most'} {most}"
        return f"from {least} to {'below ' * self.below}{most}"


def within(
    least: float,
    most: float,
    *,
    default: Any = dataclasses.MISSING,
    above: bool = False,
    below: bool = False,
    hint: str = "",
    kw_only: bool = False,
    **metadata: Any,
) -> Any:
    """A field of a dataclass whose number, or each of whose numbers, lies in a range.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Toy:
    ...     heads: int = within(1, 64, default=2)
    ...     def __post_init__(self) -> None:
    ...         check_values(self)
    >>> Toy(heads=0)
    Traceback (most recent call last):
    finetune.errors.ConfigError: heads must be a whole number from 1 to 64, got 0

    Args:
        least: The least number.
        most: The most; both are allowed unless `above` or `below` say otherwise.
        default: The field's default.
        above: The least number itself is not allowed.
        below: The most number itself is not allowed.
        hint: What to choose instead, for the message.
        kw_only: The field is given by its name alone, so that those after it keep their place.
        metadata: More metadata of the field, as `finetune.settings.fields` reads it.
    """
    allowed = Range(least, most, above, below, hint)
    more = {"range": allowed, **metadata}
    return field(default=default, kw_only=kw_only, metadata=more)


def check_values(instance: Any) -> None:
    """Refuse a value of another type than its field, outside its range or table, or unwritable.

    Args:
        instance: A dataclass whose annotations are those that `finetune.settings.values` knows; its
            sections check themselves.

    Raises:
        ConfigError: Names the field, what is allowed, and the value that was found.
    """
    annotations = typing.get_type_hints(type(instance))
    for each in filter(lambda each: each.init, dataclasses.fields(instance)):
        value, annotation = getattr(instance, each.name), annotations[each.name]
        allowed = each.metadata.get("range")
        if not _fits(value, annotation) or not _in_range(value, allowed):
            raise _refused(each.name, value, annotation, allowed)
        words = each.metadata.get("words")
        if words and isinstance(value, str) and value not in words:
            raise not_among(each.name, value, words)
        if any(not can_be_written(text) for text in _texts(value)):
            raise ConfigError(
                f"{each.name} must be text without NUL or half characters (lone surrogates), "
                f"got {quoted(value)}"
            )


def not_among(name: str, value: object, words: Iterable[str]) -> ConfigError:
    """The error of a value that is none of a table's words.

    Args:
        name: Of what has the value, as it is written.
        value: The value.
        words: The table's.
    """
    words = list(words)
    near = nearest(str(value), words)
    hint = f"; {near}" if near.startswith("did you mean") else ""
    return ConfigError(f"{name} must be one of {', '.join(words)}, got {quoted(value)}{hint}")


def _fits(value: object, annotation: Any) -> bool:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (list, tuple):
        items = isinstance(value, list | tuple)
        return items and all(_fits(item, parts[0]) for item in value)  # type: ignore[attr-defined]
    if annotation in (int, float):
        return isinstance(value, (int, annotation)) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str) or hasattr(value, "__fspath__")
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def _in_range(value: object, allowed: Range | None) -> bool:
    if allowed is None:
        return True
    items = value if isinstance(value, list | tuple) else [value]
    return all(allowed.allows(item) for item in items if isinstance(item, int | float))


def _texts(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, str) or hasattr(item, "__fspath__"):
            yield str(item)


def can_be_written(text: str) -> bool:
    """Whether a text can stand in a path and in a file in UTF-8."""
    return "\0" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)


def _refused(name: str, value: object, annotation: Any, allowed: Range | None) -> ConfigError:
    hint = f"; {allowed.hint}" if allowed is not None and allowed.hint else ""
    return ConfigError(
        f"{name} must be {_expected(annotation, allowed)}, got {quoted(value)}{hint}"
    )


def _expected(annotation: Any, allowed: Range | None) -> str:
    """What an annotation and a range allow, in plain words."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        named = [_expected(part, allowed) for part in parts if part is not type(None)]
        return " or ".join(named + ["none"] * (type(None) in parts))
    if typing.get_origin(annotation) in (list, tuple):
        return f"a list, each {_expected(parts[0], allowed)}"
    if typing.get_origin(annotation) is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    word = words.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return f"{word} {allowed}" if allowed is not None and annotation in (int, float) else word


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) < 10**7:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
