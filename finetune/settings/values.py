"""The values of settings: read from YAML and from the text of flags, checked, in plain words.

The text of a YAML file becomes values by the rules of YAML 1.2: `1e-4` is a number, and `no` or
`on` are words (which a true-or-false setting understands).

Annotations known here: bool, int, float, str, Path, Literal, lists and tuples of them, and unions
(`int | None`). A list of numbers may be written as text with commas (`1,2,3`), and a single value
stands for a list of one.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import yaml

from finetune.console.output import printable, quoted
from finetune.errors import ConfigError, nearest
from finetune.files.placeholders import refuse_placeholder_file

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_TRUE, _FALSE, _NONE = {"true", "yes", "on"}, {"false", "no", "off"}, {"none", "null"}


def convert(value: object, annotation: Any) -> Any:
    """Turn what was written into a value of the annotated type.

    Args:
        value: The text of a flag, or what the YAML loader read.
        annotation: The setting's type.

    Returns:
        A value of that type: `"3"` for an int is 3, `"none"` for an optional setting is None.

    Raises:
        ValueError: It is of another type; the message is half a sentence ("found 'fast'").
        TypeError: The annotation is none of those that a setting may have.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, annotation)
    if origin is typing.Literal:
        return _convert_literal(value, typing.get_args(annotation))
    if is_list(annotation):
        return _convert_list(value, annotation)
    if annotation not in _CONVERTERS:
        raise TypeError(f"a setting cannot be of type {annotation}")
    return _CONVERTERS[annotation](value)


def converted(value: object, annotation: Any, where: str) -> Any:
    """A value as the type that a setting has; `where` names it in the error."""
    try:
        return convert(value, annotation)
    except ValueError as error:
        raise ConfigError(f"{where}: expected {expected(annotation)}, {error}") from None


def narrowed(annotation: Any, words: Collection[str] | None) -> Any:
    """The annotation of a text that is one of some words; any other as it is."""
    if not words:
        return annotation
    literal: Any = typing.Literal
    one_of = literal[tuple(words)]
    return one_of | None if is_optional(annotation) else one_of


def expected(annotation: Any) -> str:
    """Say in plain words what an annotation allows: "a whole number or none"."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        words = [expected(part) for part in typing.get_args(annotation) if part is not type(None)]
        return " or ".join(words + ["none"] * is_optional(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        choices = [show(choice) for choice in typing.get_args(annotation)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if is_list(annotation):
        items = typing.get_args(annotation)
        fixed = typing.get_origin(annotation) is tuple and items[-1] is not Ellipsis
        return f"a list of {len(items)} values" if fixed else f"a list, each {expected(items[0])}"
    return _WORDS[annotation]


def show(value: object, quoted: bool = False) -> str:
    """Write a value as a user would in YAML; text in quotes if asked for."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(item, quoted) for item in value)}]"
    if isinstance(value, str) and (quoted or not value):
        return repr(value)
    return str(value)


def is_optional(annotation: Any) -> bool:
    """Whether None is among the values that an annotation allows."""
    return type(None) in typing.get_args(annotation)


def without_none(annotation: Any) -> Any:
    """Return what an optional annotation allows besides None; any other one as it is."""
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    return parts[0] if is_optional(annotation) and len(parts) == 1 else annotation


def is_list(annotation: Any) -> bool:
    """Whether an annotation is `list[…]` or `tuple[…]`."""
    return typing.get_origin(annotation) in (list, tuple)


def _found(value: object, hint: str = "") -> ValueError:
    return ValueError(f"got {quoted(value)}{hint}")


def _convert_union(value: object, annotation: Any) -> Any:
    if is_optional(annotation) and (value is None or str(value).lower() in _NONE):
        return None
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    if len(parts) == 1:
        return convert(value, parts[0])
    # The narrower first: "2" for `int | str` is a number, "auto" is text.
    for part in sorted(parts, key=lambda part: part in (str, Path)):
        try:
            return convert(value, part)
        except ValueError:
            continue
    raise _found(value)


def _convert_literal(value: object, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if show(choice) == show(value):
            return choice
    words = [show(choice) for choice in choices]
    hint = nearest(show(value), words)
    raise _found(value, f"; {hint}" if hint.startswith("did you mean") else "")


def _convert_list(value: object, annotation: Any) -> Any:
    container, items = typing.get_origin(annotation), typing.get_args(annotation)
    values = value if isinstance(value, list | tuple) else [value]
    if items[0] in (int, float):
        values = [part for item in values for part in _split_at_commas(item)]
    if container is list or items[-1] is Ellipsis:
        return container(convert(item, items[0]) for item in values)
    if len(values) != len(items):
        raise _found(value)
    return tuple(convert(item, kind) for item, kind in zip(values, items, strict=True))


def _split_at_commas(item: object) -> list[object]:
    return [part.strip() for part in item.split(",")] if isinstance(item, str) else [item]


def _convert_bool(value: object) -> bool:
    word = str(value).lower()
    if isinstance(value, bool | str) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise _found(value)


def _convert_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # exact, however long
    number = _convert_float(value)
    if not number.is_integer():
        raise _found(value)
    return int(value) if isinstance(value, str) and value.strip("+-").isdigit() else int(number)


def _convert_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _found(value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _found(value) from None
    if math.isnan(number):
        raise _found(value)
    return number


def _convert_str(value: object) -> str:
    if isinstance(value, bool | int | float):
        raise _found(value, "; write it in quotes")
    if not isinstance(value, str):
        raise _found(value)
    return value


def _convert_path(value: object) -> Path:
    if not isinstance(value, str | Path) or value == "":
        raise _found(value)
    return Path(value).expanduser()


_CONVERTERS: dict[Any, Callable[[object], Any]] = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
    Path: _convert_path,
}


class _Loader(yaml.SafeLoader):
    """Reads scalars by YAML 1.2's core schema; refuses aliases, and a key that is given twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # a few lines of them can stand for gigabytes
            events: Any = self  # whose types leave this out
            problem = "expected values, got an alias (*name); write the value out"
            raise yaml.composer.ComposerError(None, None, problem, events.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError):  # `!!int x`; 5,000 digits
            problem = f"expected a value of type {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in lines:
                problem = f"key '{key.value}' is given twice, first in line {lines[key.value]}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN)"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)
for _reader_or_writer in (_Loader, _Dumper):
    _reader_or_writer.yaml_implicit_resolvers = {}  # PyYAML's own are those of YAML 1.1
for _tag, _pattern, _first in _SCALARS:
    for _reader_or_writer in (_Loader, _Dumper):
        _reader_or_writer.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
        )


_LONGEST = 1 << 20
"""Bytes of a YAML file: the longest of ours has three thousand."""


@functools.lru_cache(maxsize=16)
def _parsed(text: bytes) -> Any:
    """What a text says; a run's settings are asked for several times."""
    return yaml.load(text, Loader=_Loader)


def load(file: Path) -> Any:
    """Read a YAML file; an empty one is an empty mapping.

    Raises:
        ConfigError: The file cannot be read, is no YAML, is far too long, or gives a key twice;
            with file and line.
    """
    refuse_placeholder_file(file, ConfigError)
    try:
        with file.open("rb") as stream:
            text = stream.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ConfigError(f"{file}: expected settings, got more than {_LONGEST:,} bytes")
        content = copy.deepcopy(_parsed(text))
    except RecursionError:
        raise ConfigError(f"{file}: expected settings, got values nested too deeply") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{file}{line}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from None
    return {} if content is None else content


def write(value: object) -> str:
    """Write mappings, lists and scalars as YAML text that `load` reads back as they are."""

    def dumped(*, allow_unicode: bool) -> str:
        text = yaml.dump(
            value, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=100
        )
        return str(text)

    text = dumped(allow_unicode=True)
    # Control characters are escaped by YAML itself, what turns the direction of a text is not.
    return text if printable(text) == text else dumped(allow_unicode=False)
