"""Checksums of a folder's files, in checksums.json beside them, to notice damage on reading.

A folder without checksums.json, such as one of an earlier version or of another library, is read
without a check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from finetune.errors import CheckpointError

CHECKSUMS = "checksums.json"
"""File name -> SHA-256, 64 hexadecimal digits."""


def file_digest(path: Path) -> str:
    """Hash a file's content with SHA-256: processors have instructions for it, 0.7 to 2 GB/s.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Write the digests of all files of a folder into it, after all other files.

    Args:
        folder: The folder.
        more: Digests of files in folders below, by their path from here.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    content = {path.name: file_digest(path) for path in files} | dict(more or {})
    (folder / CHECKSUMS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_checksums(folder: Path) -> dict[str, str]:
    """Read the digests of a folder's files; {} where none were written.

    Raises:
        CheckpointError: checksums.json is damaged.
    """
    path = folder / CHECKSUMS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(_damaged(path, str(error))) from error
    if not isinstance(content, dict):
        raise CheckpointError(_damaged(path, f"a JSON {type(content).__name__}"))
    return {str(name): str(digest) for name, digest in content.items()}


def _damaged(path: Path, reason: str) -> str:
    return (
        f"{path}: expected the digests of the files beside it, got {reason}; restore the folder "
        "from a copy or train again"
    )


def check_files(
    folder: Path, names: Iterable[str], digests: Mapping[str, str] | None = None
) -> None:
    """Refuse files of a folder that are not as they were written.

    Args:
        folder: The folder.
        names: Names of files; those without a digest are not read.
        digests: The result of `read_checksums` when the folder was found; default: read it now.

    Raises:
        CheckpointError: A file is missing, or its content has changed.
    """
    digests = read_checksums(folder) if digests is None else digests
    for name in names:
        if name in digests and _digest_or_none(folder / name) != digests[name]:
            raise CheckpointError(
                f"{folder / name}: expected the file as it was saved, got "
                f"{'other content' if (folder / name).is_file() else 'none'} (its checksum "
                f"differs from {CHECKSUMS}); restore it from a copy, use another checkpoint or "
                "train again; or try again, if a run is saving it just now"
            )


def _digest_or_none(path: Path) -> str | None:
    try:
        return file_digest(path)
    except FileNotFoundError:
        return None
