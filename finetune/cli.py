"""The command line: YAML and flags -> dataclasses -> a function of `runs`.

Each command imports what it needs when it is called, so that `finetune --help` answers at once. Every
error that a user can cause ends here as one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from finetune.errors import ConfigError, FinetuneError, nearest

if TYPE_CHECKING:
    from finetune.run_folder import Results
    from finetune.run_settings import FitRun
    from finetune.task import Task

T = TypeVar("T")
USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


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
        The exit status: 0; 1 when the machine failed (a full disk); 2 when the user can mend it; 128 and
        the signal's number when the run was stopped.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    table = {**(commands or {}), **_own_commands(families)}
    try:
        return _dispatch(words, table)
    except FinetuneError as error:
        return _complain(str(error), USER_ERROR)
    except KeyboardInterrupt:
        return _complain("stopped", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG):
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _complain(
            f"{where}{error.strerror}; the last good checkpoint is kept, go on with --resume",
            FAILURE,
        )


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
    try:
        return table[words[0]].run(words[1:])
    except Exception as error:
        number = getattr(error, "signal", None)  # Interrupted, whose module needs torch
        if number is None:
            raise
        return _complain(str(error), 128 + int(number))


def _complain(message: str, status: int) -> int:
    print(f"finetune: {' '.join(message.split())}", file=sys.stderr)
    return status


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


def _parser(command: str, about: str) -> _Parser:
    return _Parser(prog=f"finetune {command}", description=about, allow_abbrev=False)


def _read(
    cls: type[T], command: str, words: list[str], *, positional: str | None = None, names: str = ""
) -> T | None:
    """Settings of a command from its flags and --config; None where it has only printed them."""
    from finetune import settings

    parser = _parser(command, (cls.__doc__ or "").splitlines()[0])
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

        parser = _parser("evaluate", "Score a finished run again, from its best checkpoint.")
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
    parser = _parser("describe", "Parameters and floating-point operations a token, part by part.")
    parser.add_argument("source", type=Path, help="a YAML config, a run or a checkpoint folder")
    space = parser.parse_args(words)
    from finetune.encoder.cost import describe

    print(describe(_encoder_config(space.source)))
    return 0


def _bench(words: list[str]) -> int:
    parser = _parser("bench", "Measure matrix products, and a training step of an encoder.")
    parser.add_argument("source", type=Path, help="a YAML config, a run or a checkpoint folder")
    space = parser.parse_args(words)
    from finetune.benchmark import bench, bench_table
    from finetune.training.trainer import flush_denormals, pick_device

    flush_denormals()
    result = bench(_encoder_config(space.source), pick_device("auto"))
    print(bench_table({str(space.source): result}))
    return 0


def _encoder_config(source: Path) -> Any:
    from finetune.checkpoint import load_checkpoint
    from finetune.encoder import EncoderConfig
    from finetune.values import load

    if source.is_dir():
        return load_checkpoint(source).encoder_config
    content = load(source)
    section = content.get("encoder", content) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: expected a YAML mapping with an 'encoder' section")
    return EncoderConfig.from_dict(section)
