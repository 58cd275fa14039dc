"""What a run shows besides numbers: tables and files, as plain data."""

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
    """Section and name, as `predictions/validation`."""
    columns: Sequence[str]
    """Their headings."""
    rows: Sequence[Sequence[Any]]
    """Cells: text, numbers, booleans; None where there is nothing."""
    chart: str | None = None
    """Name of a Weights & Biases chart that draws it, by its columns."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """Files that a run made or started from.

    The same content under the same name is the same version everywhere: that joins the run that
    made it and those that use it.
    """

    name: str
    """Made by `plain_name`."""
    kind: str
    """Such as `encoder`, `tokenizer`, `predictions`."""
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Name -> the file, which stays where it is."""
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> content of small files besides."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Told beside it; no part of the content."""
    used: bool = False
    """Whether the run started from it (else it made it)."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """All that a run shows when it has ended."""

    tables: Sequence[Table] = ()
    """In the order in which they are logged."""
    artifacts: Sequence[Artifact] = ()
    """Those it started from first."""


def plain_name(text: str) -> str:
    """A name of letters, digits, dots, dashes and underscores alone, 128 at most."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:128] or "unnamed"
