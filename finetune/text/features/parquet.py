"""Rows of a Parquet file, which pandas, `datasets` and databases write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.files.placeholders import refuse_placeholder_file


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the rows of a file, a batch at a time.

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
