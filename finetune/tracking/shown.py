"""The tables and files that a run logs besides its metrics, as plain data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a run."""

    name: str
    """Section and name, such as `predictions/validation`."""
    columns: Sequence[str]
    """Column names."""
    rows: Sequence[Sequence[Any]]
    """Cells: text, numbers, booleans; None for an empty cell."""
    chart: str | None = None
    """Name of the Weights & Biases chart that draws it from its columns."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """Files that a run made or started from.

    The same content under the same name is the same version everywhere: that links the run that
    made it to the runs that use it.
    """

    name: str
    """As `plain_name` returns it."""
    kind: str
    """Such as `encoder`, `tokenizer`, `predictions`."""
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Name -> the file, which is not copied."""
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> content of further small files."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Metadata, which does not change the version."""
    used: bool = False
    """Whether the run started from it; False if the run made it."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """All tables and files of a finished run."""

    tables: Sequence[Table] = ()
    """In the order in which they are logged."""
    artifacts: Sequence[Artifact] = ()
    """Inputs of the run before its outputs."""


def plain_name(text: str) -> str:
    """A name of letters, digits, dots, dashes and underscores only, at most 128 of them."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:128] or "unnamed"
