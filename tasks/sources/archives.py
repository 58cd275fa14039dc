"""Many small files, read from a folder or straight out of a tar archive; nothing is unpacked.

An archive is read once from start to end. Its members are looked at before the first one is handed
out: an archive that could write outside its own folder when unpacked is refused as a whole.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import ReadError, TarFile
from typing import IO, Self, cast

from finetune.errors import DataError
from finetune.files.placeholders import refuse_placeholder
from finetune.files.unpacking import DAMAGED, unpacking

ENDINGS = (".tar", ".tar.gz", ".tgz")
_BLOCK = 1 << 20
MOST_WANTED = 1 << 26
"""Bytes of a file that is read: a review, or a passage with its questions."""
MOST_HELD = 1 << 31
"""Bytes of all that are read together; IMDb's reviews have 130 MB."""
MOST_UNPACKED = 1 << 32
"""Bytes of the whole archive, unpacked."""
MOST_HEADER = 1 << 20
"""Bytes of a long name, or of other facts about a member."""
_HINT = "unpack and check it by hand, or download it again from its source"
_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_DRIVE = re.compile("[A-Za-z]:")
_DAMAGED = (  # not in the published types
    tarfile.EmptyHeaderError,  # type: ignore[attr-defined]
    tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
    tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
)


class _Member(tarfile.TarInfo):
    """A member whose damaged header is an error: `tarfile` takes it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Take a header apart; what it says is to follow must fit into memory."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > MOST_HEADER:
            raise ReadError(f"a header of {member.size:,} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        """Read the next header."""
        try:
            return super().fromtarfile(tarfile)
        except _DAMAGED as error:
            raise ReadError(f"a cut or damaged archive ({error})") from error


class _Counted:
    """A stream that ends in an error where an archive becomes far longer than any of ours."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._read = stream, path, 0

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._read += len(content)
        if self._read > MOST_UNPACKED:
            raise DataError(
                f"{self._path}: expected at most {MOST_UNPACKED >> 30} GiB, got more when it is "
                f"unpacked; {_HINT}"
            )
        return content


def read_members(path: Path, matches: Callable[[str], bool]) -> Iterator[tuple[str, str, bytes]]:
    """Read the files of a folder or of an archive whose names match, sorted by name.

    The order is that of the names' characters (`10.txt` before `2.txt`), whatever the archive's or
    the file system's own: a folder and the archive made of it give the same. What matches is held
    in memory until it is sorted.

    Args:
        path: A folder, or an archive that ends in .tar, .tar.gz or .tgz. Links in a folder are
            read, but a linked folder is not entered.
        matches: Says by its name, such as `RACE/dev/high/1.txt`, whether a file is wanted. In a
            folder the name starts below it.

    Yields:
        Where the file is, for messages (`ARCHIVE:MEMBER` or the path); its name; its content.

    Raises:
        DataError: The archive is unreadable; or, before anything is yielded, a member (a wanted one
            or not) has an absolute name or one with `..`, is a link or a device, or a wanted one
            is there twice; or it, or the whole archive, is far too large.
    """
    if path.is_dir():
        yield from _folder(path, matches)
        return
    if not path.name.endswith(ENDINGS):
        raise DataError(
            f"{path}: expected a folder or an archive ({', '.join(ENDINGS)}), got neither"
        )
    members = _archive(path, matches)
    for name in sorted(members):
        # Popped, so that what the caller is done with is not kept.
        yield f"{path}:{name}", name, members.pop(name)


def _folder(path: Path, matches: Callable[[str], bool]) -> Iterator[tuple[str, str, bytes]]:
    names = [
        (Path(folder) / file).relative_to(path).as_posix()
        for folder, _, files in os.walk(path)
        for file in files
    ]
    for name in sorted(filter(matches, names)):
        try:
            content = (path / name).read_bytes()
        except OSError as error:
            raise DataError(f"{path / name}: expected a readable file, got: {error}") from error
        refuse_placeholder(content, path / name, DataError)
        yield str(path / name), name, content


def _archive(path: Path, matches: Callable[[str], bool]) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    total = 0
    with _opened(path) as archive:
        for member in archive:
            name = _safe_name(path, member)
            if not (member.isfile() and matches(name)):
                continue
            if name in members:
                raise DataError(f"{path}:{name}: expected one member of this name, got two")
            total += member.size
            if member.size > MOST_WANTED or total > MOST_HELD:
                raise DataError(
                    f"{path}:{name}: expected files of texts, got one of {member.size:,} bytes, "
                    f"with the others {total:,}; {_HINT}"
                )
            content = archive.extractfile(member)
            assert content is not None  # isfile() above
            members[name] = content.read()
            refuse_placeholder(members[name], f"{path}:{name}", DataError)
    return members


@contextmanager
def _opened(path: Path) -> Iterator[TarFile]:
    """Open an archive for one pass; what goes wrong in it is an error that names the archive."""
    try:
        with path.open("rb") as file:
            # Packed or not by its first bytes: a name may have lost or gained a .gz.
            stream = cast("IO[bytes]", _Counted(unpacking(file, path), path))
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                yield archive
            # To the end: only there gzip finds whether the content is what was once compressed.
            while stream.read(_BLOCK):
                pass
    except (*DAMAGED, tarfile.TarError) as error:
        raise DataError(f"{path}: expected a readable archive, got: {error}") from error


def _safe_name(path: Path, member: tarfile.TarInfo) -> str:
    """The member's name without `./`, if unpacking it could not reach outside."""
    name, hint = member.name, _HINT
    if member.issparse() or member.size > MOST_UNPACKED:
        raise DataError(
            f"{path}:{name}: expected small files, got "
            f"{'a sparse one' if member.issparse() else 'one'} of {member.size:,} bytes; {hint}"
        )
    if not (member.isfile() or member.isdir()):
        kind = "a link" if member.islnk() or member.issym() else "a device or another special file"
        raise DataError(f"{path}:{name}: expected files and folders only, got {kind}; {hint}")
    # Windows would take a backslash for a step into a folder, and `C:` for a drive.
    steps = name.replace("\\", "/").split("/")
    if not steps[0] or _DRIVE.match(name):
        raise DataError(f"{path}:{name}: expected relative names, got an absolute one; {hint}")
    if ".." in steps:
        raise DataError(f"{path}:{name}: expected names without '..', got one with; {hint}")
    return "/".join(step for step in name.split("/") if step not in ("", "."))
