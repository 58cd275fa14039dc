"""Atomic writes: files and folders that are written completely or not at all.

A file is written beside its target under a temporary name, flushed to the disk and renamed: a
reader gets the old content or the new one, and a kill, a full disk or an I/O error changes nothing
under the name itself. If the target is not a regular file (a device, a pipe, a socket, a descriptor
such as `/dev/stdout`), nothing is replaced: the content is streamed into it. A symbolic link stays,
and its target is written.

A process has a lock (`flock`) on what it is writing. A temporary file without a lock was left by a
process that was killed, and `sweep` removes it, as does every later write into the same folder.
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
"""Prefix of the names of files and folders that are being written."""
OLD = ".finetune-old-"
"""Prefix of the names of folders that are being replaced."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without locks; nothing is removed there by `sweep`."""
NO_FLUSH = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of a file system that cannot flush a folder; the kernel flushes its renames later."""
LINKS = 40
"""Longest chain of links that is followed, as in Linux."""


@overload
def new_file(path: Path, mode: Literal["w"] = "w") -> AbstractContextManager[IO[str]]: ...
@overload
def new_file(path: Path, mode: Literal["wb"]) -> AbstractContextManager[IO[bytes]]: ...
@contextmanager
def new_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file that appears under its name, complete, at the end of the block.

    Args:
        path: The file; its folder is created, a regular file of that name is replaced (with the
            same permissions), a link to one is followed, and anything else is streamed into.
        mode: `w` for text in UTF-8, `wb` for bytes.

    Raises:
        OSError: It cannot be written; `filename` is the path, and an old file is unchanged.
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
    """Write a file atomically; see `new_file`."""
    with new_file(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; see `new_file`."""
    with new_file(path, "wb") as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically; see `new_file`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(folder: Path, *, is_whole: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Fill a folder that appears under its name, complete, at the end of the block.

    A folder cannot be replaced by one rename, but by two. A kill between them leaves the old folder
    under the name that `old_of` returns: `settle` puts it back.

    Args:
        folder: The folder; its parent is created, a link is followed, an old folder is replaced.
        is_whole: If several processes may write the same folder: whether an existing one is
            complete. Then it stays, and the new one is removed.

    Yields:
        The temporary folder to write into.

    Raises:
        OSError: It cannot be written; an old folder is unchanged.
    """
    with named(folder):
        target = Path(os.path.realpath(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        with _temporary(target.parent) as temporary, _new_folder(temporary, target):
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                _flush(path)
            if is_whole is None:
                _swap(temporary, target)
            else:
                _swap_unless_whole(temporary, target, is_whole)
            _flush(target.parent)


def _swap(temporary: Path, target: Path) -> None:
    old = old_of(target)
    if target.exists():
        remove(old)
        target.rename(old)
    temporary.rename(target)
    remove(old)


def _swap_unless_whole(temporary: Path, target: Path, is_whole: Callable[[Path], bool]) -> None:
    if is_whole(target):
        return
    if target.exists():  # damaged
        with suppress(FileNotFoundError):  # another process was faster
            remove(target)
    try:
        temporary.rename(target)
    except OSError:
        if not is_whole(target):
            raise


def old_of(folder: Path) -> Path:
    """The path of the old folder while a new one replaces it."""
    target = Path(os.path.realpath(folder))  # "." has no name, and a link has another one
    return target.parent / f"{OLD}{target.name}"


def settle(folder: Path) -> None:
    """Complete or undo what a kill interrupted in a folder; only its single writer may call this.

    An old folder is restored if the new one is missing, and removed if it exists. Temporary files
    are removed.
    """
    for old in folder.glob(f"{OLD}*"):
        target = folder / old.name.removeprefix(OLD)
        if not target.exists():
            old.rename(target)
        remove(old)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the temporary files and folders of processes that have ended; those in use stay."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove_unused(path)


def remove_unused(path: Path) -> None:
    """Remove a file or folder unless a process has a lock on it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        finally:
            os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a file or folder is being written, or was until its process ended."""
    return path.name.startswith(TEMPORARY)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, if it exists.

    A folder disappears at once: it is renamed first, so nobody sees one that is half removed.
    """
    if path.is_dir() and not path.is_symlink() and not path.name.startswith((TEMPORARY, OLD)):
        with _temporary(path.parent) as renamed:
            path.rename(renamed)
    elif path.is_dir() and not path.is_symlink():
        _remove_tree(path)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:  # its filename lacks the folder
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give a system error that names no file, or a temporary one, the name of the target."""
    try:
        yield
    except FinetuneError:  # it has a message already
        raise
    except Exception as error:
        number, name = _system_error(error)
        if number is None or not (name is None or _is_temporary_name(name)):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _is_temporary_name(name: str) -> bool:
    return any(part.startswith((TEMPORARY, OLD)) for part in Path(name).parts)


def _system_error(error: BaseException) -> tuple[int | None, str | None]:
    """Errno and file name of an error: libraries wrap an OSError, or only print its number."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno, None if cause.filename is None else str(cause.filename)
        if number := re.search(r"os error (\d+)", str(cause)):  # safetensors, tokenizers: in Rust
            return int(number[1]), None
        cause = cause.__cause__ or cause.__context__
    return None, None


def _stream(path: Path) -> int | None:
    """A descriptor of a target that is streamed into; None for a regular or a new file."""
    number = _own_descriptor(path)
    if number is not None:  # opened again it would start at its beginning, and a socket cannot be
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
def _replaced(target: Path, mode: str) -> Iterator[IO[Any]]:
    if _is_temporary_name(str(target)):  # its folder appears or disappears as a whole anyway
        with _opened(target, mode) as file:
            yield file
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent)
    with _temporary(target.parent) as temporary:
        with _opened(locked_file(temporary), mode) as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)  # before the lock is released
        _flush(target.parent)


def _opened(file: int | Path, mode: str) -> IO[Any]:
    """Open a file for bytes, or for text in UTF-8."""
    if "b" in mode:
        return open(file, mode)
    return open(file, mode, encoding="utf-8", newline="\n")


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A temporary path; whatever is there at the end of the block is removed."""
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex[:12]}"
    try:
        yield temporary
    except BaseException:
        with suppress(OSError):  # the error that led here is the one to report
            remove(temporary)
        raise
    remove(temporary)


@contextmanager
def _new_folder(temporary: Path, target: Path) -> Iterator[None]:
    """Create a locked folder for the block, with the permissions of the old folder."""

    def make() -> int:
        with suppress(
            FileExistsError
        ):  # `exist_ok` raises it too if the folder is removed meanwhile
            temporary.mkdir()
        return os.open(temporary, os.O_RDONLY)

    descriptor = _locked(temporary, make)
    try:
        if target.is_dir():
            shutil.copymode(target, temporary)
        yield
    finally:
        os.close(descriptor)


def locked_file(path: Path) -> int:
    """Create a file with a lock that is released when the file is closed.

    Args:
        path: The file.

    Returns:
        Its descriptor, to read and write.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    return _locked(path, lambda: os.open(path, flags, 0o666))


def _locked(temporary: Path, make: Callable[[], int]) -> int:
    """Create something and lock it; again, if another process removed it in between."""
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
