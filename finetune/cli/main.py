"""The command line: YAML and flags -> dataclasses -> a function of `runs`.

Each command imports what it needs when it is called, so that `finetune --help` answers at once.
Every error that a user can cause ends here, as one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from finetune.errors import ConfigError, FinetuneError, nearest

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.run_folder import Results
    from finetune.run_settings import FitRun
    from finetune.task import Task

T = TypeVar("T")
TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
"""What `bench` measures where no encoder is named: BERT-tiny."""
SOURCE = "a YAML config, a run or a checkpoint folder"
FAILURE, USER_ERROR, SIGNALLED = 1, 2, 128
MACHINE_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
KEPT = (
    "what was complete is kept; mend it, and let a run go on from its last checkpoint by --resume"
)


@dataclass(frozen=True)
class Command:
    """A word after `finetune`."""

    group: str
    """Heading under which `finetune --help` lists it."""
    help: str
    """One line for that list."""
    run: Callable[[list[str]], int]
    """Takes the words after the command's own; returns the exit status."""


@dataclass(frozen=True)
class Family:
    """A family of tasks, fine-tuned by one command: `finetune glue TASK`."""

    help: str
    """One line for the list of commands."""
    make: Callable[[FitRun], Task]
    """Builds the task that a run's `task` names (`glue/sst2`)."""
    names: Callable[[], list[str]]
    """The tasks of the family, for `--help`."""


def main(
    argv: Sequence[str] | None,
    families: Mapping[str, Family],
    commands: Mapping[str, Command] | None = None,
) -> int:
    """Run a command line.

    Args:
        argv: The words after `finetune`; None for those of this process.
        families: Task families by command word.
        commands: Further commands by word.

    Returns:
        The exit status: 0; 1 when the machine failed (a full disk); 2 when the user can mend it;
        128 and the signal's number when it was stopped.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    table = {**(commands or {}), **_own_commands(families)}
    try:
        with _signals_as_errors(), _warnings_in_one_line():
            return _dispatch(words, table)
    except SystemExit as done:  # argparse, after --help
        return int(done.code or 0)
    except BrokenPipeError:  # `finetune describe … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (Exception, _Stopped) as error:
        outcome = _outcome(error)
        if outcome is None:
            raise
        message, status = outcome
        print(f"finetune: {' '.join(message.split())}", file=sys.stderr)
        return status


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show a warning as its message, without the place in the code that gave it."""

    def one_line(message: object, *_: object, **__: object) -> str:
        return f"finetune: warning: {' '.join(str(message).split())}\n"

    before, warnings.formatwarning = warnings.formatwarning, one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _dispatch(words: list[str], table: Mapping[str, Command]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(table))
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(version("finetune"))
        return 0
    if words[0] not in table:
        raise ConfigError(f"unknown command {words[0]!r}; {nearest(words[0], table)}")
    return table[words[0]].run(words[1:])


class _Stopped(BaseException):
    """A signal arrived outside of training, which takes it over and stops between two steps.

    No KeyboardInterrupt: Lightning would take that one for itself and end the process.
    """

    def __init__(self, number: int) -> None:
        super().__init__("stopped before it was done; nothing is left half written")
        self.signal = number


@contextmanager
def _signals_as_errors() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind the stack, so that what is half written is removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _outcome(error: BaseException) -> tuple[str, int] | None:
    """What to tell, and the exit status; None for a fault of ours, which shows its traceback."""
    if isinstance(error, FinetuneError):
        return str(error), USER_ERROR
    number = getattr(error, "signal", None)  # ours, or that of training, whose module needs torch
    if number is not None:
        return str(error), SIGNALLED + int(number)
    if type(error).__name__ == "OutOfMemoryError":  # torch's
        return f"{error}: lower batch_size or max_length, or use gradient_checkpointing", USER_ERROR
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in MACHINE_FAILURES:
            return f"{where}{error.strerror}; {KEPT}", FAILURE
        if error.filename:
            return f"{where}{error.strerror}", USER_ERROR
    return None


def _overview(table: Mapping[str, Command]) -> str:
    lines = ["usage: finetune COMMAND [options]     finetune COMMAND --help", ""]
    width = max(map(len, table))
    for group in dict.fromkeys(command.group for command in table.values()):
        lines.append(f"{group}:")
        for word, command in table.items():
            if command.group == group:
                lines.append(f"  {word.ljust(width)}  {command.help}")
        lines.append("")
    return "\n".join(lines).rstrip()


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line of ours and the nearest flag."""

    def error(self, message: str) -> Any:
        if message.startswith("unrecognized arguments: "):
            word = message.split()[2].split("=")[0]
            known = [flag for flag in self._option_string_actions if flag.startswith("--")]
            message = f"unknown option {word}; {nearest(word, known)}"
        raise ConfigError(f"{self.prog.removeprefix('finetune ')}: {message}")


def command_parser(command: str, about: str) -> argparse.ArgumentParser:
    """A parser for the words after `finetune COMMAND`, whose complaint is one line."""
    return _Parser(prog=f"finetune {command}", description=about, allow_abbrev=False)


def _read(
    cls: type[T], command: str, words: list[str], *, positional: str | None = None, names: str = ""
) -> T | None:
    """Settings of a command from its flags and --config; None where it has only printed them."""
    from finetune import settings

    parser = command_parser(command, (cls.__doc__ or "").splitlines()[0])
    if positional:
        parser.add_argument(positional, help=names)
    parser.add_argument("--config", type=Path, help="YAML file with any of the settings below")
    parser.add_argument(
        "--print-config", action="store_true", help="print what the run would use, and stop"
    )
    settings.add_flags(parser, cls)
    space = parser.parse_args(words)
    flags = settings.given(cls, space)
    if positional:
        flags[positional] = f"{command}/{getattr(space, positional)}"
    result = settings.read(cls, space.config, flags)
    if space.print_config:
        print(settings.dump(result), end="")
        return None
    return result


def _own_commands(families: Mapping[str, Family]) -> dict[str, Command]:
    def make_task(run: FitRun) -> Task:
        from finetune.run_folder import family_of

        return families[family_of(run.task, families)].make(run)

    own = {
        "tokenizer": Command("build", "train a tokenizer on a corpus", _tokenizer),
        "pretrain": Command("build", "pretrain an encoder on raw text", _pretrain),
    }
    for word, family in families.items():
        own[word] = Command("benchmark", family.help, _fine_tune(word, family, make_task))
    own["evaluate"] = Command("use", "score a finished run again", _evaluate(make_task))
    own["describe"] = Command(
        "measure", "parameters and FLOPs of a config or checkpoint", _describe
    )
    own["bench"] = Command("measure", "speed of this machine and of an encoder on it", _bench)
    return own


def _tokenizer(words: list[str]) -> int:
    from finetune import runs
    from finetune.run_settings import TokenizerRun

    run = _read(TokenizerRun, "tokenizer", words)
    if run is not None:
        runs.make_tokenizer(run)
    return 0


def _pretrain(words: list[str]) -> int:
    from finetune import runs
    from finetune.run_settings import PretrainRun

    run = _read(PretrainRun, "pretrain", words)
    if run is not None:
        _show(runs.pretrain(run), Path(run.out))
    return 0


def _fine_tune(
    word: str, family: Family, make_task: Callable[[FitRun], Task]
) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune import runs
        from finetune.run_settings import FitRun

        run = _read(FitRun, word, words, positional="task", names=", ".join(family.names()))
        if run is not None:
            results = runs.fit(run, make_task)
            _show(results, Path(runs.folder_of(run)))
        return 0

    return command


def _evaluate(make_task: Callable[[FitRun], Task]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune import runs

        parser = command_parser("evaluate", "Score a finished run again, from its best checkpoint.")
        parser.add_argument("run", type=Path, help="a fine-tuning run's folder")
        parser.add_argument("--split", help="a labelled split; default: the validation split")
        space = parser.parse_args(words)
        _show(runs.evaluate(space.run, make_task, space.split), space.run)
        return 0

    return command


def _show(results: Results, folder: Path) -> None:
    """A table on stderr for people, the metrics as one JSON line on stdout for programs."""
    from finetune.run_folder import results_table, say

    say(results_table(results))
    say(f"run folder: {folder}")
    print(json.dumps({key: results[key] for key in ("task", "split", "metrics")}))


def _describe(words: list[str]) -> int:
    parser = command_parser(
        "describe", "Parameters and floating-point operations a token, part by part."
    )
    parser.add_argument("source", type=Path, nargs="+", help=SOURCE)
    space = parser.parse_args(words)
    from finetune.encoder.cost import describe

    tables = [describe(_encoder_config(source)) for source in space.source]
    if len(tables) > 1:
        tables = [f"{name}\n{text}" for name, text in zip(space.source, tables, strict=True)]
    print("\n\n".join(tables))
    return 0


def _bench(words: list[str]) -> int:
    parser = command_parser("bench", "Measure matrix products, and a training step of encoders.")
    parser.add_argument("source", type=Path, nargs="*", help=f"{SOURCE}; default: 2 blocks of 128")
    parser.add_argument("--batch-size", type=_positive, default=32, help="sequences (default: 32)")
    parser.add_argument(
        "--length", type=_positive, default=128, help="tokens in each, at most (default: 128)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="for each measurement (default: 2)"
    )
    space = parser.parse_args(words)
    from finetune.benchmark import bench, bench_table
    from finetune.encoder import EncoderConfig
    from finetune.training.trainer import flush_denormals, pick_device

    flush_denormals()
    results = {}
    encoders = {str(source): _encoder_config(source) for source in space.source}
    for source, config in (encoders or {"2x128": EncoderConfig.from_dict(TINY)}).items():
        learned = config.position == "learned"
        longest = config.max_position_embeddings if learned else space.length
        results[source] = bench(
            config,
            pick_device("auto"),
            batch_size=space.batch_size,
            length=min(space.length, longest),
            seconds=space.seconds,
        )
    print(bench_table(results))
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return int(text)


def _encoder_config(source: Path) -> EncoderConfig:
    """The encoder that a checkpoint holds, or that a run with these settings would build."""
    from finetune import settings
    from finetune.checkpoint import find_tokenizer, load_checkpoint
    from finetune.run_settings import FitRun, PretrainRun
    from finetune.values import load

    if source.is_dir():
        return load_checkpoint(source).encoder_config
    content = load(source)
    if not isinstance(content, dict) or "encoder" not in content:
        raise ConfigError(f"{source}: expected settings with a section 'encoder', found none")
    of_fit, of_pretrain = ({field.name for field in fields(cls)} for cls in (FitRun, PretrainRun))
    if content.keys() & (of_fit - of_pretrain):
        fit = settings.read(FitRun, source, {"encoder_from": "none"})
        config, tokenizer, size = fit.encoder, fit.tokenizer, fit.encoder.vocab_size
    else:
        run = settings.read(PretrainRun, source, {"corpus": ["-"], "out": "-"})
        config, tokenizer, size = run.encoder, run.tokenizer, run.vocabulary.vocab_size
    if tokenizer is not None:
        size = find_tokenizer(tokenizer).vocab_size
    return replace(config, vocab_size=size)
