"""What is stable of the files and pages that commands write, as text that a diff can show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

INLINE = ("a", "b", "button", "code", "em", "mark", "small", "span", "strong")
"""Elements whose text goes on in the same line."""
APART = ("button", "span")
"""Those of them that are mostly shown as blocks, or with a distance."""
CELLS = ("td", "th")
VARYING = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([+-]\d\d:\d\d)?": "DATE",
    r"\b\d\d:\d\d\b": "TIME",
    r"\b[0-9a-f]{16,}\b": "HASH",
}
"""What differs from one time or machine to another: pattern -> what stands in its place."""


def normalized(text: str, folders: Mapping[Path, str]) -> str:
    """A text without the places, dates and checksums that are in it.

    Args:
        text: What a command printed, or a file holds.
        folders: What stands in place of each folder's path.
    """
    for folder, name in folders.items():
        text = text.replace(str(folder), name)
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return f"{text.rstrip()}\n"


def sections(parts: Mapping[str, str]) -> str:
    """Several texts as one, each under its heading."""
    return "\n".join(f"== {name}\n{text.rstrip()}\n" for name, text in parts.items())


# Keys


def keys(content: object) -> str:
    """The keys of nested mappings with the types of their values, one a line, sorted.

    >>> print(keys({"b": [{"c": 1}, {"c": None}], "a": "x"}))
    a: str
    b[].c: int | null
    """
    found: dict[str, set[str]] = {}
    for key, kind in _leaves(content, ""):
        found.setdefault(key, set()).add(kind)
    return "\n".join(f"{key}: {' | '.join(sorted(kinds))}" for key, kinds in sorted(found.items()))


def _leaves(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _leaves(inner, f"{key}[]")
    else:
        yield key, {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)


def keys_of_file(path: Path) -> str:
    """The keys of a YAML or JSON file, or of all rows of a JSONL file together."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return keys(yaml.safe_load(text))
    if path.suffix == ".jsonl":
        return keys([json.loads(line) for line in text.splitlines()]).replace("[].", "")
    return keys(json.loads(text))


def tensors(path: Path) -> str:
    """Name, type and shape of each tensor in a file of weights."""
    with safe_open(path, "np") as file:
        views = {name: file.get_slice(name) for name in sorted(file.keys())}
        return "\n".join(f"{n}: {v.get_dtype()} {v.get_shape()}" for n, v in views.items())


def files_below(folder: Path) -> str:
    """The files below a folder, one a line."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(path.relative_to(folder).as_posix() for path in paths)


# Pages


def visible(page: str) -> str:
    """A page's text, a line for each block or table row, and the data of its plots.

    Titles that show when one points at something are in brackets; scripts and styles are left out.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return "\n".join(reader.lines())


def as_lines(value: Any, indent: str = "") -> Iterator[str]:
    """JSON with numbers to six digits and one line for each list or mapping of plain values."""
    if isinstance(value, dict) and any(isinstance(inner, dict | list) for inner in value.values()):
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                yield f"{indent}{key}:"
                yield from as_lines(inner, f"{indent}  ")
            else:
                yield f"{indent}{key}: {_plain(inner)}"
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for inner in value:
            first, *rest = as_lines(inner, f"{indent}  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
    else:
        yield f"{indent}{_plain(value)}"


def _plain(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._data: str | None = None  # JSON of a script element that is being read
        self._is_hidden = False  # in a script or a style

    def lines(self) -> Iterator[str]:
        for line in self._text.splitlines():
            if line.startswith("\0"):  # data, whose spaces stay
                yield line[1:]
            elif line := " ".join(line.split()).removeprefix("| "):
                yield line

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in ("script", "style"):
            self._is_hidden = values.get("type") != "application/json"
            self._data = None if self._is_hidden else ""
        elif tag in CELLS:
            self._text += " | "
        elif tag not in INLINE:
            self._text += "\n"
        elif tag in APART:
            self._text += " "
        if values.get("title"):
            self._text += f"[{values['title']}] "

    def handle_endtag(self, tag: str) -> None:
        if self._data is not None:
            self._text += "".join(f"\n\0  {line}" for line in as_lines(json.loads(self._data)))
            self._data = None
        self._is_hidden = False
        if tag not in INLINE and tag not in CELLS:
            self._text += "\n"

    def handle_data(self, data: str) -> None:
        if self._data is not None:
            self._data += data
        elif not self._is_hidden:
            self._text += data.replace("\n", " ")
