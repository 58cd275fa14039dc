"""Files within files: unpacked up to a size, and the sheet of a workbook that a path names.

A compressed megabyte can become gigabytes of zeros.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import BinaryIO, cast

from finetune.errors import DataError
from finetune.files.placeholders import START, refuse_placeholder

MOST_BYTES = 1 << 30
"""Of a file that is held whole, unpacked; the largest official one has 85 MB."""
MOST_LINE = 1 << 30
"""Bytes of a line; all of Wikipedia's text of 2006 on one line has 0.7 of it."""


GZIP_MAGIC = b"\x1f\x8b"
_SHEET = re.compile(r"(.+\.xls[xm])#(.+)", re.IGNORECASE)


def unpacking(
    file: io.BufferedReader, where: Path | str, *, packed: bool | None = None
) -> io.BufferedReader:
    """The content of an opened file, unpacked while it is read.

    Args:
        file: The file, at its start.
        where: Its name, for the message.
        packed: Whether gzip has packed it; None: its first bytes tell.

    Raises:
        DataError: The file is a git-lfs pointer or a web page.
    """
    start = file.peek(START)
    refuse_placeholder(start, where, DataError)
    if packed is None:
        packed = start.startswith(GZIP_MAGIC)
    return cast("io.BufferedReader", GzipFile(fileobj=file)) if packed else file


def unpacked(content: bytes, where: Path) -> bytes:
    """Unpack what gzip has packed.

    Args:
        content: The packed file.
        where: Its name, for the message.

    Raises:
        DataError: It becomes longer than `MOST_BYTES`.
        OSError, EOFError, zlib.error: It is damaged.
    """
    with GzipFile(fileobj=io.BytesIO(content)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataError(
            f"{where}: expected at most {MOST_BYTES >> 20:,} MiB, got more when it is unpacked; "
            "download the file again from its makers"
        )
    return data


def lines_of(stream: BinaryIO, where: Path | str) -> Iterator[bytes]:
    """The lines of a file with their ends, one at a time.

    Args:
        stream: The file.
        where: Its name, for the message.

    Raises:
        DataError: A line is longer than `MOST_LINE`.
    """
    number = 0
    while line := stream.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise DataError(
                f"{where}:{number}: expected a line of at most {MOST_LINE >> 20:,} MiB, got a "
                "longer one; is it a text file?"
            )
        yield line


DAMAGED = (OSError, EOFError, zlib.error)
"""What `unpacked` raises for a damaged file."""
DAMAGED_GZIP = (BadGzipFile, EOFError, zlib.error)
"""What reading from `unpacking` raises where the packed content is damaged."""


def without_sheet(path: Path | str) -> str:
    """The file that a path names, such as `book.xlsx` of `book.xlsx#train`."""
    return book_and_sheet(path)[0]


def book_and_sheet(path: Path | str) -> tuple[str, str | None]:
    """The workbook that a path names, and its sheet where it names one: `book.xlsx#train`."""
    match = _SHEET.fullmatch(str(path))
    if match is None or Path(path).is_file():  # a file may have the sign in its own name
        return str(path), None
    return match[1], match[2]
