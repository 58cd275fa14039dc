"""Ctrl-C, SIGTERM and a full disk: one line, a whole checkpoint, and a run that can go on."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import SafetensorError

from finetune import cli
from finetune.checkpoints import folder as checkpoint
from finetune.checkpoints.folder import load_checkpoint, load_trainer_state
from finetune.jobs import evaluation as scoring
from finetune.text.corpus import documents, tokens
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.checkpointing import Checkpointer
from tasks.__main__ import main

if TYPE_CHECKING:
    from tests.made.commands import Call, Start
    from tests.made.world import World


def assert_same_weights(left: Path, right: Path) -> None:
    for which in ("last", "best"):
        ours, theirs = (load_checkpoint(run / "checkpoints" / which) for run in (left, right))
        unequal = [
            name
            for name, tensor in theirs.weights().items()
            if not torch.equal(ours.weights()[name], tensor)
        ]
        assert unequal == []


def metrics_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())["metrics"]


def step_of(run: Path) -> int:
    state = load_trainer_state(run / "checkpoints" / "last")
    assert state is not None
    return int(state["standing"]["step"])


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch, *, times: int = 1, run: str = "") -> None:
    """Let Ctrl-C come at the end of a step (of a run whose folder has this name)."""
    end = Checkpointer.on_train_batch_end

    def asked(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == step and run in str(self.folder):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Checkpointer, "on_train_batch_end", asked)


# A full disk


@contextmanager
def full_disk() -> Iterator[None]:
    """Files end at 1 KiB: the libraries' own writing fails, with the error they make of it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("owner", "name"), [(checkpoint, "save_file"), (torch, "save"), (Tokenizer, "save")]
)
def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_can_go_on(
    owner: Any,
    name: str,
    world: World,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    words = world.pretrain(run, "--tokenizer", world.tokenizer)
    write, kept = getattr(owner, name), run / "checkpoints" / "last"

    def failing(*args: Any, **more: Any) -> None:
        if not kept.exists():
            return write(*args, **more)
        with full_disk():
            return write(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        outcome = call(*words)
    assert outcome.status == 2
    pattern = (
        f"finetune: {run}/checkpoints/(last|best): File too large; files that were complete .*"
    )
    assert re.fullmatch(pattern, outcome.complaint)
    assert step_of(run) == 4
    load_checkpoint(kept).weights()
    assert {path.name for path in (run / "checkpoints").iterdir()} <= {"last", "best"}
    assert call(*words, "--resume").status == 0
    assert_same_weights(run, world.pretrained)


NO_SPACE = "No space left on device"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, NO_SPACE),
        SafetensorError(f"Error while serializing: I/O error: {NO_SPACE} (os error 28)"),
        Exception(f"{NO_SPACE} (os error 28)"),  # what tokenizers raises
    ],
)
def test_no_space_left_is_told_whoever_notices_it(
    error: Exception, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(checkpoint, "save_file", full)
    outcome = call(*world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer))
    assert outcome.status == 2
    assert f"{tmp_path}/run/checkpoints/last: {NO_SPACE}; " in outcome.complaint


def test_a_full_disk_is_told_before_the_first_checkpoint(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer)
    with full_disk():
        outcome = call(*words)
    assert outcome.status == 2
    assert "File too large" in outcome.complaint
    assert call(*words).status == 0


# Ctrl-C and SIGTERM


LONG = ["--max-steps", 120, "--validate-every-steps", 40]


@pytest.fixture(scope="module")
def whole(world: World) -> Path:
    """A run that was never stopped."""
    run = world.root / "whole"
    own = ["--tokenizer", world.tokenizer, "--cache-dir", world.root / "cache"]
    assert main(world.pretrain(run, *own, *LONG, "--checkpoint-every-steps", 1000)) == 0
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_training_with_a_checkpoint_and_the_run_can_go_on(
    number: signal.Signals, world: World, whole: Path, tmp_path: Path, start: Start, call: Call
) -> None:
    cut = tmp_path / "cut"
    words = world.pretrain(cut, "--tokenizer", world.tokenizer, *LONG)
    process = start(*words, "--checkpoint-every-steps", 10, "--num-workers", 1)
    while not (cut / "checkpoints" / "last").exists():
        assert process.popen.poll() is None, process.end()
        time.sleep(0.01)
    process.popen.send_signal(number)
    outcome = process.end()
    assert outcome.status == 128 + number, outcome.err
    assert outcome.out == ""
    assert outcome.complaint == (
        f"finetune: stopped; checkpoint saved to {cut}/checkpoints/last; continue with --resume"
    )
    assert step_of(cut) < 120
    assert call(*words, "--resume").status == 0
    assert_same_weights(cut, whole)
    assert metrics_of(cut) == metrics_of(whole)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_gives_the_keyboard_back(
    times: int, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once, it writes the state of step 6; asked twice, that of step 4 has to do."""
    before = signal.getsignal(signal.SIGINT)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(6, patch, times=times)
        outcome = call(*world.pretrain(run, "--tokenizer", world.tokenizer))
    assert outcome.status == 130
    assert outcome.complaint.startswith("finetune: stopped; checkpoint saved to ")
    assert step_of(run) == (6 if times == 1 else 4)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_last_step_stops_before_the_evaluation(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(24, patch)
        assert call(*world.glue(run)).status == 130
    assert not (run / "results.json").exists()
    assert call(*world.glue(run, "--resume")).status == 0
    assert metrics_of(run) == metrics_of(world.tuned)


def test_ctrl_c_in_the_evaluation_loses_no_training(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "write_predictions", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        outcome = call(*world.glue(run))
    assert outcome.status == 130
    assert outcome.complaint == "finetune: stopped; no file was left half written"
    assert call(*world.glue(run, "--resume")).status == 0
    assert metrics_of(run) == metrics_of(world.tuned)


def test_ctrl_c_in_the_second_seed_keeps_the_first(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--seeds", "1,2")
    with monkeypatch.context() as patch:
        kill_at(6, patch, run="seed-2")
        assert call(*words).status == 130
    first = (run / "seed-1" / "checkpoints" / "last" / "trainer.pt").stat().st_mtime_ns
    assert call(*words).status == 2  # it holds a run
    assert call(*words, "--resume").status == 0
    assert (run / "seed-1" / "checkpoints" / "last" / "trainer.pt").stat().st_mtime_ns == first
    assert json.loads((run / "results.json").read_text())["seeds"] == [1, 2]
    assert_same_weights(run / "seed-1", world.tuned)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_ctrl_c_while_a_vocabulary_is_learnt_leaves_nothing(
    algorithm: str, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte-level BPE is learnt in Rust, which asks for the texts one by one."""
    read = documents.READERS[".txt"]

    def stopped(*args: Any) -> Iterator[str]:
        for number, text in enumerate(read(*args)):
            if number == 20:
                os.kill(os.getpid(), signal.SIGINT)
            yield text

    monkeypatch.setitem(documents.READERS, ".txt", stopped)
    out, vocabulary = tmp_path / "out", ["--algorithm", algorithm, "--vocab-size", 300]
    for words in (
        ["tokenizer", "--corpus", world.corpus, "--out", out],
        world.pretrain(out),
    ):
        outcome = call(*words, *vocabulary)
        assert outcome.status == 130
        assert outcome.err == "finetune: stopped; no file was left half written\n"
        assert not out.exists()


def test_ctrl_c_while_a_corpus_is_tokenized_leaves_nothing(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "count_duplicates", lambda _: os.kill(os.getpid(), signal.SIGINT))
        words = world.pretrain(tmp_path / "run", "--cache-dir", tmp_path / "cache")
        assert call(*words).status == 130
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "cache").iterdir())


def test_ctrl_c_that_makes_a_library_fail_is_still_told_as_a_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in the middle of `import wandb`: it is imported again to end the run, and fails."""

    def run(words: list[str]) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise AttributeError("partially initialized module")

    assert cli.main(["fail"], {}, {"fail": cli.Command("start", "", run)}) == 130
    told = "finetune: stopped; no file was left half written\n"
    assert capsys.readouterr().err == told


def test_a_run_stopped_before_its_first_checkpoint_may_be_started_over(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.pretrained, run, ignore=shutil.ignore_patterns("checkpoints", "results*"))
    words = world.pretrain(run, "--tokenizer", world.tokenizer, "--cache-dir", tmp_path / "cache")
    assert call(*words).status == 0
    assert_same_weights(run, world.pretrained)
