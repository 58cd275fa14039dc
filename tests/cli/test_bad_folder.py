"""Whose folder is it: a run is never written over another one, and never lost to a wrong word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def test_a_folder_with_a_run_is_refused(world: World, refuses: Refuses) -> None:
    pattern = (
        ".* already contains a run; continue it with --resume, replace it with --overwrite, .*"
    )
    refuses(pattern, *world.pretrain(world.pretrained))
    refuses(pattern, *world.glue(world.tuned))


def test_overwrite_replaces_the_run_and_leaves_other_files(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.tuned, run)
    (run / "notes.txt").write_text("mine\n")
    assert call(*world.glue(run, "--overwrite", "--seed", 2, "--max-steps", 3)).status == 0
    assert (run / "notes.txt").read_text() == "mine\n"
    assert "seed: 2" in (run / "config.yaml").read_text()


def test_overwrite_does_not_remove_what_the_run_needs(world: World, refuses: Refuses) -> None:
    pattern = ".* lies in --out .*, whose run is to be replaced; name another --out"
    refuses(pattern, *world.glue(world.pretrained, "--overwrite"))
    best = world.pretrained / "checkpoints" / "best"
    refuses(pattern, *world.glue(world.pretrained, "--overwrite", encoder=best))
    inside = ["--overwrite", "--tokenizer", best]
    refuses(pattern, *world.pretrain(world.pretrained, *inside))


def test_a_folder_with_something_else_is_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work\n")
    pattern = f"{tmp_path} is not empty and contains no run; choose a new folder for --out"
    refuses(pattern, *world.pretrain(tmp_path))
    refuses(pattern, *world.pretrain(tmp_path, "--overwrite"))
    words = ["tokenizer", "--corpus", world.corpus, "--out", tmp_path]
    refuses(f"{tmp_path} is not empty; name a new folder for --out", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_way_is_refused(
    below: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    pattern = f"--out .*: {file} is a file; name a folder"
    refuses(pattern, *world.pretrain(file / below))
    refuses(pattern, *world.glue(file / below))
    refuses(pattern, "tokenizer", "--corpus", world.corpus, "--out", file / below)


def test_a_folder_that_may_not_be_written_is_refused(
    world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, too, may run the tests
    pattern = f"--out .*: {tmp_path} may not be written; name another folder"
    refuses(pattern, *world.pretrain(tmp_path / "run"))
    refuses(pattern, *world.glue(tmp_path / "run"))


def test_a_place_that_the_system_refuses_is_told(world: World, refuses: Refuses) -> None:
    """Where permissions look right: only trying tells."""
    run = Path("/proc/run")
    refuses(f"{run}: No such file or directory", *world.glue(run))


def test_a_cache_that_is_a_file_is_told(
    world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    cache = ["--cache-dir", tmp_path / "cache"]
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer, *cache)
    pattern = f"cache_dir {tmp_path}/cache: .*: Not a directory; name a folder that can be written"
    refuses(pattern, *words)
    refuses(pattern, *world.glue(tmp_path / "run", *cache))
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache" / "below"))
    named = pattern.replace("cache_dir", "FINETUNE_CACHE").replace("/cache:", "/cache/below:", 1)
    refuses(named, *world.glue(tmp_path / "run"))


def test_resume_without_a_run_is_refused(world: World, tmp_path: Path, refuses: Refuses) -> None:
    pattern = f"{tmp_path}/run contains no run to resume; start one without --resume"
    refuses(pattern, *world.pretrain(tmp_path / "run", "--resume"))
    refuses(pattern, *world.glue(tmp_path / "run", "--resume", "--seeds", "1,2"))
    assert not (tmp_path / "run").exists()


def test_resume_and_overwrite_exclude_each_other(world: World, refuses: Refuses) -> None:
    both = ["--resume", "--overwrite"]
    refuses("--resume continues .*: give one of them", *world.pretrain(world.pretrained, *both))


def test_resume_with_other_settings_is_refused(world: World, refuses: Refuses) -> None:
    words = world.glue(world.tuned, "--resume", "--learning-rate", "1e-3")
    refuses(".*: optimizer.learning_rate was 0.01 when the run began and is 0.001 now; .*", *words)


def test_a_run_of_another_kind_is_told(world: World, refuses: Refuses) -> None:
    kind = f"{world.pretrained}: expected a run that was made to fine-tune an encoder on a"
    refuses(f"{kind} task, .*", "evaluate", world.pretrained)
    refuses(f"{kind} GLUE task, .*", *world.glue(world.pretrained, "--resume"))


@pytest.mark.parametrize("content", [b"", b"half", None])
def test_a_damaged_state_is_told_on_resuming(
    content: bytes | None, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.tuned, run)
    state = run / "checkpoints" / "last" / "trainer.pt"
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2] if content is None else content)
    pattern = f"{state}: expected the state of an interrupted run, got .*--overwrite"
    outcome = refuses(pattern, *world.glue(run, "--resume"))
    assert len(outcome.err) < 500


def test_a_damaged_run_is_told_by_evaluate(world: World, tmp_path: Path, refuses: Refuses) -> None:
    run = tmp_path / "run"
    refuses(f"{run}: expected a run folder with config.yaml, got none", "evaluate", run)
    shutil.copytree(world.tuned, run)
    refuses(
        "glue/sst2 has no split 'tset'; did you mean 'test'\\?", "evaluate", run, "--split", "tset"
    )
    (run / "checkpoints" / "best" / "model.safetensors").write_bytes(b"")
    refuses(f"{run}/checkpoints/best/model.safetensors: expected weights .*", "evaluate", run)
    shutil.rmtree(run / "checkpoints")
    refuses(f"{run}: .* got a run without checkpoints: none is saved yet, .*", "evaluate", run)
    seeds = tmp_path / "seeds"
    shutil.copytree(world.tuned, seeds / "seed-3")
    onward = ["--config", world.glue_config, "--data", world.data, "--out", tmp_path / "onward"]
    one = f"{seeds}: .* got a run of several seeds; name one: {seeds}/seed-3"
    refuses(one, "glue", "sst2", "--encoder", seeds, *onward)
    (run / "config.yaml").write_text("task: [")
    refuses(f"{run}/config.yaml:\\d: not readable as YAML: .*", "evaluate", run)
