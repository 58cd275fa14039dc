"""The working folder is a folder like any other: `.` for a run that is read, and for --out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World

READ = {
    "evaluate": ("evaluate", "."),
    "predict": ("predict", ".", "--input", "../texts.txt", "--output", "../answers.jsonl"),
    "report": ("report", ".", "--out", "../report.html"),
    "compare": ("compare", ".", "../other"),
    "inspect": ("inspect", "words", ".", "cat", "--out", "../inside"),
    "export": ("export", ".", "--format", "hf", "--out", "../exported"),
    "describe": ("describe", "."),
    "runs": ("runs", "."),
}


@pytest.mark.parametrize("command", READ)
def test_a_run_is_read_from_within_its_folder(
    command: str, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "other"):
        shutil.copytree(world.tuned, tmp_path / name)
    (tmp_path / "texts.txt").write_text("the cat sees\n")
    monkeypatch.chdir(tmp_path / "run")
    outcome = call(*READ[command])
    assert outcome.status == 0, outcome.err
    assert "not have the format of a run" not in outcome.err


def test_an_encoder_is_taken_from_the_working_folder(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.pretrained)
    words = world.glue(tmp_path / "run", "--max-steps", 1, encoder=".")
    outcome = call(*words)
    assert outcome.status == 0, outcome.err


MADE = {
    "tokenizer": "tokenizer.json",
    "pretrain": "checkpoints",
    "glue": "results.json",
    "seeds": "seed-2",
    "adapt": "../here-adapt/results.json",
    "find-lr": "rate_curve.json",
    "import-hf": "config.json",
    "inspect": "words.json",
}


@pytest.mark.parametrize("command", MADE)
def test_out_may_be_the_working_folder(
    command: str, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    published = tmp_path / "published"
    if command == "import-hf":
        exported = call("export", world.pretrained, "--format", "hf", "--out", published)
        assert exported.status == 0, exported.err
    monkeypatch.chdir(here)
    here_ = Path(".")
    words = {
        "tokenizer": ["tokenizer", "--corpus", world.corpus, "--vocab-size", 60, "--out", here_],
        "pretrain": world.pretrain(here_, "--max-steps", 1),
        "glue": world.glue(here_, "--max-steps", 1),
        "seeds": world.glue(here_, "--max-steps", 1, "--seeds", "1,2"),
        "adapt": world.glue(here_, "--max-steps", 1, "--adapt", "1steps"),
        "find-lr": world.glue(here_, "--find-lr"),
        "import-hf": ["import-hf", published, "--out", here_],
        "inspect": ["inspect", "words", world.tuned, "cat", "--out", here_],
    }[command]
    outcome = call(*words)
    assert outcome.status == 0, outcome.err
    assert (here / MADE[command]).exists()
    if command in ("glue", "pretrain"):
        assert call("evaluate" if command == "glue" else "describe", here_).status == 0
