"""Table files below their rows: the separator of a CSV file, and the batches of a Parquet file.

Excel writes semicolons where the decimal sign is a comma, and a first line such as `sep=;` names
the separator. Without that line the header shows it: names of columns have no separators in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from finetune.errors import DataError
from finetune.files.placeholders import refuse_placeholder_file

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
