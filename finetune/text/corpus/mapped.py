"""A file of the cache as an array that is mapped into memory, and not read before it is used.

What lies behind the end of a file that was cut short under its map ends the process with SIGBUS,
which no handler of Python's can turn into a message. So whoever reads asks first, each time,
whether the file is still whole.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from finetune.errors import DataError


class MappedFile:
    """A flat array in a file."""

    array: NDArray[Any]
    """Its numbers; they may be read after `check`."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        """Map the file.

        Raises:
            OSError: It cannot be read.
        """
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        if self._size:
            content = mmap.mmap(self._file, self._size, access=mmap.ACCESS_READ)
            self.array = np.frombuffer(content, dtype)
        else:  # an empty file cannot be mapped
            self.array = np.empty(0, dtype)

    def check(self) -> None:
        """Refuse a file that was cut short since it was mapped; it costs a microsecond.

        Raises:
            DataError: It was.
        """
        size = os.fstat(self._file).st_size
        if size < self._size:
            raise DataError(
                f"{self.path}: expected {self._size:,} bytes, got {size:,}: it was cut short "
                "while a run reads it; continue with --resume, it is made again"
            )
