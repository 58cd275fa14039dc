"""What shells offer after `finetune`: read off the parsers, tried in the shells themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.cli.commands import command_table
from finetune.cli.completion import SHELLS, read_pages
from finetune.cli.completion_scripts import Page
from tasks.__main__ import COMMANDS

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses

ROOT = Path(__file__).parent.parent.parent
TABLE = command_table(COMMANDS)
KINDS = ["attention", "heads", "probe", "similarity", "words", "frequency"]

# What is typed -> what is to be among the offers, and what is not.
OFFERS: dict[str, tuple[list[str], list[str]]] = {
    "": (["pretrain", "glue", "runs", "submit", "completion"], ["cola", "notes.txt"]),
    "pre": (["pretrain", "predict"][:1], ["glue"]),
    "glue ": (["cola", "mnli"], ["glue", "--seed", "notes.txt"]),
    "glue co": (["cola"], ["mnli"]),
    "squad ": (["1.1", "2.0"], ["cola"]),
    "glue cola --unfr": (["--unfreeze"], ["--seed"]),
    "glue cola --": (["--learning-rate", "--resume", "--no-resume", "--json", "--quiet"], []),
    "glue cola --unfreeze ": (["gradual", "chain", "lp-ft"], ["notes.txt", "cola"]),
    "glue cola --schedule-scope ": (["run", "phase"], ["gradual"]),
    "glue cola --config ": (["notes.txt"], ["cola"]),
    "glue cola --config no": (["notes.txt"], ["a b.txt"]),
    "glue cola --config a": (["a b.txt"], ["notes.txt"]),
    "glue cola --seed ": ([], ["notes.txt", "cola"]),
    "pretrain --masking ": (["token", "word", "span"], []),
    "pretrain --corpus notes.txt a": (["a b.txt"], ["notes.txt"]),
    "classify --dataset ": (["imdb", "agnews"], ["notes.txt"]),
    "evaluate no": (["notes.txt"], []),
    "evaluate --json no": (["notes.txt"], []),
    "export notes.txt --format ": (["hf", "onnx"], []),
    "inspect ": (KINDS, ["notes.txt"]),
    "inspect probe --un": (["--untrained"], []),
    "inspect words notes.txt --": (["--count"], ["--untrained"]),
    "inspect words no": (["notes.txt"], []),
    "cache ": (["list", "clear"], []),
    "completion ": (["bash", "zsh", "fish"], []),
}


BEHIND_A_SIGN = ["glue cola --unfreeze=", "glue cola --unfreeze=gr"]
MARK = "----"
Offered = dict[str, list[str]]


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return list(read_pages(TABLE))


@pytest.fixture(scope="module")
def folder(pages: list[Page], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts for all shells, and two files to be offered."""
    made: Path = tmp_path_factory.mktemp("shells")
    for shell, script in SHELLS.items():
        (made / f".{shell}").write_text(script(pages), encoding="utf-8")
    for name in ("notes.txt", "a b.txt"):
        (made / name).touch()
    return made


def ask(shell: list[str], setup: str, ask_one: Callable[[str], str], folder: Path) -> Offered:
    """What a shell offers for each line: asked in one process, for its start takes longest."""
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config")}
    lines = [*OFFERS, *BEHIND_A_SIGN]
    script = "\n".join([setup, *(f"{ask_one(line)}\necho {MARK}" for line in lines)])
    done = subprocess.run(
        [*shell, script], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.stderr == ""
    return dict(zip(lines, (part.splitlines() for part in done.stdout.split(MARK)), strict=False))


def words(typed: str) -> str:
    return " ".join(f"'{word}'" for word in ["finetune", *typed.split(" ")])


@pytest.fixture(scope="module")
def in_bash(folder: Path) -> Offered:
    def one(typed: str) -> str:
        typed = typed.replace("=", " = ").removesuffix(" ") if "=" in typed else typed
        return f"""
COMP_WORDS=({words(typed)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_finetune
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

    return ask(["bash", "--norc", "-c"], "source .bash", one, folder)


@pytest.fixture(scope="module")
def in_zsh(folder: Path) -> Offered:
    """Outside of its line editor zsh has no completion: what the script calls is stood in for."""
    setup = """
compdef() { :; }
source .zsh
_describe() { local name=${@[-1]}; print -l -- ${${(P)name}%%:*}; }
compadd() { if [[ $1 == -a ]]; then print -l -- ${(P)2}; else shift; print -l -- $@; fi; }
compset() { :; }
_files() { print -l -- ${words[CURRENT]}*(N); }
"""
    return ask(
        ["zsh", "-f", "-c"],
        setup,
        lambda typed: f"words=({words(typed)}); CURRENT=$#words; _finetune",
        folder,
    )


@pytest.fixture(scope="module")
def in_fish(folder: Path) -> Offered:
    offered = ask(
        ["fish", "--no-config", "-c"],
        "source .fish",
        lambda typed: f"complete -C 'finetune {typed}'",
        folder,
    )
    return {
        typed: [line.partition("\t")[0].replace("\\ ", " ").rpartition("=")[2] for line in lines]
        for typed, lines in offered.items()
    }


def check(offered: list[str], typed: str) -> None:
    wanted, unwanted = OFFERS[typed]
    assert [word for word in wanted if word not in offered] == []
    assert [word for word in unwanted if word in offered] == []


@pytest.mark.parametrize("typed", OFFERS)
def test_bash_offers(typed: str, in_bash: Offered) -> None:
    check(in_bash[typed], typed)


@pytest.mark.parametrize("typed", OFFERS)
def test_zsh_offers(typed: str, in_zsh: Offered) -> None:
    begun = typed.rpartition(" ")[2]  # zsh itself leaves out what does not begin so
    check([word for word in in_zsh[typed] if word.startswith(begun)], typed)


@pytest.mark.parametrize("typed", OFFERS)
def test_fish_offers(typed: str, in_fish: Offered) -> None:
    check(in_fish[typed], typed)


@pytest.mark.parametrize("shell", SHELLS)
def test_values_are_offered_behind_a_sign(shell: str, request: pytest.FixtureRequest) -> None:
    for typed in BEHIND_A_SIGN:
        assert "gradual" in request.getfixturevalue(f"in_{shell}")[typed]


def test_every_option_of_every_command_is_offered(pages: list[Page], call: Call) -> None:
    assert {page.path.split()[0] for page in pages} == TABLE.keys()
    for page in pages:
        if page.kinds:
            assert list(page.first) == list(TABLE[page.path].kind_words())
            continue
        shown = call(*page.path.split(), "--help-all").out.partition("options:\n")[2]
        flags = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.M))
        assert flags - {option.flag for option in page.options} == set(), page.path


def test_a_choice_has_its_words_and_a_number_no_files(pages: list[Page]) -> None:
    (glue,) = (page for page in pages if page.path == "glue")
    options = {option.flag: option for option in glue.options}
    assert options["--attention-score"].words == ("scaled_dot", "dot", "bilinear", "additive")
    assert options["--learning-rate"].value == "anything"
    assert options["--seeds"].value == "anything"
    assert options["--encoder"].value == "files"
    assert options["--dry-run"].value == "none"
    assert options["--group-rates"].many


def test_the_script_is_kept_and_then_answered_without_heavy_imports(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path))
    first = call("completion", "bash")
    assert first.out.startswith("# Completion of finetune for bash")
    (kept,) = tmp_path.iterdir()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tasks", "completion", "bash"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout == first.out
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"torch", "numpy", "yaml", "pytorch_lightning", "transformers"}
    kept.rename(kept.with_name("completion-older.bash"))
    assert call("completion", "bash").out == first.out
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_an_unknown_shell_is_refused(refuses: Refuses) -> None:
    refuses("completion: argument shell: invalid choice: 'tcsh' .*", "completion", "tcsh")
