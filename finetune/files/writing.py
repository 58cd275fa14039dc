"""Files and folders that are written whole or not at all; whoever writes one asks here.

A file is written beside its place under a temporary name, flushed to the disk and renamed: a reader
finds the old content or the new one, and a kill, a full disk or an I/O error changes nothing under
the name itself. Where the place is no regular file (a device, a pipe, a socket, a descriptor such
as `/dev/stdout`), nothing is replaced: the content is streamed into it. A symbolic link stays, and
what it points to is written.

A process holds a lock (`flock`) on what it is writing. What no process holds was left by one that
was killed, and `sweep` removes it; so does everything that is written into the same folder later.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, overload

from finetune.errors import FinetuneError

TEMPORARY = ".finetune-tmp-"
"""How the names of files and folders begin that are being written."""
OLD = ".finetune-old-"
"""How the names of folders begin that are being replaced."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system answers that knows no locks; there nothing is swept."""
NO_FLUSH = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system answers that cannot flush a folder; its renames are flushed when it likes."""
LINKS = 40
"""Links in a row that are followed, as Linux does."""


@overload
def new_file(path: Path, mode: Literal["w"] = "w") -> AbstractContextManager[IO[str]]: ...
@overload
def new_file(path: Path, mode: Literal["wb"]) -> AbstractContextManager[IO[bytes]]: ...
@contextmanager
def new_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file that appears under its name, whole, at the end of the block.

    Args:
        path: The file; its folder is made, a regular file of that name is replaced (it keeps its
            permissions), a link to one is followed, and anything else is streamed into.
        mode: `w` for text in UTF-8, `wb` for bytes.

    Raises:
        OSError: It cannot be written; `filename` is the path, and what was there is as it was.
    """
    with named(path):
        descriptor = _stream(path)
        if descriptor is None:
            with _replaced(Path(os.path.realpath(path)), mode) as file:
                yield file
        else:
            with _opened(descriptor, mode) as file:
                yield file


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; see `new_file`."""
    with new_file(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; see `new_file`."""
    with new_file(path, "wb") as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON whole or not at all; see `new_file`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(folder: Path, *, is_whole: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Fill a folder that appears under its name, whole, at the end of the block.

    Between the two renames that put it in the place of an old one a kill can leave the old one
    alone, under the name that `old_of` gives: `settle` puts it back.

    Args:
        folder: Its place; the folder above is made, a link is followed, an old one is replaced.
        is_whole: Where several processes may make the same folder: whether one that is there is
            complete. It is kept then, and the new one is dropped.

    Yields:
        The temporary folder to write into.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    with named(folder):
        place = Path(os.path.realpath(folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        sweep(place.parent)
        with _temporary(place.parent) as temporary, _made_folder(temporary, place):
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                _flush(path)
            if is_whole is None:
                _swap(temporary, place)
            else:
                _swap_unless_whole(temporary, place, is_whole)
            _flush(place.parent)


def _swap(temporary: Path, place: Path) -> None:
    old = old_of(place)
    if place.exists():
        remove(old)
        place.rename(old)
    temporary.rename(place)
    remove(old)


def _swap_unless_whole(temporary: Path, place: Path, is_whole: Callable[[Path], bool]) -> None:
    if is_whole(place):
        return
    if place.exists():  # damaged
        with suppress(FileNotFoundError):  # another process was faster
            remove(place)
    try:
        temporary.rename(place)
    except OSError:
        if not is_whole(place):
            raise


def old_of(folder: Path) -> Path:
    """Where the old folder is while a new one takes its place."""
    place = Path(os.path.realpath(folder))  # the working folder has no name, and a link another
    return place.parent / f"{OLD}{place.name}"


def settle(folder: Path) -> None:
    """End what a kill cut off in a folder; for its only writer.

    An old folder comes back if the new one that was to take its place is not there, and goes if it
    is. What was being written goes.
    """
    for old in folder.glob(f"{OLD}*"):
        place = folder / old.name.removeprefix(OLD)
        if not place.exists():
            old.rename(place)
        remove(old)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the temporary files and folders of processes that are dead; those in use stay."""
    for left in folder.glob(f"{TEMPORARY}*"):
        remove_unused(left)


def remove_unused(left: Path) -> None:
    """Remove a file or folder unless a process holds a lock on it."""
    with suppress(OSError):
        descriptor = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(left)
        finally:
            os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a file or folder is one that is being written, or was until its process died."""
    return path.name.startswith(TEMPORARY)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that it holds; nothing where there is none.

    A folder vanishes at one stroke, under the name that it had.
    """
    if path.is_dir() and not path.is_symlink() and not path.name.startswith((TEMPORARY, OLD)):
        with _temporary(path.parent) as left:
            path.rename(left)
    elif path.is_dir() and not path.is_symlink():
        _remove_tree(path)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:  # which names a file in it without its folder
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error of the machine that names no file, or a temporary one, name the one meant."""
    try:
        yield
    except FinetuneError:  # of what is written, and in its own words
        raise
    except Exception as error:
        number, name = _system_error(error)
        if number is None or not (name is None or _is_temporary_name(name)):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _is_temporary_name(name: str) -> bool:
    return any(part.startswith((TEMPORARY, OLD)) for part in Path(name).parts)


def _system_error(error: BaseException) -> tuple[int | None, str | None]:
    """Errno and file of what went wrong: libraries wrap an OSError, or only tell its number."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno, None if cause.filename is None else str(cause.filename)
        if number := re.search(r"os error (\d+)", str(cause)):  # safetensors, tokenizers: in Rust
            return int(number[1]), None
        cause = cause.__cause__ or cause.__context__
    return None, None


def _stream(path: Path) -> int | None:
    """A descriptor of what is streamed into; None where a regular file is (or is to be)."""
    number = _own_descriptor(path)
    if number is not None:  # opened again it would begin at its start, and a socket cannot be
        return os.dup(number)
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(kind):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return None
    return os.open(path, os.O_WRONLY | os.O_NOCTTY)  # never O_CREAT; a folder is refused here


def _own_descriptor(path: Path) -> int | None:
    """The number behind `/dev/stdout`, `/dev/fd/3`, `/proc/self/fd/3` and links to them."""
    for _ in range(LINKS):
        folder = os.path.realpath(path.parent)
        if path.name.isdecimal() and folder == f"/proc/{os.getpid()}/fd":
            return int(path.name)
        if not path.is_symlink():
            return None
        path = Path(folder) / os.readlink(path)
    return None


@contextmanager
def _replaced(place: Path, mode: str) -> Iterator[IO[Any]]:
    if _is_temporary_name(str(place)):  # a part of what is whole or not as a folder
        with _opened(place, mode) as file:
            yield file
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent)
    with _temporary(place.parent) as temporary:
        with _opened(locked_file(temporary), mode) as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, place)  # before its lock goes
        _flush(place.parent)


def _opened(file: int | Path, mode: str) -> IO[Any]:
    """Open a file of bytes, or of UTF-8."""
    if "b" in mode:
        return open(file, mode)
    return open(file, mode, encoding="utf-8", newline="\n")


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A name for what is being made; what bears it at the end of the block is removed."""
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex[:12]}"
    try:
        yield temporary
    except BaseException:
        with suppress(OSError):  # the error that led here is the one to report
            remove(temporary)
        raise
    remove(temporary)


@contextmanager
def _made_folder(temporary: Path, place: Path) -> Iterator[None]:
    """Make a folder, hold its lock in the block; others may do in it what they may in the old."""

    def make() -> int:
        temporary.mkdir(exist_ok=True)
        return os.open(temporary, os.O_RDONLY)

    descriptor = _held(temporary, make)
    try:
        if place.is_dir():
            shutil.copymode(place, temporary)
        yield
    finally:
        os.close(descriptor)


def locked_file(path: Path) -> int:
    """Make a file that is shown to be in use: `flock` holds it as long as it is open.

    Args:
        path: The file.

    Returns:
        Its descriptor, to read and write.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    return _held(path, lambda: os.open(path, flags, 0o666))


def _held(temporary: Path, make: Callable[[], int]) -> int:
    """Make something and lock it; again, if somebody swept it away in between."""
    while True:
        with suppress(FileNotFoundError):
            descriptor = make()
            try:
                if _lock(descriptor) and _is_at(descriptor, temporary):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        if not temporary.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(temporary))


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FLUSH:
            raise
    finally:
        os.close(descriptor)
