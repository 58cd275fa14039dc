"""What a run says to people: on stderr, and in its folder's log."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from finetune.console.output import one_line, printable
from finetune.machine.processes import first_process_only, is_first_process

FAILED = "failed: "
"""How the last line begins where an error ended the run, and not a stop."""
_logs: list[BinaryIO] = []
"""The logs that are open: that of a run, and that of one of its seeds."""


@first_process_only
def say(message: str) -> None:
    """Print a message for the user (stderr, so that stdout has results only)."""
    print(printable(message), file=sys.stderr, flush=True)
    for log in _logs:
        _write(log, message)


def note(message: str) -> None:
    """Print what is being done; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        say(message)


@contextmanager
def logged(file: Path) -> Iterator[None]:
    """In the block what is said, warnings and the error that ends it are added to a text file.

    A log that cannot be written stops no run: all that it contains was shown as well.
    """
    if not is_first_process():
        yield
        return
    try:
        log = file.open("ab", buffering=0)
    except OSError:
        yield
        return
    shown = warnings.showwarning

    def show(message: Warning | str, *arguments: Any, **more: Any) -> None:
        shown(message, *arguments, **more)
        _write(log, f"warning: {one_line(str(message))}")

    _write(log, time.strftime("--- %Y-%m-%d %H:%M:%S"))
    _logs.append(log)
    warnings.showwarning = show
    try:
        yield
    except BaseException as error:
        begins = "stopped: " if hasattr(error, "signal") else FAILED
        _write(log, begins + one_line(f"{type(error).__name__}: {error}"))
        raise
    finally:
        warnings.showwarning = shown
        _logs.remove(log)
        with suppress(OSError):
            log.close()


def error_in(file: Path) -> str | None:
    """The error that ended the last session of a log; None where it ended otherwise."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return None
    last = lines[-1].decode(errors="replace") if lines else ""
    return last.removeprefix(FAILED) if last.startswith(FAILED) else None


def _write(log: BinaryIO, message: str) -> None:
    with suppress(OSError):
        log.write(f"{printable(message)}\n".encode(errors="backslashreplace"))
