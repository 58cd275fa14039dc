"""Every command that the README shows exists, and its flags and config are understood."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.__main__ import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def commands(text: str) -> list[str]:
    """List the commands of the shell blocks, one for each line that is no comment."""
    blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [shlex.join(command) for command in words if command]


class Read(Exception):
    """The command line was understood; nothing is to be run."""


@pytest.fixture
def _dry(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, words: Sequence[str] | None = None) -> Any:
        space = parse(self, words)
        if not hasattr(space, "print_config") or getattr(space, "resume", None):
            raise Read  # the settings of a run that goes on are in its folder
        space.print_config = True
        return space

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.chdir(ROOT)


def read(words: list[str]) -> int:
    try:
        return main(words)
    except Read:
        return 0


def test_readme_shows_commands() -> None:
    assert {"make demo", "make test"} <= set(commands(README))
    assert any(command.startswith("finetune pretrain") for command in commands(README))


@pytest.mark.usefixtures("_dry")
@pytest.mark.parametrize("command", [c for c in commands(README) if c.startswith("finetune ")])
def test_finetune_command_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(shlex.split(command)[1:]) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("_dry")
def test_wrong_command_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(["pretrain", "--no-such-flag", "1"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
    assert read(["no-such-command"]) == 2


@pytest.mark.parametrize("command", [c for c in commands(README) if not c.startswith("finetune ")])
def test_other_command_is_known(command: str) -> None:
    program, *words = shlex.split(command)
    assert program in {"make", "git", "cd", "pip", "python", "export", "source"}
    if program == "make":
        assert set(words) <= TARGETS


def test_commands_are_taken_from_shell_blocks_only() -> None:
    text = "```sh\nmake demo  # all\nfinetune a \\\n  --b c\n```\n```python\nx = 1\n```\n"
    assert commands(text) == ["make demo", "finetune a --b c"]


def test_extras_that_are_named_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = [
        path
        for folder in ("finetune", "tasks", "docs", "notebooks", "configs", "examples")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".md", ".ipynb", ".yaml")
    ]
    named = {
        (extra, path.name)
        for path in [ROOT / "README.md", ROOT / "Makefile", *files]
        for group in re.findall(
            r"(?:finetune|['\" ]\.)\[([a-z0-9,-]+)\]", path.read_text(encoding="utf-8")
        )
        for extra in group.split(",")
    }
    assert len(named) > 5
    assert {one for one in named if one[0] not in known["optional-dependencies"]} == set()
