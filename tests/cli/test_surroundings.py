"""Closed, full or cut-off streams, no home, another locale: the right result, or one line."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

ROOT = Path(__file__).parent.parent.parent
FINETUNE = f"'{sys.executable}' -m finetune"


def shell(line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which $FINETUNE is the command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(
        ["bash", "-c", line.replace("$FINETUNE", FINETUNE)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


CHEAP = {
    "stdout closed": ("$FINETUNE runs . >&-", 0, ""),
    "stderr closed": ("$FINETUNE runs . 2>&-", 0, ""),
    "stdin closed": ("$FINETUNE runs . <&-", 0, ""),
    "all closed": ("$FINETUNE runs . <&- >&- 2>&-", 0, ""),
    "stdout full": ("$FINETUNE runs . >/dev/full", 2, "No space left on device"),
    "help to a full disk": ("$FINETUNE runs --help >/dev/full", 2, "No space left on device"),
    "an error to a full stderr": ("$FINETUNE rnus 2>/dev/full", 2, ""),
    "an error to a closed stderr": ("$FINETUNE rnus 2>&-", 2, ""),
    "nobody reads": ("$FINETUNE runs . | true; exit ${PIPESTATUS[0]}", 1, ""),
    "nobody reads the help": ("$FINETUNE runs --help | true; exit ${PIPESTATUS[0]}", 1, ""),
}


@pytest.mark.parametrize("case", CHEAP)
def test_streams_that_are_closed_full_or_not_read(case: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    line, status, message = CHEAP[case]
    if "| true" in line:  # gone before anything is printed
        line = line.replace("$FINETUNE", f"(sleep 1; exec {FINETUNE}").replace(" |", ") |")
    done = shell(line, tmp_path)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message)


def test_a_run_goes_on_when_its_terminal_is_gone(world: World, tmp_path: Path) -> None:
    words = " ".join(map(str, world.glue(tmp_path / "run", "--max-steps", 3)))
    done = shell(f"$FINETUNE {words} 2> >(head -c 1 >/dev/null) <&- >answer", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer").read_text())["task"] == "glue/sst2"
    assert (tmp_path / "run" / "results.json").is_file()


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_locale_without_letters_is_named_where_a_path_has_some(tmp_path: Path) -> None:
    done = shell("$FINETUNE runs modèles", tmp_path, **C_LOCALE)
    assert done.returncode == 2
    assert done.stderr == (
        "finetune: this locale has no names of files beyond ASCII: set LC_ALL=C.UTF-8, or "
        "PYTHONUTF8=1\n"
    )


def test_results_are_utf8_in_every_locale(tmp_path: Path) -> None:
    (tmp_path / "lauf").mkdir()
    config = tmp_path / "lauf" / "config.yaml"
    config.write_text("task: 'glue/größe'\nseed: 1\n", encoding="utf-8")
    done = shell("$FINETUNE runs . --json", tmp_path, **C_LOCALE)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["task"] == "glue/größe"
    assert "größe" in done.stdout


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    for name in ("HOME", "FINETUNE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_cache_is_asked_for(
    world: World, tmp_path: Path, refuses: Refuses, call: Call
) -> None:
    run = world.glue(tmp_path / "run", "--max-steps", 1)
    pattern = ".* there is no home folder; set HOME, or name a folder by --cache-dir or .*"
    refuses(pattern, *run)
    refuses(pattern, "cache", "list")
    assert not (tmp_path / "run").exists()
    done = call(*run, "--cache-dir", tmp_path / "cache", "--wandb")
    assert done.status == 0, done.err
    assert call("completion", "bash").status == 0
