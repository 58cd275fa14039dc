"""The standard streams of a command: closed, full, cut off or in another encoding, none ends a run.

What is shown on stderr is for one who watches, and a run continues when nobody does any more. What
goes to stdout is the result: where it cannot be written, the command says so and fails.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STANDARD = ("stdin", "stdout", "stderr")
"""By their descriptors, 0 to 2."""


@contextmanager
def usable_streams() -> Iterator[None]:
    """In the block the standard streams are there, in UTF-8, and writing to stderr never fails."""
    _open_closed()
    before = sys.stderr
    for stream in (sys.stdout, sys.stderr):
        _speak_utf8(stream)
    if isinstance(sys.stderr, io.TextIOWrapper) and _is_on(sys.stderr, 2):
        sys.stderr = _never_failing(sys.stderr)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.stderr.flush()
        sys.stderr = before


def _open_closed() -> None:
    """Give what a shell closed (`>&-`) a place to go; else the next file would be opened there."""
    for number, name in enumerate(STANDARD):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            os.fstat(number)
            continue  # open, and Python has no stream of it for a reason of its own
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
    for number, name in enumerate(STANDARD):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _speak_utf8(stream: object) -> None:
    """Write UTF-8, as in all files: a C locale has no other letters than those of English."""
    if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
        if (
            stream.encoding.lower() in ("ascii", "ansi_x3.4-1968", "us-ascii")
            or not stream.isatty()
        ):
            stream.reconfigure(encoding="utf-8")
        stream.reconfigure(errors="backslashreplace")


def _is_on(stream: io.TextIOWrapper, number: int) -> bool:
    """Whether a stream is the process's own, and no other that stands in its place."""
    try:
        return stream.fileno() == number
    except (OSError, ValueError):
        return False


class _Lossy(io.FileIO):
    """A file that drops what it cannot write."""

    def write(self, content: object) -> int:
        with suppress(OSError):  # a full disk, a pipe that nobody reads, a terminal that is gone
            return super().write(content)  # type: ignore[arg-type]
        return len(memoryview(content).cast("B"))  # type: ignore[arg-type]


def _never_failing(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with suppress(OSError):
        stream.flush()
    raw = _Lossy(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=True,
    )


def drop_results() -> bool:
    """Let what cannot be written go nowhere, so that the end of the process is quiet.

    Returns:
        Whether there was such a thing.
    """
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return True
    return False


def has_no_reader() -> bool:
    """Whether stdout is a pipe whose other end is closed (`finetune describe … | head`)."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
