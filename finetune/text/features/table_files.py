"""Table files below their rows: a CSV file's separator, a Parquet file's batches, Excel's cells.

Excel writes semicolons where the decimal sign is a comma, and a first line such as `sep=;` names
the separator. Without that line the header shows it: names of columns have no separators in them.
"""

from __future__ import annotations

import datetime
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from finetune.errors import DataError, nearest
from finetune.files.placeholders import refuse_placeholder_file
from finetune.files.unpacking import book_and_sheet

MARK = "\ufeff"
"""The byte order mark."""
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
"""Separator of cells that a header shows -> its name in messages."""

_STATED = re.compile(r'^"?sep=([^\w\s"]|\t)"?[,;\t]*\r?\n?$', re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"?')


class Delimited(NamedTuple):
    """The lines of a CSV file from its header on."""

    lines: Iterator[str]
    delimiter: str
    before: int
    """Lines that came before: empty ones, and one that names the separator."""

    @property
    def word(self) -> str:
        """The separator's name in messages."""
        return DELIMITERS.get(self.delimiter, f"'{self.delimiter}'")


def find_delimiter(name: str, lines: Iterator[str]) -> Delimited:
    """Find what separates the cells of a table with a header.

    Args:
        name: The file, for messages.
        lines: All its lines.

    Returns:
        The lines from the header on, and the separator: what a line `sep=;` says, or the one of
        comma, semicolon and tab that the header has outside quotes; a comma where it has none.

    Raises:
        DataError: The header has two of them.
    """
    before, stated = 0, None
    for line in lines:
        if line.strip("\r\n") and (match := _STATED.match(line)) and stated is None:
            stated = match[1]
        elif line.strip("\r\n"):
            delimiter = stated or _shown(line, f"{name}:{before + 1}")
            return Delimited(chain([line], lines), delimiter, before)
        before += 1
    return Delimited(iter(()), stated or ",", before)


def _shown(header: str, where: str) -> str:
    """The separator that a header shows."""
    bare = _QUOTED.sub("", header)  # a separator inside quotes is part of a name
    shown = [delimiter for delimiter in DELIMITERS if delimiter in bare]
    if len(shown) > 1:
        names = " and a ".join(DELIMITERS[delimiter] for delimiter in shown)
        raise DataError(
            f"{where}: expected one separator between the names of the columns, got a {names}; "
            f"put a first line sep={shown[0]} or sep={shown[1]} above the header"
        )
    return shown[0] if shown else ","


def explained(fault: str, delimiter: str) -> str:
    """What `csv` found wrong with a row, in words that say what to do."""
    word = DELIMITERS.get(delimiter, f"'{delimiter}'")
    if "unexpected end" in fault:
        return (
            "expected a quote that closes the one opened in this row, got the end of the file; "
            "close it, or double a quote that is part of a text"
        )
    if "expected after" in fault:
        return (
            f"expected a {word} or the row's end behind a closing quote, got more text; "
            "double a quote that is part of a text"
        )
    if "new-line character" in fault:
        return (
            "expected lines that end in LF or CRLF, got a carriage return inside a cell; "
            "put the cell into quotes, or convert the file's line ends"
        )
    return f"expected a row of {word}-separated cells, got: {fault}"


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the rows of a Parquet file, a batch at a time.

    Args:
        path: The file.

    Yields:
        Where each row is, `FILE: row NUMBER` from 1, and its values, null as None.

    Raises:
        DataError: The file is missing or damaged, or the package pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{path}: Parquet files are read by the package pyarrow; pip install pyarrow, or save "
            "the table as CSV or JSON lines"
        ) from error
    refuse_placeholder_file(path, DataError)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: expected a readable Parquet file, got: {reason}") from error


def excel_records(path: Path | str) -> Iterator[tuple[str, list[str]]]:
    """Read the rows of a sheet as the texts that Excel's CSV would have; empty rows are left out.

    The first row names the columns. All rows have one cell more than it has: the first value
    behind its last name, where nothing should be.

    Args:
        path: The workbook, with `#SHEET` behind it if more than one sheet has rows.

    Yields:
        Where each row is, `FILE: row NUMBER` as in the sheet, and its cells.

    Raises:
        DataError: The file is missing or damaged, the sheet is not there or not named, or the
            package openpyxl is not installed.
    """
    book, sheet = book_and_sheet(path)
    try:
        with Path(book).open("rb") as file:
            refuse_placeholder_file(Path(book), DataError)
            rows = _sheet(_workbook(file, book), book, sheet).iter_rows(values_only=True)
            width = 0
            for number, row in enumerate(rows, start=1):
                cells = [cell_text(value) for value in row]
                if any(cells):
                    width = width or max(n for n, cell in enumerate(cells, start=1) if cell)
                    behind = next(filter(None, cells[width:]), "")
                    cells = [*cells[:width], *[""] * (width - len(cells)), behind]
                    yield f"{path}: row {number}", cells
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{book}: expected a readable Excel file, got: {error}") from error


def _workbook(file: Any, name: str) -> Any:
    try:
        import openpyxl
    except ImportError as error:
        raise DataError(
            f"{name}: Excel files are read by the package openpyxl; pip install "
            "'finetune[excel]', or save the table as CSV (UTF-8)"
        ) from error
    with warnings.catch_warnings():  # of styles and extensions, which no row depends on
        warnings.simplefilter("ignore")
        return openpyxl.load_workbook(file, read_only=True, data_only=True)


def _sheet(workbook: Any, name: str, wanted: str | None) -> Any:
    """The sheet that is named, or the only one with rows."""
    sheets = {sheet.title: sheet for sheet in workbook.worksheets}
    for sheet in sheets.values():
        sheet.reset_dimensions()  # some programs write wrong ones, which would cut rows
    if wanted is None:
        filled = [title for title, sheet in sheets.items() if _has_values(sheet)]
        if len(filled) > 1:
            raise DataError(
                f"{name}: expected one sheet with rows, got {', '.join(filled)}; name one, such as "
                f"'{name}#{filled[0]}'"
            )
        wanted = filled[0] if filled else workbook.sheetnames[0]
    if wanted not in sheets:
        raise DataError(f"{name}: expected a sheet '{wanted}'; {nearest(wanted, sheets)}")
    return sheets[wanted]


def _has_values(sheet: Any) -> bool:
    rows = sheet.iter_rows(values_only=True)
    return any(value is not None for row in rows for value in row)


def cell_text(value: Any) -> str:
    """A cell of Excel as the text that a CSV file would have.

    >>> import datetime
    >>> [cell_text(value) for value in (3.0, 0.5, True, datetime.datetime(2026, 5, 1), None)]
    ['3', '0.5', 'TRUE', '2026-05-01', '']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    return str(value)


def check_header(header: Sequence[str], where: str, separator: str | None) -> None:
    """Refuse a header without names, with a name twice, or of another separator; None in a sheet.

    Raises:
        DataError: It is one of these.
    """
    if not any(header):
        raise DataError(f"{where}: expected a header line that names the columns, got none")
    for column in header:
        if column and header.count(column) > 1:
            raise DataError(
                f"{where}: expected each column once, got '{column}' several times in the header "
                f"{', '.join(header)}; rename one"
            )
    if len(header) > 1:
        return
    for delimiter in (other for other in (",", ";", "|") if other in header[0]):
        way_out = (
            "name the file .csv"
            if separator == "tab" and delimiter in DELIMITERS
            else f"put a first line sep={delimiter} above the header of a .csv file"
        )
        raise DataError(
            f"{where}: expected {separator}-separated names of columns, got one name with "
            f"'{delimiter}' in it, '{header[0][:60]}'; {way_out}, or rename the column"
        )


def check_row(
    header: Sequence[str], named: int, cells: Sequence[str], where: str, separator: str | None
) -> None:
    """Refuse a row that was cut in two, and one that is the header of a file put behind another.

    Raises:
        DataError: It is one of these.
    """
    if len(cells) != len(header):
        raise DataError(
            f"{where}: expected {len(header)} {separator}-separated cells "
            f"({', '.join(header)}), got {len(cells)}; "
            "correct the row, or save as CSV with quotes"
        )
    if spilled := [cell.strip() for cell in cells[named:] if cell.strip()]:
        quotes = "" if separator is None else f"put a text with a {separator} into quotes, or "
        raise DataError(
            f"{where}: expected nothing behind the last named column '{header[named - 1]}', got "
            f"'{spilled[0][:60]}'; {quotes}name the column in the header"
        )
    # A file put behind another brings its byte order mark along.
    if len(header) > 1 and [cell.strip().strip(MARK) for cell in cells] == header:
        raise DataError(
            f"{where}: expected a row of values, got the header once more "
            f"({', '.join(header)[:100]}); remove this line"
        )
