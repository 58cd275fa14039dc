"""Files of `finetune inspect`: read, distinguished by their fields, and refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from finetune.errors import DataError
from finetune.report.markup import Html, joined
from finetune.runs.listing import UNEXPECTED

T = TypeVar("T")

KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("tokens", "segments", "weights"),
    "alignment": ("source", "target", "alignment"),
    "heads": ("heads", "uniform", "sequences", "tokens"),
    "probe": ("metric", "groups"),
    "similarity": ("groups", "pairs", "runs"),
    "words": ("run", "words"),
    "frequency": ("bins", "loss", "unigram_loss"),
}
"""Word after `finetune inspect` -> fields of the file that it writes, and of no other's."""


@dataclass(frozen=True)
class InspectionFile:
    """A file of `finetune inspect` with its content."""

    file: Path
    kind: str
    """A key of `KINDS`."""
    content: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> InspectionFile:
        """Read a file.

        Raises:
            DataError: It is missing, damaged or another one.
        """
        content = _mapping(file)
        for kind, fields in KINDS.items():
            if content.keys() >= set(fields):
                return cls(file, kind, content)
        names = ", ".join(list(map(str, content))[:5]) or "none"
        raise DataError(
            f"{file}: expected a file of `finetune inspect` ({_names()}), got one with other "
            f"fields ({names}); name one that the command wrote"
        )

    @property
    def name(self) -> str:
        """The last two parts of the run's path: what distinguishes it from others."""
        return short(self.content.get("run") or self.file)

    def draw(self, make: Callable[[InspectionFile], T]) -> T:
        """Make something of it.

        Raises:
            DataError: It has not the form that it should have.
        """
        try:
            return make(self)
        except UNEXPECTED as error:
            reason = " ".join(f"{type(error).__name__} {error}".split())[:120]
            raise DataError(
                f"{self.file}: expected the form in which `finetune inspect {self.kind}` writes, "
                f"got another ({reason}); inspect the run again"
            ) from None


def short(path: object) -> str:
    """The last two parts of a path."""
    return "/".join(Path(str(path)).parts[-2:])


def blocks(files: Sequence[InspectionFile], make: Callable[[InspectionFile], Html]) -> Html:
    """What is made of each file, below one another."""
    return joined([one.draw(make) for one in files])


def figure_of(value: object) -> float | None:
    """A number; None for one that is not finite.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value) if math.isfinite(value) else None


def inspection_files(path: Path) -> list[Path]:
    """A file itself; those of a folder that bear the names of `finetune inspect`.

    Raises:
        DataError: A folder has none.
    """
    if not path.is_dir():
        return [path]
    files = [file for kind in KINDS if (file := path / f"{kind}.json").is_file()]
    if not files:
        raise DataError(
            f"{path}: expected a folder with files of `finetune inspect` ({_names()}), got none"
        )
    return files


def _names() -> str:
    return ", ".join(f"{kind}.json" for kind in KINDS)


def _mapping(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: expected a file of `finetune inspect` ({_names()}), got no fields but "
            f"{type(content).__name__}"
        )
    return content
