"""The figures of a run: at the right steps, over the right batches, by the right clock."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from finetune.encoder import Encoder
from finetune.training.loop import monitor as room
from finetune.training.loop.monitor import PLATEAU_WINDOWS, Monitor, at_unigram_plateau
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import Clock, LengthConfig, RunLength
from tests.made.nets import tiny_config

LENGTH = RunLength(LengthConfig(max_steps=100), 10, Clock())


class FakeTime:
    """A clock that goes on when it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(room, "time", fake)
    return fake


class Lines:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.lines: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        assert step not in self.lines
        self.lines[step] = dict(metrics)


class Run:
    """As much of a Trainer as the monitor looks at, and batches of one second each."""

    def __init__(self, time: FakeTime, *, accumulate: int = 1, batches_per_epoch: int = 10) -> None:
        self.time, self.log = time, Lines()
        groups = [
            {"name": "embeddings", "layer": "embeddings", "lr": 0.1},
            {"name": "embeddings.no_decay", "layer": "embeddings", "lr": 0.1},
            {"name": "head", "layer": "head", "lr": 0.3},
            {"name": "head.no_decay", "layer": "head", "lr": 0.3},
        ]
        self.trainer: Any = SimpleNamespace(
            global_step=0,
            current_epoch=0,
            accumulate_grad_batches=accumulate,
            loggers=[self.log],
            optimizers=[SimpleNamespace(param_groups=groups)],
            datamodule=SimpleNamespace(batches_per_epoch=batches_per_epoch),
            num_training_batches=batches_per_epoch,
            world_size=1,
            fit_loop=SimpleNamespace(total_batch_idx=-1),
        )
        self.module: Any = SimpleNamespace(
            gradient_norm=torch.tensor(0.5), device=torch.device("cpu")
        )
        self.per_epoch, self.batch = batches_per_epoch, 0

    def train(self, monitor: Monitor, losses: list[float], **batch: torch.Tensor) -> None:
        """Batches with these losses, as Lightning would count them."""
        trainer = self.trainer
        batch.setdefault("input_ids", torch.ones(2, 5, dtype=torch.int64))
        batch.setdefault("labels", torch.zeros(2, dtype=torch.int64))
        for loss in losses:
            trainer.fit_loop.total_batch_idx += 1
            monitor.on_train_batch_start(trainer, self.module, batch, 0)
            self.batch += 1
            self.time.now += 1
            last = self.batch == self.per_epoch
            stepped = last or self.batch % trainer.accumulate_grad_batches == 0
            trainer.global_step += stepped
            # Lightning hands over the loss as it goes backward: divided.
            outputs = {"loss": torch.tensor(loss) / trainer.accumulate_grad_batches}
            monitor.on_train_batch_end(trainer, self.module, outputs, batch, 0)
            if last:
                self.batch, trainer.current_epoch = 0, trainer.current_epoch + 1


def started(run: Run, every: int = 2, **more: Any) -> Monitor:
    monitor = Monitor(LENGTH, every, show_progress=False, **more)
    monitor.on_train_start(run.trainer, run.module)
    return monitor


def test_a_line_holds_the_mean_loss_since_the_line_before(time: FakeTime) -> None:
    run = Run(time)
    run.train(started(run), [1.0, 2.0, 3.0, 5.0, 7.0])
    assert {step: line["train/loss"] for step, line in run.log.lines.items()} == {2: 1.5, 4: 4.0}


def test_a_line_weighs_each_label_the_same_also_after_resuming(time: FakeTime) -> None:
    run = Run(time)
    run.train(monitor := started(run), [1.0], labels=torch.tensor([3, -100, -100]))
    resumed = started(run)
    resumed.load_state_dict(monitor.state_dict())
    run.train(resumed, [5.0], labels=torch.tensor([3, 4, 5]))
    assert run.log.lines[2]["train/loss"] == 4.0  # (1 · 1 + 3 · 5) / 4


def test_a_line_of_a_single_label_is_its_loss(time: FakeTime) -> None:
    run = Run(time)
    run.train(started(run, every=1), [3.0], labels=torch.tensor([1]))
    assert run.log.lines[1]["train/loss"] == 3.0


def test_the_progress_shows_the_figures_of_the_last_line(
    time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(time)
    run.trainer.is_global_zero = True
    monitor = Monitor(LENGTH, 2)
    monitor.on_train_start(run.trainer, run.module)
    run.train(monitor, [1.0, 2.0, 5.0])
    assert monitor._bar is not None
    assert "loss 1.500" in monitor._bar.parts(3)


def test_lines_come_at_optimizer_steps_whatever_is_accumulated(time: FakeTime) -> None:
    """Three batches a step, but an epoch of four ends with a step of one batch."""
    run = Run(time, accumulate=3, batches_per_epoch=4)
    run.train(started(run), [1.0, 1.0, 1.0, 5.0, 2.0, 2.0, 2.0, 8.0, 9.0])
    assert {step: line["train/loss"] for step, line in run.log.lines.items()} == {2: 2.0, 4: 3.5}


def test_a_line_tells_the_epochs_rates_and_gradient_norm(time: FakeTime) -> None:
    run = Run(time, batches_per_epoch=4)
    run.train(started(run), [1.0] * 6)
    assert [line["epoch"] for line in run.log.lines.values()] == [0.5, 1.0, 1.5]
    line = run.log.lines[2]
    assert (line["lr/embeddings"], line["lr/head"]) == (0.1, 0.3)
    assert not any("no_decay" in name for name in line)
    assert line["train/gradient_norm"] == 0.5


def test_padding_is_what_the_mask_hides(time: FakeTime) -> None:
    run, mask = Run(time), torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    monitor = started(run)
    run.train(monitor, [1.0], attention_mask=mask)
    run.train(monitor, [1.0])  # a batch without a mask has no padding
    assert run.log.lines[2]["perf/padding"] == pytest.approx(2 / 20)
    assert run.log.lines[2]["perf/tokens_per_second"] == pytest.approx(18 / 2)
    assert run.log.lines[2]["perf/examples_per_second"] == pytest.approx(4 / 2)


def test_a_mask_between_documents_is_no_padding(time: FakeTime) -> None:
    run = Run(time)
    run.train(started(run), [1.0, 1.0], attention_mask=torch.zeros(2, 5, 5, dtype=torch.bool))
    assert run.log.lines[2]["perf/padding"] == 0


def test_an_example_of_several_sequences_is_one(time: FakeTime) -> None:
    run, monitor = Run(time), Monitor(LENGTH, 2, show_progress=False)
    run.train(monitor, [1.0] * 3, input_ids=torch.ones(8, 5).long(), index=torch.arange(2))
    later = Monitor(LENGTH, 2, show_progress=False)
    later.load_state_dict(monitor.state_dict())
    run.train(later, [1.0], input_ids=torch.ones(8, 5).long(), index=torch.arange(2))
    for step in (2, 4):
        assert run.log.lines[step]["perf/examples_per_second"] == pytest.approx(4 / 2)
        assert run.log.lines[step]["perf/tokens_per_second"] == pytest.approx(80 / 2)
    assert run.log.lines[4]["data/examples_seen"] == 8


def test_windows_are_counted_as_the_texts_that_they_are_of(time: FakeTime) -> None:
    run = Run(time)
    run.train(Monitor(LENGTH, 2, show_progress=False, examples_per_unit=0.25), [1.0, 1.0])
    assert run.log.lines[2]["perf/examples_per_second"] == pytest.approx(4 / 4 / 2)
    assert run.log.lines[2]["data/examples_seen"] == 1


def test_the_time_of_a_validation_does_not_count(time: FakeTime) -> None:
    run = Run(time)
    monitor = started(run)
    run.train(monitor, [1.0])
    monitor.on_validation_start(run.trainer, run.module)
    time.now += 1000
    monitor.on_validation_end(run.trainer, run.module)
    run.train(monitor, [1.0])
    assert run.log.lines[2]["perf/tokens_per_second"] == pytest.approx(20 / 2)


def test_what_a_gpu_has_still_to_do_when_a_validation_begins_counts(
    time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "wait_for", lambda device: setattr(time, "now", time.now + 2))
    run = Run(time)
    monitor = started(run)
    run.train(monitor, [1.0])
    monitor.on_validation_start(run.trainer, run.module)
    monitor.on_validation_end(run.trainer, run.module)
    run.train(monitor, [1.0])
    assert run.log.lines[2]["perf/tokens_per_second"] == pytest.approx(20 / (2 + 2))


def test_the_share_of_the_ceiling_is_the_arithmetic_done_over_what_could_be(time: FakeTime) -> None:
    run = Run(time)
    lengths: list[float] = []

    def flops(length: float) -> float:
        lengths.append(length)
        return 1e9

    run.train(started(run, flops_per_token=flops, ceiling_gflops=40.0), [1.0, 1.0])
    assert lengths == [5.0]
    assert run.log.lines[2]["perf/ceiling_share"] == pytest.approx(10 / 40)  # 10 tokens a second


def test_an_open_window_goes_on_where_it_was_written(time: FakeTime) -> None:
    whole, cut = Run(time), Run(time)
    losses = [0.1, 0.7, 0.3, 0.9, 1.1, 0.2]
    run_whole = started(whole, every=3)
    whole.train(run_whole, losses)
    before = started(cut, every=3)
    cut.train(before, losses[:4])
    state = before.state_dict()
    time.now += 500  # between an interruption and its resumption
    after = started(cut, every=3)
    after.load_state_dict(state)
    cut.train(after, losses[4:])
    assert cut.log.lines[6] == whole.log.lines[6]
    assert after.losses == run_whole.losses
    assert after.rows_seen == run_whole.rows_seen == 12


@pytest.mark.parametrize(
    ("losses", "stands"),
    [
        ([6.6] * PLATEAU_WINDOWS, True),
        ([9.0] * 5 + [6.7] * PLATEAU_WINDOWS, True),  # only the last ten count
        ([6.6] * (PLATEAU_WINDOWS - 1), False),  # too short
        ([6.6 - 0.02 * step for step in range(PLATEAU_WINDOWS)], False),  # still falling
        ([6.0] * PLATEAU_WINDOWS, False),  # already better
        ([9.0] * PLATEAU_WINDOWS, False),  # not there yet
    ],
)
def test_a_plateau_is_ten_like_losses_at_the_entropy(losses: list[float], stands: bool) -> None:
    assert at_unigram_plateau(losses, 6.65) is stands


def test_a_plateau_is_told_once(time: FakeTime) -> None:
    run = Run(time)
    monitor = started(run, every=1, unigram_entropy=2.0)
    run.train(monitor, [2.0] * (PLATEAU_WINDOWS - 1))
    with pytest.warns(UserWarning, match=r"step 10: the loss has stayed .*\(2.00 nats\) for 10"):
        run.train(monitor, [2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.train(monitor, [2.0] * 5)
    assert run.log.lines[10]["train/unigram_entropy"] == 2.0


def test_without_an_entropy_no_plateau_is_told(time: FakeTime) -> None:
    run = Run(time)
    run.train(started(run, every=1), [2.0] * 15)  # a warning would be an error
    assert "train/unigram_entropy" not in run.log.lines[10]


def test_the_module_is_told_which_step_is_written(time: FakeTime) -> None:
    config = tiny_config(vocab_size=9, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    run, module = Run(time, accumulate=2), Pretrainer(Encoder(config))
    monitor, told = started(run, every=3), []
    for step in range(6):
        run.trainer.global_step = step
        monitor.on_train_batch_start(run.trainer, module, None, 0)
        told.append(module.is_logged_step)
    assert told == [False, False, True, False, False, True]
    batch = {"input_ids": torch.ones(1, 4, dtype=torch.int64), "positions": torch.tensor([1])}
    batch["labels"] = torch.tensor([3])
    assert "masked_accuracy" in module.training_step(batch, 0)
    module.is_logged_step = False
    assert "masked_accuracy" not in module.training_step(batch, 0)


def test_what_was_seen_goes_on_over_windows_and_after_a_stop(time: FakeTime) -> None:
    run, monitor = Run(time), Monitor(LENGTH, 2, show_progress=False, peak_gib=lambda: 0.75)
    monitor.on_train_start(run.trainer, run.module)
    run.train(monitor, [1.0] * 5)
    assert [line["data/tokens_seen"] for line in run.log.lines.values()] == [20, 40]
    assert [line["data/examples_seen"] for line in run.log.lines.values()] == [4, 8]
    assert run.log.lines[4]["perf/peak_gib"] == 0.75
    again = Monitor(LENGTH, 2, show_progress=False)
    again.load_state_dict(monitor.state_dict())
    run.train(again, [1.0])
    assert run.log.lines[6]["data/tokens_seen"] == 60
    assert run.log.lines[6]["data/examples_seen"] == 12
    assert "perf/peak_gib" not in run.log.lines[6]


def test_norms_of_groups_stand_below_that_of_the_whole(time: FakeTime) -> None:
    run, monitor = Run(time), Monitor(LENGTH, 1, show_progress=False)
    run.module.gradient_norms = {"head": torch.tensor(0.25)}
    monitor.on_train_start(run.trainer, run.module)
    run.train(monitor, [1.0])
    assert run.log.lines[1]["train/gradient_norm"] == 0.5
    assert run.log.lines[1]["train/gradient_norm/head"] == 0.25


def test_rates_of_an_optimizer_without_names_go_by_number(time: FakeTime) -> None:
    run = Run(time)
    run.trainer.optimizers[0].param_groups = [{"lr": 0.1}, {"lr": 0.2}]
    run.train(started(run), [1.0, 1.0])
    rates = {name: value for name, value in run.log.lines[2].items() if name.startswith("lr/")}
    assert rates == {"lr/group_0": 0.1, "lr/group_1": 0.2}


def test_the_accuracy_of_a_causal_encoder_is_that_of_the_next_token(time: FakeTime) -> None:
    run = Run(time)
    outputs = {"loss": torch.tensor(1.0), "next_token_accuracy": torch.tensor(0.25)}
    monitor = started(run, every=1)
    run.trainer.global_step = time.now = 1
    batch = {"input_ids": torch.ones(2, 5), "labels": torch.ones(2)}
    monitor.on_train_batch_end(run.trainer, run.module, outputs, batch, 0)
    assert run.log.lines[1]["train/next_token_accuracy"] == 0.25
    assert "train/masked_accuracy" not in run.log.lines[1]
