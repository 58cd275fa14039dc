"""The official data sets, in the folder that FINETUNE_DATA names."""

from __future__ import annotations

import gzip
import os
from pathlib import Path


def official_text(file: str) -> str:
    """The text of an official file, or of the same file with `.gz`, as the tasks read both."""
    path = Path(os.environ["FINETUNE_DATA"]) / file
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()).decode("utf-8")
