"""Rows of a user's file, one at a time: CSV, TSV, JSON lines, text (also packed), Parquet, Excel.

A file is UTF-8, with or without a byte order mark, and its lines end in LF or CRLF and in nothing
else: U+0085 and U+2028 are characters of a text. `.csv` follows RFC 4180: a cell in quotes may have
commas, line breaks and doubled quotes, and be of any length; semicolons or tabs may stand in place
of the commas (`text.delimiters`). `.tsv` knows no quotes: a cell ends at the tab. `.jsonl`
(`.ndjson`, `.json`) has an object a line, `.txt` a text a line, empty ones included. An empty line
is no row of the others, except in a TSV of a single column. Each may end in `.gz` as well. One row
is in memory at a time, never a file.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from finetune.errors import ConfigError, DataError, nearest
from finetune.files.placeholders import START, refuse_placeholder
from finetune.files.unpacking import DAMAGED_GZIP, GZIP_MAGIC, lines_of, unpacking, without_sheet
from finetune.text.features.table_files import (
    check_header,
    check_row,
    excel_records,
    explained,
    find_delimiter,
    parquet_rows,
)

STDIN = "-"
PARQUET, EXCEL = "parquet", "excel"
Row = tuple[str, dict[str, Any]]
"""Where a row is, `FILE:LINE`, and its values by field."""
Refuse = Callable[[DataError], None]
"""Is given the error of a row; the next row is read if it returns."""
_Lines = Iterator[str]

KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".parquet": PARQUET,
    ".xlsx": EXCEL,
    ".xlsm": EXCEL,
}
"""Ending of a file's name -> kind of its rows."""

# What csv allows at most; more than any text has, and it fits a C long everywhere.
_ANY_SIZE = 2**31 - 1
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
FROM_UTF16 = "save the file as UTF-8 (iconv -f UTF-16 -t UTF-8 FILE)"
FROM_WINDOWS = (
    "save the file as UTF-8 (Excel's 'CSV UTF-8'; or iconv -f WINDOWS-1252 -t UTF-8 FILE, where "
    "that is its encoding)"
)
"""The way out where a byte is not UTF-8: most such files come from Excel or Windows."""

OTHER_FILES = {
    b"PK\x03\x04": "a ZIP archive, as Excel workbooks (.xlsx) are",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"%PDF-": "a PDF file",
    b"PAR1": "a Parquet file",
    GZIP_MAGIC: "a gzip file whose name lacks .gz",
}
"""What a file begins with that is no text -> what it is."""


def kind_of(path: Path | str) -> str:
    """Read the kind of a file's rows off the ending of its name, `.gz` and `#SHEET` aside.

    Raises:
        DataError: The ending is none of `KINDS`.
    """
    name = without_sheet(path).lower().removesuffix(".gz")
    for ending, kind in KINDS.items():
        if name.endswith(ending):
            return kind
    raise DataError(
        f"{path}: expected a file ending in {', '.join(KINDS)} (or one of them and .gz)"
    )


def refuse(error: DataError) -> None:
    """Stop at the first bad row."""
    raise error


def read_rows(
    path: Path | str, kind: str | None = None, on_error: Refuse = refuse
) -> Iterator[Row]:
    """Read a file's rows in order.

    Args:
        path: The file; `-` for standard input; `FILE.xlsx#SHEET` for one of several sheets.
        kind: `csv`, `tsv`, `jsonl` or `text`; None reads it off the ending of the name, and on
            standard input off the first line: `jsonl` where it begins with `{`, otherwise `text`.
        on_error: Is given what is wrong with a single row; by default it is raised.

    Yields:
        Where each row is, `FILE:LINE` (its first line), and its values: text by column of the
        header, a JSON object, or `{"text": line}`.

    Raises:
        ConfigError: There is no such kind.
        DataError: The file is missing, damaged, no text or not UTF-8; a table has no header, one
            that names a column twice, a row with another number of cells, text behind the last
            named column, the header once more, or a quote that nothing closes; a line of JSON is
            cut, is no object, or names a field twice.
    """
    if kind is not None and kind not in (*READERS, PARQUET, EXCEL):
        raise ConfigError(f"unknown kind of rows '{kind}'; {nearest(kind, READERS)}")
    if kind is None and str(path) != STDIN:
        kind = kind_of(path)
    if kind == PARQUET:
        yield from parquet_rows(Path(path))
        return
    if kind == EXCEL:
        yield from _table(str(path), excel_records(path), None, on_error)
        return
    name = _name(path)
    with _opened(path) as stream:
        lines = _text_lines(name, stream)
        if kind is None and name == "stdin":
            lines, kind = _kind_of_first(lines)
        yield from READERS[str(kind)](name, lines, on_error)


def delimiter_of(path: Path) -> str:
    """Find what separates the cells of a CSV file with a header.

    Raises:
        DataError: The file is missing, damaged or not UTF-8, or its header has two separators.
    """
    with _opened(path) as stream:
        return find_delimiter(str(path), _text_lines(str(path), stream)).delimiter


def read_records(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Read where each row of a CSV or TSV file without a header is, and its cells.

    Raises:
        DataError: As in `read_rows`.
    """
    with _opened(path) as stream:
        yield from RECORDS[kind_of(path)](str(path), _text_lines(str(path), stream))


def _name(path: Path | str) -> str:
    return "stdin" if str(path) == STDIN else str(path)


def _kind_of_first(lines: _Lines) -> tuple[_Lines, str]:
    first = next(lines, "")
    kind = "jsonl" if first.lstrip().startswith("{") else "text"
    return (chain([first], lines) if first else lines), kind


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    """Open for reading by lines; a file that is not there is one line."""
    if str(path) == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as file:
            yield unpacking(file, path, packed=str(path).lower().endswith(".gz"))
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got: {error.strerror}") from error


def _text_lines(name: str, stream: BinaryIO) -> _Lines:
    """Decode line by line; the ends stay, because a cell of a CSV may continue behind them."""
    number = 0
    try:
        if hasattr(stream, "peek"):
            refuse_placeholder(stream.peek(START), name, DataError)
        for number, line in enumerate(lines_of(stream, name), start=1):
            yield _decode(line, f"{name}:{number}", first=number == 1)
    except DAMAGED_GZIP as error:
        raise DataError(
            f"{name}:{number + 1}: expected a whole gzip file, got it damaged here: {error}"
        ) from error


def refuse_other_file(start: bytes, where: str) -> None:
    """Stop at a file that is no text, whatever its name says.

    Args:
        start: Its first bytes.
        where: The file, for the message.

    Raises:
        DataError: It begins as one of `OTHER_FILES` does.
    """
    for beginning, what in OTHER_FILES.items():
        if start.startswith(beginning):
            raise DataError(
                f"{where}: expected text, got {what}; save the table as CSV (UTF-8), or name the "
                "file by what it is"
            )


def _decode(line: bytes, where: str, *, first: bool) -> str:
    if first:
        refuse_other_file(line, where)
    if first and line.startswith(UTF16_MARKS):
        raise DataError(f"{where}: expected UTF-8, got the mark of UTF-16; {FROM_UTF16}")
    if b"\0" in line:  # UTF-16 without a mark has one beside every Latin letter
        raise DataError(f"{where}: expected UTF-8, got a NUL byte, as UTF-16 has; {FROM_UTF16}")
    try:
        return line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: expected UTF-8, got the byte 0x{line[error.start]:02x} at place "
            f"{error.start + 1} of the line; {FROM_WINDOWS}"
        ) from error


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _csv_records(
    name: str, lines: _Lines, delimiter: str = ",", before: int = 0
) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    while True:
        where = f"{name}:{before + reader.line_num + 1}"
        # The limit belongs to the whole process, so it is lifted for this one row only.
        limit = csv.field_size_limit(_ANY_SIZE)
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{where}: {explained(str(error), delimiter)}") from error
        finally:
            csv.field_size_limit(limit)
        if record is None:
            return
        if record:
            yield where, record


def _tsv_records(name: str, lines: _Lines) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(lines, start=1):
        yield f"{name}:{number}", _without_end(line).split("\t")


def _csv_rows(name: str, lines: _Lines, on_error: Refuse) -> Iterator[Row]:
    table = find_delimiter(name, lines)
    records = _csv_records(name, table.lines, table.delimiter, table.before)
    return _table(name, records, table.word, on_error)


def _tsv_rows(name: str, lines: _Lines, on_error: Refuse) -> Iterator[Row]:
    return _table(name, _tsv_records(name, lines), "tab", on_error)


def _table(
    name: str,
    records: Iterator[tuple[str, list[str]]],
    separator: str | None,
    on_error: Refuse,
) -> Iterator[Row]:
    """Rows by the names of the header; a sheet has no separator."""
    where, cells = next(records, (name, []))
    header = [cell.strip() for cell in cells]
    check_header(header, where, separator)
    # Spreadsheets pad rows with empty cells; a text behind the last name was cut at a separator.
    named = max(number for number, column in enumerate(header, start=1) if column)
    for where, cells in records:
        if cells == [""] and len(header) > 1:  # an empty line; in a table of one column, a text
            continue
        try:
            check_row(header, named, cells, where, separator)
        except DataError as error:
            on_error(error)
            continue
        yield where, dict(zip(header[:named], cells[:named], strict=True))


def _jsonl_rows(name: str, lines: _Lines, on_error: Refuse) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _json_object(line, f"{name}:{number}")
        except DataError as error:
            on_error(error)
            continue
        yield f"{name}:{number}", row


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: expected a JSON object on a line of its own, got {_fault(error)}"
        ) from error
    if not isinstance(row, dict):
        raise DataError(
            f'{where}: expected a JSON object such as {{"text": …}}, got {_shape(row)}; '
            "write one object a line (jq -c '.[]' does it for a list)"
        )
    # Only an escape can spell half a character; other rows are spared the look.
    if "\\u" in line and not _is_unicode(row):
        raise DataError(
            f"{where}: expected text, got half of a surrogate pair (\\ud800 to \\udfff)"
        )
    return row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field '{doubled}' several times; keep one")
    return row


def _fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"a line that is cut or no JSON ({error.msg}, column {error.colno})"
    return str(error)


def _shape(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _is_unicode(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_rows(name: str, lines: _Lines, on_error: Refuse) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        yield f"{name}:{number}", {"text": _without_end(line)}


RECORDS: dict[str, Callable[[str, _Lines], Iterator[tuple[str, list[str]]]]] = {
    "csv": _csv_records,
    "tsv": _tsv_records,
}
"""Kind of table -> function that yields the cells of its rows."""

READERS: dict[str, Callable[[str, _Lines, Refuse], Iterator[Row]]] = {
    "csv": _csv_rows,
    "tsv": _tsv_rows,
    "jsonl": _jsonl_rows,
    "text": _text_rows,
}
"""Kind of file -> function that yields its rows."""
