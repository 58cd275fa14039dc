"""`finetune completion SHELL`: a script by which a shell completes commands, options and values.

All that it offers is read off the commands' own parsers and written into the script, so a shell
that completes starts no Python. Reading imports everything, once: the script is stored in the cache
folder until a source file changes, so that a shell may ask for it whenever it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from finetune.cli.commands import Command
from finetune.cli.completion_scripts import Option, Page, bash, fish, zsh
from finetune.cli.parser import command_parser, parsers_shown_to
from finetune.errors import FinetuneError
from finetune.files.cache_folder import cache_folder
from finetune.runs.families import families

SHELLS: dict[str, Callable[[Sequence[Page]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
MORE = """\
Put one of these where your shell reads it when it starts:
  bash   source <(finetune completion bash)   in ~/.bashrc
  zsh    source <(finetune completion zsh)    in ~/.zshrc, after compinit
  fish   finetune completion fish | source    in ~/.config/fish/config.fish"""
HELP_WIDTH = 60
NUMBERS = re.compile(r"[NX](,[NX])*(,…)?")
"""What stands for a value that no shell can know."""


def command(words: list[str], table: Mapping[str, Command] | None = None) -> int:
    """Run the command; returns the exit status.

    Args:
        words: The words after `finetune completion`.
        table: All commands; for `--help` it is not needed.
    """
    parser = command_parser(
        "completion", "Print a script that completes finetune's commands in your shell.", MORE
    )
    parser.add_argument("shell", choices=SHELLS, help="your shell")
    shell = parser.parse_args(words).shell
    print(_kept_script(shell, table or {}), end="")
    return 0


def _kept_script(shell: str, table: Mapping[str, Command]) -> str:
    """The script from the cache, or a new one, cached if there is a place for it."""
    file = None
    with contextlib.suppress(OSError, UnicodeDecodeError, FinetuneError):
        file = cache_folder() / f"completion-{_key(_packages(table))}.{shell}"
        return file.read_text(encoding="utf-8")
    script = SHELLS[shell](list(read_pages(table)))
    with contextlib.suppress(OSError):
        if file is not None:
            _keep(file, script)
    return script


def _packages(table: Mapping[str, Command]) -> set[str]:
    """The packages whose files say what there is."""
    modules = [entry.run for entry in table.values()]
    modules += [family.make.__module__ for family in families().values()]
    return {module.split(".")[0] for module in modules}


def read_pages(table: Mapping[str, Command]) -> Iterator[Page]:
    """What the parsers of all commands offer."""
    for word, entry in table.items():
        kinds = tuple(entry.kind_words())
        if not kinds:
            yield _page(word, entry.help, _parser(entry, []))
            continue
        yield Page(word, entry.help, (), kinds, kinds=True)
        for kind in kinds:
            yield _page(f"{word} {kind}", "", _parser(entry, [kind]))


def _parser(entry: Command, words: list[str]) -> argparse.ArgumentParser | None:
    """The parser whose help a command would show; None if there is something wrong with it."""
    seen: list[argparse.ArgumentParser] = []
    with parsers_shown_to(seen.append), contextlib.redirect_stdout(io.StringIO()):
        with contextlib.suppress(SystemExit, FinetuneError, ImportError):
            entry([*words, "--help"])
    return seen[0] if seen else None


def _page(path: str, help_: str, parser: argparse.ArgumentParser | None) -> Page:
    actions = parser._actions if parser else []
    positional = next((action for action in actions if not action.option_strings), None)
    options = [option for action in actions for option in _options(action)]
    return Page(path, help_, tuple(options), () if positional is None else _words(positional))


def _options(action: argparse.Action) -> Iterator[Option]:
    if action.help == argparse.SUPPRESS:  # an old name
        return
    words = _words(action)
    many = action.nargs in ("+", "*")
    for flag in action.option_strings:
        if flag.startswith("--"):
            if action.nargs == 0:
                yield Option(flag, _short(action), "none")
            elif words:
                yield Option(flag, _short(action), "words", words, many)
            else:
                named = _is_number(action)
                yield Option(flag, _short(action), "anything" if named else "files", (), many)


def _words(action: argparse.Action) -> tuple[str, ...]:
    words = action.choices if action.choices is not None else vars(action).get("words", ())
    return tuple(map(str, words))


def _is_number(action: argparse.Action) -> bool:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return bool(NUMBERS.fullmatch(metavar)) or action.type not in (None, str, Path)


def _short(action: argparse.Action) -> str:
    """The first words of an option's help."""
    text = (action.help or "").replace("%%", "%")
    text = re.sub(r" \((default: .*|required)\)$", "", text)
    text = re.split(r"[;:] |\. |\.$", text)[0]
    return text if len(text) <= HELP_WIDTH else f"{text[: HELP_WIDTH - 1].rstrip()}…"


def _key(packages: Iterable[str]) -> str:
    """Changes with the version or a file of a package."""
    digest = hashlib.sha256()
    for package in sorted(set(packages)):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in sorted(Path(folder).rglob("*.py")):
                status = file.stat()
                digest.update(f"{file} {status.st_mtime_ns} {status.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _keep(file: Path, script: str) -> None:
    """Write the script in place of older ones."""
    from finetune.files.writing import write_text

    for old in file.parent.glob(f"completion-*{file.suffix}"):
        old.unlink(missing_ok=True)
    write_text(file, script)
