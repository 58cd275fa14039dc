"""Plain text tables of at most 80 columns for the terminal."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from finetune.console.output import printable

WIDTH = 80
"""Columns of a terminal."""
NARROWEST = 8
"""Columns that are left of a name that is cut."""
GAP = "  "
COLOURS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Name -> number of the ANSI foreground colour."""


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that a stream is, 80 at least; 80 where it is a file or a pipe."""
    if not stream.isatty():
        return WIDTH
    return max(WIDTH, shutil.get_terminal_size().columns)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: two for a Chinese character, none for a mark."""
    return sum(
        0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF")
        for sign in text
    )


def _cut(text: str, width: int) -> str:
    """A text's beginning, where all of it takes more columns."""
    if columns_of(text) <= width:
        return text
    while columns_of(text) >= width:
        text = text[:-1]
    return f"{text}…"


def aligned(table: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lay cells out in columns; `sides` has < (left) or > (right) for each."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=False)
        ).rstrip()
        for line in table
    ]


def table(rows: Iterable[Sequence[str]], header: Sequence[str], width: int = WIDTH) -> str:
    """Lay out a table in plain text: the first column to the left, numbers to the right.

    What is too wide continues below, with the first column repeated; a cell of the first column
    that leaves no space for another one is cut.

    Args:
        rows: Of as many cells as the header.
        header: Names of the columns.
        width: Columns of text at most, unless a single cell is wider.
    """
    lines = [[printable(cell, lines=False) for cell in line] for line in (header, *rows)]
    widths = [max(columns_of(line[column]) for line in lines) for column in range(len(header))]
    widest = max(widths[1:], default=-len(GAP))
    widths[0] = min(widths[0], max(width - widest - len(GAP), NARROWEST))
    for line in lines:
        line[0] = _cut(line[0], widths[0])
    return "\n\n".join(_block(lines, widths, columns) for columns in _folded(widths, width))


def _folded(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns that stand beside the first one, a block at a time."""
    columns: list[int] = []
    taken = widths[0]
    for column in range(1, len(widths)):
        taken += len(GAP) + widths[column]
        if taken > width and columns:
            yield columns
            columns, taken = [], widths[0] + len(GAP) + widths[column]
        columns.append(column)
    yield columns


def _block(lines: Sequence[Sequence[str]], widths: Sequence[int], columns: Sequence[int]) -> str:
    text = []
    for line in lines:
        spaces = {column: " " * (widths[column] - columns_of(line[column])) for column in columns}
        cells = [f"{spaces[column]}{line[column]}" for column in columns]
        first = line[0] + " " * (widths[0] - columns_of(line[0]))
        text.append(GAP.join([first, *cells]).rstrip())
    text.insert(1, GAP.join("-" * widths[column] for column in (0, *columns)))
    return "\n".join(text)


def shows_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that has colours, and the user wants them (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def painted(text: str, colour: str, stream: TextIO) -> str:
    """Text in a colour where a stream shows colours, elsewhere as it is.

    Args:
        text: What is to be written.
        colour: One of `COLOURS`.
        stream: Where it is to be written.
    """
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if shows_colours(stream) else text
