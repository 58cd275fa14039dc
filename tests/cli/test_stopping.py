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
import safetensors.torch
import torch
from safetensors import SafetensorError

from finetune import cli
from finetune.checkpoints.folder import load_checkpoint, load_trainer_state
from finetune.jobs import scoring
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
    ("owner", "name"), [(safetensors.torch, "save_file"), (torch, "save"), (Tokenizer, "save")]
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

    monkeypatch.setattr(safetensors.torch, "save_file", full)
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


def stop_in_a_library(arguments: list[str]) -> int:
    """Fail as in the middle of `import wandb`, which is imported again to end the run."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        raise AttributeError("partially initialized module")


def test_ctrl_c_that_makes_a_library_fail_is_still_told_as_a_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = cli.Command("start", "", f"{__name__}:{stop_in_a_library.__name__}")
    assert cli.main(["fail"], {"fail": command}) == 130
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


# What a run says, and going on by its folder alone


NUMBER = r"\d+\.\d+"
LINE = re.compile(
    rf"epoch {NUMBER}/\d+: train loss {NUMBER}, validation loss {NUMBER}, accuracy {NUMBER} % "
    rf"\((best so far|best {NUMBER} at epoch {NUMBER})\)(, \d+:\d\d left.*)?"
)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def validations(text: str) -> list[str]:
    return [line for line in text.splitlines() if ": train loss " in line]


def test_each_validation_is_a_line_and_all_is_in_the_log(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    outcome = call(*world.glue(run, "--max-epochs", 3))
    lines = validations(outcome.err)
    assert len(lines) == 3
    assert all(map(LINE.fullmatch, lines)), lines
    assert [line.split(":")[0] for line in lines] == [f"epoch {n}.0/3" for n in (1, 2, 3)]
    values = [row for row in rows_of(run) if "val/loss" in row]
    for row, line in zip(values, lines, strict=True):
        assert f"validation loss {row['val/loss']:.4f}" in line
    best = max(range(3), key=lambda n: values[n]["val/accuracy"])
    score = f"accuracy {100 * values[best]['val/accuracy']:.2f} %"
    assert f"best checkpoint: epoch {best + 1}.0/3, {score}\n" in outcome.err
    log = (run / "log.txt").read_text()
    assert re.fullmatch(r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", log.splitlines()[0])
    assert validations(log) == lines
    assert all(line in log for line in outcome.err.split("glue/sst2 (validation)")[0].splitlines())


def test_the_training_loss_of_a_line_is_the_mean_since_the_last_one(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    words = ["--log-every-steps", 1, "--validate-every-steps", 5, "--max-steps", 15]
    lines = validations(call(*world.glue(run, *words)).err)
    rows = rows_of(run)
    losses = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    for line, last in zip(lines, (5, 10, 15), strict=True):
        mean = sum(losses[step] for step in range(last - 4, last + 1)) / 5
        told = float(line.split("train loss ")[1].split(",")[0])
        assert told == pytest.approx(mean, abs=0.02)  # an epoch's last batch may be smaller


def test_seeds_are_counted_with_the_time_of_those_to_come(
    world: World, tmp_path: Path, call: Call
) -> None:
    err = call(*world.glue(tmp_path / "run", "--seeds", "7,9", "--max-epochs", 1)).err
    assert "seed 1 of 2: 7\n" in err
    assert "seed 2 of 2: 9\n" in err
    first, second = validations(err)
    assert re.search(r" left, \d+:\d\d with the seeds to come$", first)
    assert "to come" not in second
    assert validations((tmp_path / "run" / "log.txt").read_text()) == [first, second]
    assert validations((tmp_path / "run" / "seed-9" / "log.txt").read_text()) == [second]


@pytest.mark.parametrize("length", ["--max-steps", "--max-minutes"])
def test_a_short_run_has_twenty_points(
    length: str, world: World, tmp_path: Path, call: Call
) -> None:
    settings = world.root / "plain.yaml"
    settings.write_text(world.glue_config.read_text().replace("{log_every_steps: 5}", "{}"))
    words = ["--config", settings, length, 21 if length == "--max-steps" else 0.05]
    assert call(*world.glue(tmp_path / "run", *words)).status == 0
    assert len([row for row in rows_of(tmp_path / "run") if "train/loss" in row]) >= 20


def test_a_run_goes_on_by_its_folder_alone_and_says_where(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert call(*world.glue(whole)).status == 0
    none = call("glue", "sst2", "--out", run, "--resume")
    told = f"finetune: {run} contains no run to resume; start one without --resume"
    assert (none.status, none.complaint) == (2, told)
    with monkeypatch.context() as patch:
        kill_at(7, patch)
        assert call(*world.glue(run)).status == 130
    outcome = call("glue", "sst2", "--out", run, "--resume")
    assert outcome.status == 0, outcome.err
    assert "continuing from: epoch 0.6/2\n" in outcome.err
    assert_same_weights(run, whole)
    assert metrics_of(run) == metrics_of(whole)
    log = (run / "log.txt").read_text()
    assert log.count("--- 20") == 2
    assert "Interrupted: stopped; checkpoint saved to" in log
    again = call("glue", "sst2", "--out", run, "--resume")
    assert "trained to its end: epoch 2.0/2\n" in again.err
    assert again.json["metrics"] == outcome.json["metrics"]


def test_a_run_that_was_adapted_goes_on_by_its_folder_alone(
    world: World, tmp_path: Path, call: Call, refuses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--adapt", "3steps", "--max-epochs", 1)
    with monkeypatch.context() as patch:
        kill_at(2, patch, run="run-adapt")
        assert call(*words).status == 130
    (run / "config.yaml").unlink()  # as by an earlier version
    refuses(
        f"{run}: the run was stopped while its encoder was adapted \\({run}-adapt\\); repeat the "
        "command that started it, with --resume",
        *("glue", "sst2", "--out", run, "--resume"),
    )
    assert call(*words, "--resume").status == 0
    before = metrics_of(run)
    outcome = call("glue", "sst2", "--out", run, "--resume")
    assert outcome.status == 0, outcome.err
    assert metrics_of(run) == before


def test_a_terminal_gets_no_json_unless_it_is_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["evaluate", str(world.tuned)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "accuracy (%)" in err
    assert main(["evaluate", str(world.tuned), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "glue/sst2"


# More epochs for a run that has ended


def test_a_finished_run_goes_on_for_more_epochs_on_a_new_schedule(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, cut = tmp_path / "run", tmp_path / "cut"
    for folder in (run, cut):
        assert call(*world.glue(folder)).status == 0
    first = metrics_of(run)
    more = ["--resume", "--extend-epochs", 2]
    outcome = call("glue", "sst2", "--out", run, *more)
    assert outcome.status == 0, outcome.err
    assert "continuing from: epoch 2.0/4.0\n" in outcome.err
    assert [line.split(":")[0] for line in validations(outcome.err)] == [
        "epoch 3.0/4.0",
        "epoch 4.0/4.0",
    ]
    results = json.loads((run / "results.json").read_text())
    assert results["extended_epochs"] == 2
    assert results["metrics"]["accuracy"] >= first["accuracy"]  # the best of all epochs
    rows = rows_of(run)
    rates = [row["lr/head"] for row in rows if "lr/head" in row]
    half = len(rates) // 2
    assert max(rates[half:]) > 3 * rates[half - 1]  # which had decayed
    # It is the same, however it is interrupted and continued, and whoever asks twice.
    with monkeypatch.context() as patch:
        kill_at(30, patch)
        assert call("glue", "sst2", "--out", cut, *more).status == 130
    ((stopped,), problems) = call("runs", cut, "--json").json.values()
    assert (stopped["state"], stopped["score"], problems) == ("interrupted", None, [])
    before = json.loads((cut / "results.before.json").read_text())
    assert before["metrics"] == first
    assert call("glue", "sst2", "--out", cut, "--resume").status == 0
    assert_same_weights(run, cut)
    assert not (cut / "results.before.json").exists()
    assert call("glue", "sst2", "--out", run, *more).json["metrics"] == outcome.json["metrics"]
    assert step_of(run) == step_of(cut) == 48


def test_seeds_are_extended_alike_and_a_frozen_part_stays_frozen(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--seeds", "1,2", "--max-epochs", 1, "--unfreeze", "head")
    assert call(*words).status == 0
    before = load_checkpoint(run / "seed-2" / "checkpoints" / "last").weights()
    with monkeypatch.context() as patch:
        kill_at(15, patch, run="seed-1")
        assert call("glue", "sst2", "--out", run, "--resume", "--extend-epochs", 1).status == 130
    ((stopped,), _) = call("runs", run, "--json").json.values()
    assert (stopped["state"], stopped["score"]) == ("interrupted", None)  # of no length
    assert call("glue", "sst2", "--out", run, "--resume").status == 0
    for seed in ("seed-1", "seed-2"):
        assert json.loads((run / seed / "results.json").read_text())["extended_epochs"] == 1
        assert step_of(run / seed) == 24
    after = load_checkpoint(run / "seed-2" / "checkpoints" / "last").weights()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head"}


def test_what_cannot_be_extended_is_refused(
    world: World, tmp_path: Path, call: Call, refuses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    refuses(
        "--extend-epochs continues a finished run: add --resume",
        *world.glue(run, "--extend-epochs", 1),
    )
    with monkeypatch.context() as patch:
        kill_at(7, patch)
        assert call(*world.glue(run)).status == 130
    words = ["glue", "sst2", "--out", run, "--resume"]
    refuses(f"{run}: expected a finished run to extend, .*", *words, "--extend-epochs", 1)
    assert call(*words).status == 0
    assert call(*words, "--extend-epochs", 2).status == 0
    outcome = call(*words, "--extend-epochs", 1)
    assert outcome.status == 2
    assert "the run was extended by 2 epochs already; continue with" in outcome.complaint
    with monkeypatch.context() as patch:
        kill_at(step_of(run) + 1, patch)
        assert call(*words, "--extend-epochs", 3).status == 130
    outcome = call(*words, "--extend-epochs", 4)
    assert outcome.status == 2
    assert "have not ended; continue with --resume alone first" in outcome.complaint


def test_a_pretraining_goes_on_for_more_epochs(world: World, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    words = world.pretrain(run, "--tokenizer", world.tokenizer, "--max-steps", 4)
    assert call(*words).status == 0
    outcome = call("pretrain", "--out", run, "--resume", "--extend-epochs", 1)
    assert outcome.status == 0, outcome.err
    assert step_of(run) > 15
