"""From the words of a command line to an exit status; every error ends here as one line."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from types import FrameType
from typing import Any

from finetune.cli.commands import Command, command_table
from finetune.cli.streams import drop_results, has_no_reader, usable_streams
from finetune.console.output import one_line, quoted
from finetune.console.tables import painted
from finetune.errors import ConfigError, FinetuneError, nearest
from finetune.machine.circumstances import recording_command
from finetune.machine.processes import is_first_task
from finetune.machine.restarts import cannot_resume, of_command, requeue_after, to_continue
from finetune.ranges import can_be_written

GROUPS = ("start", "build", "benchmark", "your data", "use", "look", "measure")
"""Headings of `finetune --help` in their order; further ones come last."""
LOOP = "Symlink loop from "
FAILURE, USER_ERROR, SIGNALLED = 1, 2, 128
MACHINE_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
SMALLER = (
    "raise micro_batches (the steps stay the same), lower batch_size or max_length, or use "
    "gradient_checkpointing"
)
WORKER_LOST = (
    "a worker process that prepares batches was killed; if memory ran out, lower num_workers or "
    "batch_size; what was saved is intact: "
)
KEPT = "files that were complete are kept; fix this, then "


def main(argv: Sequence[str] | None, more: Mapping[str, Command]) -> int:
    """Run a command line.

    Args:
        argv: The arguments after `finetune`; None for those of this process.
        more: Further commands by word.

    Returns:
        The exit status: 0; 1 when nobody read what was printed; 2 when the user can fix it (a
        full disk too); 128 and the signal's number when it was stopped.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's advice to those who program it
    arguments = list(sys.argv[1:] if argv is None else argv)
    with usable_streams(), of_command():
        return _run(arguments, more, is_program=argv is None)


def _run(arguments: list[str], more: Mapping[str, Command], *, is_program: bool) -> int:
    try:
        with _signals_as_errors(is_program=is_program), _warnings_in_one_line():
            _check_words(arguments)
            with recording_command(arguments):
                status = _status(arguments, command_table(more))
            sys.stdout.flush()
            return status
    except (Exception, _Stopped) as error:
        is_lost = drop_results()
        if isinstance(error, BrokenPipeError) and (is_lost or has_no_reader()):
            return FAILURE  # `finetune describe … | head`
        if isinstance(error, OSError) and is_lost and error.filename is None:
            error = OSError(error.errno, error.strerror, "stdout")
        stop = _stop_behind(error)
        outcome = _outcome(stop or error)
        if outcome is None:
            raise
        if stop is not None and is_first_task() and (requeued := requeue_after(stop)):
            print(requeued, file=sys.stderr)
        message, status = outcome
        prefix = painted("finetune:", "red", sys.stderr)
        print(f"{prefix} {one_line(message)}", file=sys.stderr)
        return status


def _status(arguments: list[str], table: Mapping[str, Command]) -> int:
    try:
        return (_hushed if "--quiet" in arguments else _dispatch)(arguments, table)
    except SystemExit as done:  # argparse, after --help
        return int(done.code or 0)


def _check_words(arguments: Sequence[str]) -> None:
    """Refuse words that no file of a run could hold: Python reads bytes that are no UTF-8 so."""
    for word in arguments:
        if not can_be_written(word):
            if "\0" not in word and sys.getfilesystemencoding() != "utf-8":
                raise ConfigError(
                    "this locale has no names of files beyond ASCII: set LC_ALL=C.UTF-8, or "
                    "PYTHONUTF8=1"
                )
            raise ConfigError(
                f"expected words in UTF-8, without NUL, got {quoted(word)}; rename the file, or "
                "write the word in UTF-8"
            )


def _hushed(arguments: list[str], table: Mapping[str, Command]) -> int:
    """Run a command with stderr shut: what it says is printed only if it fails without an error."""
    captured = io.StringIO()
    with redirect_stderr(captured):
        status = _dispatch(arguments, table)
    if status:
        print(captured.getvalue(), end="", file=sys.stderr)
    return status


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show a warning as its message, without the place in the code that gave it."""

    def shown(message: object, *_: object, **__: object) -> str:
        prefix = painted("finetune: warning:", "yellow", sys.stderr)
        return f"{prefix} {one_line(str(message))}\n"

    before, warnings.formatwarning = warnings.formatwarning, shown
    try:
        yield
    finally:
        warnings.formatwarning = before


def _dispatch(arguments: list[str], table: Mapping[str, Command]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        print(_overview(table))
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("finetune"))
        return 0
    if arguments[0] not in table:
        raise ConfigError(f"unknown command {arguments[0]!r}; {nearest(arguments[0], table)}")
    if arguments[0] == "completion":  # of all commands, also those that others add
        from finetune.cli import completion

        return completion.command(arguments[1:], table)
    command = table[arguments[0]]
    if not command.resumes:
        cannot_resume()
    return command(arguments[1:])


class _Stopped(BaseException):
    """A signal arrived outside of training, which takes it over and stops between two steps.

    No KeyboardInterrupt: Lightning would take that one for itself and end the process.
    """

    def __init__(self, number: int) -> None:
        super().__init__("stopped; no file was left half written")
        self.signal = number


@contextmanager
def _signals_as_errors(*, is_program: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind the stack, so that what is half written is removed.

    Only the first of them: another one would cut off the removal, or a training's own stop. A
    program that is stopped ignores them until its end.
    """
    has_stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal has_stopped
        if not has_stopped and _stop_behind(sys.exception()) is None:
            has_stopped = True
            raise _Stopped(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            before[number] = signal.signal(number, stop)
    try:
        yield
    except BaseException as error:
        if is_program and _stop_behind(error) is not None:
            before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _stop_behind(error: BaseException | None) -> BaseException | None:
    """The stop that an error came of: a library that is cut off fails in its own way.

    As in the midst of its import, or while it writes a file. Stops have a `signal`, here and in
    training, whose module needs torch.
    """
    while error is not None and not isinstance(getattr(error, "signal", None), int):
        error = error.__context__
    return error


def _outcome(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit status; None for a fault of ours, which shows its traceback."""
    if isinstance(error, FinetuneError):
        return str(error), USER_ERROR
    number = getattr(error, "signal", None)  # ours, or that of training, whose module needs torch
    if number is not None:
        return str(error), SIGNALLED + int(number)
    if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):  # torch's
        return WORKER_LOST + to_continue(), USER_ERROR
    if _lacks_memory(error):
        return f"out of memory: {error or 'no memory left'}: {SMALLER}", USER_ERROR
    if isinstance(error, RuntimeError) and str(error).startswith(LOOP):  # of pathlib
        return f"{str(error).removeprefix(LOOP)}: too many levels of symbolic links", USER_ERROR
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in MACHINE_FAILURES:
            return f"{where}{error.strerror}; {KEPT}{to_continue()}", USER_ERROR
        if error.filename:
            return f"{where}{error.strerror}", USER_ERROR
    return None


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory ran out: of the GPU, of Python, or of torch, which has no class for it."""
    of_gpu = type(error).__name__ == "OutOfMemoryError"
    return of_gpu or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


def _overview(table: Mapping[str, Command]) -> str:
    lines = ["usage: finetune COMMAND [options]     finetune COMMAND --help", ""]
    width = max(map(len, table))
    for group in dict.fromkeys([*GROUPS, *(command.group for command in table.values())]):
        commands = {word: command for word, command in table.items() if command.group == group}
        if commands:
            rows = [f"  {word.ljust(width)}  {each.help}" for word, each in commands.items()]
            lines += [f"{group}:", *rows, ""]
    return "\n".join(lines).rstrip()
