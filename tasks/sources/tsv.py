"""Tab-separated files as GLUE has them: no quotes, no escapes, a line a row.

A CSV reader with quoting would silently merge rows at an unbalanced quote; `str.splitlines` would
cut one at U+0085. Here a line ends at the line feed and a cell at the tab, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from finetune.errors import DataError
from finetune.text.features.rows import refuse_other_file
from tasks.sources.reader import decode, read_bytes


def read_table(
    path: Path,
    *,
    required: Sequence[str],
    headerless: Sequence[str] = (),
    optional: Sequence[str] = (),
    short: list[str] | None = None,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Read the rows of a file that has a header line, or is known to lack one.

    Args:
        path: The file, UTF-8 with or without a byte order mark, gzip-compressed if it ends in .gz.
        required: Columns that a header line must name; the first line is one if it does.
        headerless: The columns of a file without a header line; empty: it must have one.
        optional: Columns that may follow those of `headerless` in a row, all or none.
        short: Takes the place of each row with too few cells, which is skipped; None: an error.

    Yields:
        Each row's place, `FILE:LINE`, and its cells by column, as they stand.

    Raises:
        DataError: The file is unreadable, no text or not UTF-8, the header lacks a required column
            or names one twice, or a row has another number of cells than there are columns or is
            the header once more.
    """
    lines = _lines(path)
    columns, first = _header(path, lines, required, headerless, optional)
    widths = {len(columns), len(columns) - len(optional)} if first == 0 else {len(columns)}
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if short is not None and len(cells) < min(widths):
            short.append(f"{path}:{number}")
            continue
        if len(cells) not in widths:
            raise DataError(
                f"{path}:{number}: expected {_either(widths)} tab-separated columns "
                f"({', '.join(columns)}), got {len(cells)}"
            )
        if first and cells == columns:
            raise DataError(
                f"{path}:{number}: expected a row of values, got the header once more "
                f"({', '.join(columns)[:100]}); remove this line"
            )
        yield f"{path}:{number}", dict(zip(columns, cells, strict=False))


def _header(
    path: Path,
    lines: Sequence[str],
    required: Sequence[str],
    headerless: Sequence[str],
    optional: Sequence[str],
) -> tuple[list[str], int]:
    """Find the columns, and the index of the first row that holds data."""
    if not lines:
        raise DataError(f"{path}: expected a header and rows, got an empty file")
    header = lines[0].split("\t")
    if set(required) <= set(header):
        doubled = [column for column in required if header.count(column) > 1]
        if doubled:
            raise DataError(f"{path}:1: expected one column '{doubled[0]}', got several")
        return header, 1
    if len(header) in (len(headerless), len(headerless) + len(optional)):
        return [*headerless, *optional], 0
    raise DataError(
        f"{path}:1: expected a header that names {', '.join(required)}; "
        f"got the columns {', '.join(header)[:100]}"
    )


def _either(widths: set[int]) -> str:
    return " or ".join(str(width) for width in sorted(widths))


def _lines(path: Path) -> list[str]:
    content = read_bytes(path)
    refuse_other_file(content[:16], f"{path}:1")
    text = decode(content, path).rstrip("\r\n")
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []
