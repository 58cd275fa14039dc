"""Who writes into a run folder: RUN/running.lock, locked by the system while a run is writing.

The lock is `flock`'s, so it goes with the process however that ends: a file that was left by a
killed run locks nothing. Where a file system knows no locks, runs work without locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finetune.errors import ConfigError
from finetune.files.writing import NO_LOCKS, named

LOCK = "running.lock"
"""The file's name."""
ATTEMPTS, PAUSE = 20, 0.05
"""How often a lock is tried, and seconds between: one who only looks holds it for an instant."""
_held: set[int] = set()  # descriptors of this process's locks


def _let_go() -> None:
    """Close a forked child's copies: a lock lasts as long as a copy, and a killed run's must not.

    Processes that load batches may outlive a killed run by seconds.
    """
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder for this process while the block runs; it is made if it is not there.

    Args:
        folder: RUN.

    Raises:
        ConfigError: Another process holds it, or another run of this one.
    """
    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)  # a link may lead there
    lock = _locked(folder)
    _held.add(lock)
    try:
        yield
    finally:
        if lock in _held:  # not in a forked child
            (folder / LOCK).unlink(missing_ok=True)
            _held.remove(lock)
            os.close(lock)


def _locked(folder: Path) -> int:
    """A descriptor of the locked file."""
    for _ in range(ATTEMPTS):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return lock
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
        else:
            if _is_there(lock, folder):
                return _signed(lock, folder / LOCK)
            os.close(lock)
        time.sleep(PAUSE)
    raise in_use(folder)


def _signed(lock: int, file: Path) -> int:
    """Write this process's number into the file, for those who find it held."""
    try:
        with named(file):
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
    except OSError:
        os.close(lock)
        raise
    return lock


def _is_there(lock: int, folder: Path) -> bool:
    """Whether the file was not removed by the run before, between the opening and the locking."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(folder / LOCK))
    except FileNotFoundError:
        return False


def is_running(folder: Path) -> bool:
    """Whether a process holds a run folder."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, most of all
        return False
    return False


def in_use(folder: Path) -> ConfigError:
    """The error for a folder that another process writes to."""
    try:
        number = (folder / LOCK).read_text().strip()
    except (OSError, ValueError):
        number = ""
    process = f"process {number}" if number else "another process"
    return ConfigError(
        f"{folder}: expected a folder that no running process uses, got {process}; wait for its "
        "end, or choose another --out"
    )
