"""Resuming is exact: a run that was cut off ends as the run that was not, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import jobs as runs
from finetune.checkpoints.folder import load_checkpoint
from finetune.errors import ConfigError, FinetuneError
from finetune.runs.settings import FitRun, PretrainRun
from finetune.settings import fields as settings
from finetune.training.config import LoaderConfig, TrainerConfig
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.resume import TrainingProgress
from finetune.training.loop.stopping import Interrupted
from finetune.training.optimizer import OptimizerConfig
from tests.made.nets import tiny_config


class PowerCut(Exception):
    """Nothing is written any more, as after kill -9."""


def cut_off_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next run die at the start of this step."""
    start = Checkpointer.on_train_batch_start

    def dying(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        start(self, trainer, *rest)
        if self.progress.step == step:
            raise PowerCut

    monkeypatch.setattr(Checkpointer, "on_train_batch_start", dying)


def ask_to_stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next run get Ctrl-C during this step."""
    end = Checkpointer.on_train_batch_end

    def asked(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Checkpointer, "on_train_batch_end", asked)


def weights(out: str, which: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(out) / "checkpoints" / which).weights()


def assert_same_run(left: str, right: str) -> None:
    """Weights, best weights, and every logged loss are equal to the last bit."""
    for which in ("last", "best"):
        ours, theirs = weights(left, which), weights(right, which)
        assert ours.keys() == theirs.keys()
        unequal = [name for name in ours if not torch.equal(ours[name], theirs[name])]
        assert unequal == []
    assert losses(left) == losses(right)


def losses(out: str) -> list[tuple[int, float | None, float | None]]:
    lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row.get("train/loss"), row.get("val/loss")) for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [6, 15, 23])
def test_pretraining_cut_off_resumes_bit_for_bit(
    step: int,
    workers: int,
    pretraining: Callable[..., PretrainRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = pretraining("whole", workers=workers)
    expected = runs.pretrain(whole)
    cut = pretraining("cut", workers=workers)
    with monkeypatch.context() as patch:
        cut_off_at(step, patch)
        with pytest.raises(PowerCut):
            runs.pretrain(cut)
    results = runs.pretrain(dataclasses.replace(cut, resume=True))
    assert_same_run(whole.out, cut.out)
    assert results["metrics"] == expected["metrics"]


OPTIONS: dict[str, dict[str, Any]] = {
    "muon": {"optimizer": OptimizerConfig(learning_rate=1e-2, optimizer="muon")},
    "lstm": {
        "encoder": tiny_config(
            block="lstm", weight_dropout_prob=0.5, word_dropout_prob=0.1, locked_dropout=True
        )
    },
    "memory": {"encoder": tiny_config(causal=True, position="relative", memory=20)},
}
"""Ways to pretrain, each with a state or a place in the run that resuming has to find again."""


@pytest.mark.parametrize("option", list(OPTIONS))
def test_every_option_of_pretraining_resumes_bit_for_bit(
    option: str, pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretraining("whole", **OPTIONS[option])
    runs.pretrain(whole)
    cut = pretraining("cut", workers=2, **OPTIONS[option])
    with monkeypatch.context() as patch:
        cut_off_at(15, patch)
        with pytest.raises(PowerCut):
            runs.pretrain(cut)
    runs.pretrain(dataclasses.replace(cut, resume=True))
    assert_same_run(whole.out, cut.out)
    plain = pretraining("plain")
    runs.pretrain(plain)
    assert losses(plain.out) != losses(whole.out)


def test_a_run_cut_off_before_its_first_checkpoint_starts_again(
    pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = pretraining("whole"), pretraining("cut")
    runs.pretrain(whole)
    with monkeypatch.context() as patch:
        cut_off_at(2, patch)
        with pytest.raises(PowerCut):
            runs.pretrain(cut)
    runs.pretrain(dataclasses.replace(cut, resume=True))
    assert_same_run(whole.out, cut.out)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ctrl_c_stops_between_steps_and_resumes_bit_for_bit(
    accumulate: int, pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "trainer": TrainerConfig(log_every_steps=5, validate_every_steps=3, progress=False),
        "loader": LoaderConfig(batch_size=8, micro_batches=accumulate),
        "length": LengthConfig(max_steps=9),
    }
    whole = pretraining("whole", **more)
    runs.pretrain(whole)
    cut = pretraining("cut", **more)
    with monkeypatch.context() as patch:
        ask_to_stop_at(5, patch)
        with pytest.raises(Interrupted) as stop:
            runs.pretrain(cut)
    assert stop.value.signal == signal.SIGINT
    runs.pretrain(dataclasses.replace(cut, resume=True))
    assert_same_run(whole.out, cut.out)


def test_validations_follow_the_steps_over_epochs_and_a_stop(
    pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has 10 batches of three micro-batches."""
    begin = Pretrainer.on_validation_epoch_start

    def between_steps(module: Pretrainer) -> None:
        assert not module.trainer.fit_loop._should_accumulate()
        begin(module)

    monkeypatch.setattr(Pretrainer, "on_validation_epoch_start", between_steps)
    trainer = TrainerConfig(validate_every_steps=2, progress=False)
    loader = LoaderConfig(batch_size=15, micro_batches=3)
    length = LengthConfig(max_steps=17)
    run = pretraining("run", trainer=trainer, loader=loader, length=length)
    with monkeypatch.context() as patch:
        ask_to_stop_at(9, patch)
        with pytest.raises(Interrupted):
            runs.pretrain(run)
    runs.pretrain(dataclasses.replace(run, resume=True))
    validated = [step for step, _, loss in losses(run.out) if loss is not None]
    assert validated == [2, 4, 6, 8, 10, 12, 14, 16, 17]  # and at the end


@pytest.mark.parametrize("step", [5, 12, 13, 24, 30])
def test_fine_tuning_cut_off_resumes_bit_for_bit(
    step: int,
    pretraining: Callable[..., PretrainRun],
    fine_tuning: Callable[..., FitRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps inside an epoch (12 batches), at its end and just after it."""
    start = pretraining("pretrained")
    runs.pretrain(start)
    whole = fine_tuning("whole", encoder_from=start.out)
    expected = runs.fit(whole)
    cut = fine_tuning("cut", encoder_from=start.out)
    with monkeypatch.context() as patch:
        cut_off_at(step, patch)
        with pytest.raises(PowerCut):
            runs.fit(cut)
    results = runs.fit(dataclasses.replace(cut, resume=True))
    assert_same_run(str(whole.out), str(cut.out))
    assert results["metrics"] == expected["metrics"]


def test_a_finished_run_resumes_to_the_same_results(
    pretraining: Callable[..., PretrainRun],
) -> None:
    run = pretraining("whole")
    first = runs.pretrain(run)
    again = runs.pretrain(dataclasses.replace(run, resume=True))
    assert again["metrics"] == first["metrics"]


def test_a_process_killed_by_the_system_resumes_bit_for_bit(
    pretraining: Callable[..., PretrainRun], tmp_path: Path
) -> None:
    whole = pretraining("whole", length=LengthConfig(max_steps=300))
    runs.pretrain(whole)
    cut = dataclasses.replace(whole, out=str(tmp_path / "cut"))
    config = tmp_path / "run.yaml"
    config.write_text(settings.dump(cut))
    command = [sys.executable, "-m", "tasks", "pretrain", "--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    last = Path(cut.out) / "checkpoints" / "last"
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while not last.exists():
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    finished = subprocess.run([*command, "--resume"], env=environment, capture_output=True)
    assert finished.returncode == 0, finished.stderr.decode()
    assert_same_run(whole.out, cut.out)


def test_changed_settings_are_refused_on_resuming(
    pretraining: Callable[..., PretrainRun],
) -> None:
    run = pretraining("run")
    runs.pretrain(run)
    with pytest.raises(ConfigError, match="seed was 1 when the run began and is 2 now"):
        runs.pretrain(dataclasses.replace(run, seed=2, resume=True))


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(
    pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.heads import MaskedLM

    loss, calls = MaskedLM.loss, iter(range(10_000))

    def exploding(self: MaskedLM, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        value = loss(self, logits, labels)
        return value * float("nan") if next(calls) == 5 and self.training else value

    monkeypatch.setattr(MaskedLM, "loss", exploding)
    run = pretraining("run")
    with pytest.raises(FinetuneError, match="the loss is nan at step 6: .*last good checkpoint"):
        runs.pretrain(run)
    assert all(tensor.isfinite().all() for tensor in weights(run.out).values())


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    progress = TrainingProgress()
    places = []
    for step in range(1, 6):
        progress = progress.after_batch(step, batches_per_epoch=2)
        places.append((progress.epoch, progress.batch, progress.step))
    assert places == [(0, 1, 1), (1, 0, 2), (1, 1, 3), (2, 0, 4), (2, 1, 5)]


def test_an_earlier_state_that_counted_micro_batches_is_read() -> None:
    """An epoch of 7 batches of three micro-batches, the last batch with one."""
    states = [(0, 6, 6, 2), (1, 3, 22, 8), (1, 0, 19, 7)]  # epoch, batch, batches, step
    for epoch, batch, batches, step in states:
        state = {"epoch": epoch, "batch": batch, "batches": batches, "step": step}
        assert TrainingProgress.read(state, 3) == TrainingProgress(epoch, batch // 3, step)
    once = {"epoch": 1, "batch": 3, "batches": 10, "step": 10}
    assert TrainingProgress.read(once, 1) == TrainingProgress(1, 3, 10)
