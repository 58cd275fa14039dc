"""The words of a command: a parser whose complaint is one line, and settings from flags."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from finetune.console.output import put, quoted
from finetune.errors import ConfigError, nearest
from finetune.machine.restarts import ask_for_requeue
from finetune.ranges import Range
from finetune.settings.renames import our_flag

T = TypeVar("T")

FIRST = tuple(
    f"--{name}"
    for name in (
        "config corpus encoder dataset data task train validation text-column label-column out "
        "seeds max-epochs learning-rate batch-size unfreeze resume dry-run max-length vocab-size "
        "hidden-size num-hidden-layers max-minutes max-steps tokenizer find-lr"
    ).split()
)
"""Where a command has MANY options, `--help` shows the first 15 of these that it has."""
MANY = 40
TRUE = ("true", "yes", "on")
TRUE_OR_FALSE = (*TRUE, "false", "no", "off", "none")


_shown_to: ContextVar[Callable[[argparse.ArgumentParser], None] | None]
_shown_to = ContextVar("_shown_to", default=None)


@contextmanager
def parsers_shown_to(look: Callable[[argparse.ArgumentParser], None]) -> Iterator[None]:
    """In the block `--help` prints nothing: what would be printed is handed over as a parser."""
    token = _shown_to.set(look)
    try:
        yield
    finally:
        _shown_to.reset(token)


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line of ours and the nearest flag."""

    shows_all = False

    def format_help(self) -> str:
        if self.shows_all or len(self._actions) < MANY:
            return super().format_help()
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        flags = {flag: action for action in shown for flag in action.option_strings}
        first = [flags[flag] for flag in FIRST if flag in flags][:15]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [], [])
        formatter.add_text(self.description)
        positional = [action for action in shown if not action.option_strings]
        for title, actions in (("positional arguments", positional), ("options used most", first)):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        more = len(shown) - len(positional) - len(first)
        formatter.add_text(f"{more} more options: {self.prog} --help-all")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def print_help(self, file: Any = None) -> None:
        look = _shown_to.get()
        if look is None:
            print(self.format_help(), end="", file=file)  # argparse hides that it cannot be written
        else:
            look(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._check_switches(args or ())
        return super().parse_known_args(args and self._with_commas(args), namespace)

    def _check_switches(self, arguments: Sequence[str]) -> None:
        """Refuse a value behind a flag that has none, which would be taken for another argument."""
        kinds = argparse.BooleanOptionalAction
        actions = [action for action in self._actions if isinstance(action, kinds)]
        switches = {flag for action in actions for flag in action.option_strings}
        words = [part for word in arguments for part in word.split("=", 1)]
        for flag, value in pairwise(words):
            if flag in switches and value.lower() in TRUE_OR_FALSE:
                name = flag.removeprefix("--no-").removeprefix("--")
                is_on = (value.lower() in TRUE) != flag.startswith("--no-")
                self.error(
                    f"{flag} takes no value, got {value}; give --{'' if is_on else 'no-'}{name}"
                )

    def _with_commas(self, arguments: Sequence[str]) -> list[str]:
        """`--seeds 1 2 3` as `--seeds 1,2,3`.

        Not by `nargs`: in `squad --seeds 1,2 2.0` it would take the task for a seed.
        """
        actions = [action for action in self._actions if vars(action).get("numbers")]
        lists = {flag for action in actions for flag in action.option_strings}
        joined: list[str] = []
        for word in arguments:
            in_list = len(joined) > 1 and joined[-2] in lists and _are_digits(joined[-1])
            if in_list and _are_digits(word):
                joined[-1] = f"{joined[-1].strip(',')},{word.strip(',')}"
            else:
                joined.append(word)
        return joined

    def error(self, message: str) -> Any:
        if message.startswith("unrecognized arguments: "):
            word = message.split()[2].split("=")[0]
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            known = [flag for action in shown for flag in action.option_strings if flag[1] == "-"]
            ours = our_flag(word, known)
            longer = [flag for flag in known if flag.startswith(f"{word}-")]
            hint = f"it is {ours} here" if ours else nearest(word, longer or known)
            message = f"unknown option {word}; {hint}"
        raise ConfigError(f"{self.prog.removeprefix('finetune ')}: {message}")


class _HelpAll(argparse.Action):
    """`--help`, with every option."""

    def __call__(self, parser: Any, *_: object) -> None:
        parser.shows_all = True
        parser.print_help()
        parser.exit()


def _are_digits(word: str) -> bool:
    """Whether a word is whole numbers with commas between them."""
    return word.replace(",", "").isdecimal()


def command_parser(command: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """A parser for the arguments after `finetune COMMAND`, whose complaint is one line.

    Args:
        command: The word after `finetune`.
        about: What it does, in one line.
        more: Text that `--help` shows below the options, as it stands.
    """
    parser = _Parser(
        prog=f"finetune {command}",
        description=about,
        epilog=more or None,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--quiet", action="store_true", help="print errors only, and the result on stdout"
    )
    return parser


def add_json(
    parser: argparse.ArgumentParser, about: str = "print all results as JSON on stdout"
) -> None:
    """Give a parser `--json`; what a command prints otherwise is for people, or shorter."""
    parser.add_argument("--json", action="store_true", help=about)


def add_ensemble(parser: argparse.ArgumentParser, verb: str) -> None:
    """Give a parser `--ensemble`."""
    about = "the average of all seeds' probabilities (numbers, scores of spans)"
    parser.add_argument("--ensemble", action="store_true", help=f"{verb} {about}")


def whole(least: int, most: int = 10**9) -> Callable[[str], int]:
    """The type of an option that is a whole number in a range."""
    allowed = Range(least, most)

    def read(text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) < 30
        if not digits or not allowed.allows(int(text)):
            raise argparse.ArgumentTypeError(
                f"expected a whole number {allowed}, got {quoted(text)}"
            )
        return int(text)

    return read


def seconds(text: str) -> float:
    """The type of an option that is a duration.

    Raises:
        ArgumentTypeError: It is no number above 0, or longer than a day.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    allowed = Range(0, 86_400, above=True)
    if not allowed.allows(number):
        raise argparse.ArgumentTypeError(f"expected a number {allowed}, got {quoted(text)}")
    return number


def check_is_there(run: Path) -> None:
    """Refuse a wrong path before torch is imported.

    Raises:
        ConfigError: There is nothing of this name.
    """
    if not run.exists():
        raise ConfigError(f"{run}: expected a run folder with config.yaml, got none")


positive = whole(1)
"""The type of an option that counts something."""


class _Formatter(argparse.HelpFormatter):
    """Lays out options as argparse does, and leaves the tables below them as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n\n".join(_fitted(paragraph, width) for paragraph in text.split("\n\n"))


def _fitted(paragraph: str, width: int) -> str:
    """Prose that is wider than the terminal is wrapped again; a table, which has gaps, is not."""
    if "  " in paragraph or all(len(line) <= width for line in paragraph.splitlines()):
        return paragraph
    return textwrap.fill(paragraph, width)


def read_settings(
    cls: type[T],
    command: str,
    arguments: list[str],
    *,
    fixed: Mapping[str, object] | None = None,
    names: Sequence[str] = (),
    about: str = "",
    check: Callable[[T, Iterable[str]], None] | None = None,
) -> T | None:
    """Settings of a command from its flags and --config; None where it has only printed them.

    Args:
        cls: The dataclass of settings.
        command: The word after `finetune`.
        arguments: Those after that.
        fixed: Settings that the command itself gives.
        names: Where a task comes first among the words: those there are, for --help.
        about: More lines for --help.
        check: Is shown the settings and the keys that flags gave, and may refuse them.
    """
    from finetune.settings import fields as settings

    parser = command_parser(command, (cls.__doc__ or "").splitlines()[0], about)
    add_json(parser)
    if names:
        # Beside a family's own data, which files name, its public tasks are optional.
        count = "?" if "task" in (fixed or {}) else None
        action = parser.add_argument("task", nargs=count, help=", ".join(names))
        vars(action)["words"] = tuple(names)  # no `choices`: a wrong name has a better message
    parser.add_argument(
        "--config", type=Path, help="YAML file with any of the settings; flags override it"
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the settings that the run would use, and exit",
    )
    settings.add_flags(parser, cls)
    # One line for some hundred options, which argparse would list twice.
    task = " [task]" if names and "task" in (fixed or {}) else " task" if names else ""
    parser.usage = f"%(prog)s{task} [options]"
    space = parser.parse_args(arguments)
    flags = {**settings.given(cls, space), **(fixed or {})}
    if names and space.task is not None:
        flags["task"] = f"{command}/{space.task}"
    elif names and _has_task(space.config):
        del flags["task"]  # the family's own data, in whose place the file names a task
    if flags.get("resume") and space.config is None:
        result = _read_resumed(cls, flags)
    else:
        result = settings.read(cls, space.config, flags)
    if check is not None:
        check(result, flags)
    if getattr(getattr(result, "checkpoints", None), "requeue", False):
        ask_for_requeue()
    if space.print_config:
        as_json = json.dumps(settings.plain(result), ensure_ascii=False)
        put(as_json if space.json else settings.dump(result).rstrip("\n"))
        return None
    return result


def _has_task(config: Path | None) -> bool:
    from finetune.settings.values import load

    content = None if config is None else load(config)
    return isinstance(content, dict) and bool(content.get("task"))


def _read_resumed(cls: type[T], flags: Mapping[str, object]) -> T:
    """The settings that the run was started with, under the flags that were given again."""
    from finetune.runs.folder import RunFolder
    from finetune.settings import fields as settings

    folder = RunFolder(_folder_to_resume(cls, flags))
    if folder.config_file.is_file():
        return settings.read(cls, folder.config_file, flags, warn=False)
    try:
        return settings.read(cls, None, flags)
    except ConfigError as error:
        if folder.adapted.config_file.is_file():
            raise ConfigError(
                f"{folder.path}: the run was stopped while its encoder was adapted "
                f"({folder.adapted.path}); repeat the command that started it, with --resume"
            ) from error
        where = "" if flags.get("out") else "name the run's folder by --out, or "
        raise ConfigError(
            f"{folder.path} contains no run to resume; {where}start one without --resume"
        ) from error


def _folder_to_resume(cls: type[Any], flags: Mapping[str, object]) -> Path:
    """RUN of a run that is resumed, by default named after its task or its training file."""
    from finetune.runs.fits import folder_of
    from finetune.runs.settings import FitRun, default_folder
    from finetune.settings import fields as settings

    if out := flags.get("out"):
        return Path(str(out))
    folder = Path(default_folder(str(flags.get("task"))))
    if not issubclass(cls, FitRun) or "train" not in flags or folder.is_dir():
        return folder
    return Path(folder_of(settings.read(cls, None, {"encoder_from": "none", **flags})))
