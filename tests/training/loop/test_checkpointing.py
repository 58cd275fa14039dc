"""When checkpoints are written, which is best, and what ends a run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from finetune import jobs as runs
from finetune.checkpoints.folder import load_trainer_state
from finetune.encoder import Encoder
from finetune.errors import FinetuneError
from finetune.jobs import session
from finetune.runs.settings import FitRun, PretrainRun
from finetune.training.config import CheckpointConfig, TrainerConfig
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import Clock, LengthConfig, RunLength
from finetune.training.loop.stopping import Interrupted, StopSignals
from finetune.training.loop.trainer import fraction_done
from finetune.training.schedules import ScheduleConfig, rate_factor
from tests.made.nets import tiny_config


class FakeClock(Clock):
    """Goes on when it is told."""

    now = 0.0

    @property
    def seconds(self) -> float:
        return self.now


class Run:
    """As much of a Trainer as the Checkpointer looks at, and a record of what was written."""

    def __init__(self, *, accumulate: int = 1, batches_per_epoch: int = 100, **config: Any) -> None:
        self.written: list[tuple[str, dict[str, Any] | None]] = []
        self.clock, self.module, self.accumulate = FakeClock(), nn.Linear(2, 2), accumulate
        self.trainer: Any = SimpleNamespace(
            global_step=0,
            accumulate_grad_batches=accumulate,
            datamodule=SimpleNamespace(batches_per_epoch=batches_per_epoch),
            world_size=1,
            is_global_zero=True,
            should_stop=False,
            callback_metrics={},
            callbacks=[],
            optimizers=[torch.optim.AdamW(self.module.parameters())],
            precision_plugin=SimpleNamespace(state_dict=dict),
            strategy=SimpleNamespace(barrier=lambda: None),
            lightning_module=self.module,
        )
        self.batches = 0
        self.config = CheckpointConfig(**config)

    def checkpointer(
        self, limit: LengthConfig | None = None, *, monitor: str = "val/accuracy"
    ) -> Checkpointer:
        return Checkpointer(
            Path("RUN/checkpoints"),
            lambda folder, state: self.written.append((folder.name, state)),
            RunLength(limit or LengthConfig(max_steps=1000), 100, self.clock),
            self.config,
            monitor=monitor,
        )

    def train(self, checkpointer: Checkpointer, batches: int) -> None:
        per_epoch = self.trainer.datamodule.batches_per_epoch
        for _ in range(batches):
            number = self.batches % (per_epoch * self.accumulate)
            checkpointer.on_train_batch_start(self.trainer, self.module, None, number)  # type: ignore[arg-type]
            self.batches += 1
            self.trainer.global_step += (number + 1) % self.accumulate == 0
            checkpointer.on_train_batch_end(self.trainer, self.module, None, None, number)  # type: ignore[arg-type]

    def validate(self, checkpointer: Checkpointer, value: float) -> None:
        self.trainer.callback_metrics[checkpointer.monitor] = torch.tensor(value)
        checkpointer.on_validation_end(self.trainer, self.module)  # type: ignore[arg-type]

    def states(self) -> list[dict[str, Any]]:
        return [state for name, state in self.written if name == "last" and state is not None]


@pytest.mark.parametrize(
    ("monitor", "best"), [("val/accuracy", [0, 2, 3]), ("val/loss", [0, 1, 5])]
)
def test_the_best_checkpoint_follows_the_monitored_value(monitor: str, best: list[int]) -> None:
    run = Run()
    checkpointer = run.checkpointer(monitor=monitor)
    written = []
    for number, value in enumerate([0.5, 0.3, 0.6, 0.7, 0.7, 0.2]):  # an equal one is not better
        before = len(run.written)
        run.validate(checkpointer, value)
        written += [number] * (len(run.written) - before)
    assert written == best
    assert set(run.written[0]) == {"best", None}  # no state: it is not to resume from
    assert not run.trainer.should_stop


def test_patience_counts_validations_without_a_better_value() -> None:
    run = Run(patience=2)
    checkpointer = run.checkpointer()
    stopped = []
    for value in (0.5, 0.4, 0.6, 0.6, float("nan")):
        run.validate(checkpointer, value)
        stopped.append(run.trainer.should_stop)
    assert stopped == [False, False, False, False, True]
    assert len(run.written) == 2


def test_without_the_monitored_value_nothing_is_best() -> None:
    run = Run(patience=1)
    checkpointer = run.checkpointer()
    checkpointer.on_validation_end(run.trainer, run.module)  # type: ignore[arg-type]
    assert (run.written, run.trainer.should_stop) == ([], False)


def test_a_state_is_written_between_steps_only() -> None:
    """Three micro-batches a step, an epoch of three steps."""
    run = Run(accumulate=3, batches_per_epoch=3, checkpoint_every_steps=1)
    run.train(run.checkpointer(), 15)
    places = [tuple(state["standing"].values()) for state in run.states()]
    assert places == [(0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4)]  # epoch, batch, step
    assert not any(state["finished"] for state in run.states())


def test_states_are_written_at_the_interval_and_at_the_end() -> None:
    run = Run(checkpoint_every_steps=4)
    checkpointer = run.checkpointer()
    run.train(checkpointer, 10)
    checkpointer.on_train_end(run.trainer, run.module)  # type: ignore[arg-type]
    assert [state["standing"]["step"] for state in run.states()] == [4, 8, 10]
    assert [state["finished"] for state in run.states()] == [False, False, True]


def test_a_run_goes_on_with_its_best_value_and_its_patience() -> None:
    run = Run(patience=3)
    before = run.checkpointer()
    run.train(before, 2)
    for value in (0.8, 0.5, 0.5):
        run.validate(before, value)
    before.on_train_end(run.trainer, run.module)  # type: ignore[arg-type]
    (state,) = run.states()
    after = Checkpointer(
        before.folder, before.write, before.length, run.config,
        monitor="val/accuracy", state=state,
    )  # fmt: skip
    assert (after.best, after.bad_validations) == (pytest.approx(0.8), 2)
    assert after.progress == before.progress
    run.validate(after, 0.7)
    assert run.trainer.should_stop


def test_weights_that_are_no_numbers_never_replace_a_checkpoint() -> None:
    """A gradient can overflow while the loss is still finite."""
    run = Run(checkpoint_every_steps=2)
    checkpointer = run.checkpointer()
    run.train(checkpointer, 3)
    run.module.bias.data[0] = float("nan")
    with pytest.raises(FinetuneError, match="bias is not finite after step 4: .* is kept; lower"):
        run.train(checkpointer, 3)
    with pytest.raises(FinetuneError, match="bias is not finite"):
        run.validate(checkpointer, 0.9)
    assert [state["standing"]["step"] for state in run.states()] == [2]
    assert len(run.written) == 1


def test_a_loss_that_is_no_number_names_the_step() -> None:
    run = Run()
    checkpointer = run.checkpointer()
    with pytest.raises(
        FinetuneError, match="the loss is inf at step 1: .*; none was written; lower"
    ):
        checkpointer.on_before_backward(run.trainer, run.module, torch.tensor(float("inf")))  # type: ignore[arg-type]
    checkpointer.on_before_backward(run.trainer, run.module, torch.tensor(1e30))  # type: ignore[arg-type]


def of_two(sums: list[float], *, on_gpu: bool = False) -> tuple[Any, Any]:
    """A trainer of two processes, and the module to which these sums came with a gradient."""
    module = Pretrainer(Encoder(tiny_config()))
    shared = module.step_weights.shared
    shared.travel = True
    shared.arrive(torch.tensor(sums))
    trainer: Any = SimpleNamespace(world_size=2, global_step=4, lightning_module=module)
    shared.complete(trainer)
    for copy in shared._copies:
        copy.on_gpu = on_gpu
    return trainer, module


def test_a_loss_that_is_no_number_in_one_process_stops_all_before_the_step() -> None:
    checkpointer = Run().checkpointer()
    for total, stops in ((float("nan"), True), (12.0, False)):
        trainer, module = of_two([4.0, total, 0.0])
        local: Any = torch.tensor(1.0 if stops else float("nan"))
        checkpointer.on_before_backward(trainer, module, local)  # the others would wait
        with pytest.raises(FinetuneError, match="loss is nan at ste") if stops else nullcontext():
            checkpointer.on_before_optimizer_step(trainer, module, None)  # type: ignore[arg-type]


def test_processes_follow_the_first_ones_clock_as_it_came_with_the_gradient() -> None:
    length = RunLength(LengthConfig(max_minutes=1), 100, FakeClock())
    assert fraction_done(of_two([4.0, 8.0, 0.25])[0], length) == 0.25
    trainer, module = of_two([4.0, 8.0, 0.25], on_gpu=True)
    assert module.step_weights.shared.fraction is None  # a GPU is not waited for
    trainer.strategy = SimpleNamespace(broadcast=lambda value: 0.125)
    assert fraction_done(trainer, length) == 0.125


def test_a_run_of_minutes_ends_by_the_clock() -> None:
    run = Run()
    checkpointer = run.checkpointer(LengthConfig(max_minutes=1))
    batches = 0
    while not run.trainer.should_stop:
        last_fraction = checkpointer.length.fraction(batches)
        run.clock.now += 7.0
        run.train(checkpointer, 1)
        batches += 1
    assert batches == 9  # 63 seconds
    for schedule in ("linear", "cosine"):
        assert rate_factor(last_fraction, ScheduleConfig(schedule)) < 0.08  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_waited_for_until_the_step_is_complete(number: signal.Signals) -> None:
    run, before = Run(accumulate=2), signal.getsignal(number)
    checkpointer = run.checkpointer()
    checkpointer.length.clock.resume = lambda seconds: None  # type: ignore[method-assign]
    checkpointer._signals.remember()
    checkpointer.on_train_start(run.trainer, run.module)  # type: ignore[arg-type]
    run.train(checkpointer, 1)
    os.kill(os.getpid(), number)
    run.train(checkpointer, 1)  # half a step is behind: it is made whole
    with pytest.raises(Interrupted) as stop:
        run.train(checkpointer, 1)
    assert stop.value.signal == number
    assert [state["standing"]["step"] for state in run.states()] == [1]
    checkpointer.on_exception(run.trainer, run.module, stop.value)  # type: ignore[arg-type]
    assert signal.getsignal(number) is before


def test_all_processes_stop_before_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is asked has not begun its step 3 while the other may be in the midst of it."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    device = SimpleNamespace(root_device=torch.device("cpu"))
    trainer: Any = SimpleNamespace(world_size=2, strategy=device)
    asked, other = (StopSignals(Path("RUN/checkpoints/last")) for _ in range(2))
    assert [each.due(trainer, 2) for each in (asked, other)] == [None, None]
    assert other.due(trainer, 3) is None
    asked._ask(signal.SIGTERM, None)
    assert asked.due(trainer, 3) is None
    other._ask(signal.SIGINT, None)  # the first one counts
    assert [each.due(trainer, 4) for each in (asked, other)] == [signal.SIGTERM] * 2


def test_a_signal_that_a_launcher_passes_on_is_not_a_second_one() -> None:
    signals, before = StopSignals(Path("RUN/checkpoints/last")), signal.getsignal(signal.SIGINT)
    signals.remember()
    signals.take_over(SimpleNamespace(world_size=2))  # type: ignore[arg-type]
    try:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        signals._asked = (signal.SIGINT, -10.0)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signals.give_back()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_tells_where_the_state_is_only_if_it_is_there(tmp_path: Path) -> None:
    stop = Interrupted(signal.SIGTERM, tmp_path / "last")
    assert str(stop) == "stopped before the first checkpoint; nothing was saved"
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "config.json").write_text("{}")
    assert str(stop) == f"stopped; checkpoint saved to {tmp_path}/last; continue with --resume"


def test_a_signal_in_the_last_step_stops_what_would_come_next() -> None:
    run = Run()
    checkpointer = run.checkpointer()
    run.train(checkpointer, 2)
    checkpointer._signals._ask(signal.SIGINT, None)
    with pytest.raises(Interrupted):
        checkpointer.on_train_end(run.trainer, run.module)  # type: ignore[arg-type]
    assert [state["finished"] for state in run.states()] == [True]


class TickingClock(Clock):
    """Every look at it takes a tenth of a second: a run of three seconds takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @property
    def seconds(self) -> float:
        self.now += 0.1
        return self.now


def test_a_pretraining_of_minutes_ends_at_its_time_with_a_rate_near_zero(
    pretraining: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "Clock", TickingClock)
    trainer = TrainerConfig(log_every_steps=1, progress=False)
    run = pretraining("run", length=LengthConfig(max_minutes=0.05), trainer=trainer)
    results = runs.pretrain(run)
    assert 3.0 <= results["train_seconds"] < 3.6
    lines = [
        json.loads(line) for line in (Path(run.out) / "metrics.jsonl").read_text().splitlines()
    ]
    rates = [line["lr/head"] for line in lines if "lr/head" in line]
    assert len(rates) > 8
    assert rates[-1] < 0.1 * max(rates)
    assert "val/loss" in lines[-1]  # the last weights are validated
    state = load_trainer_state(Path(run.out) / "checkpoints" / "last")
    assert state is not None
    assert state["finished"]


def test_early_stopping_ends_a_fine_tuning(
    fine_tuning: Callable[..., FitRun],
    pretraining: Callable[..., PretrainRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tasks.glue.task import GlueTask

    # First the trivial answers are scored, then each epoch's.
    scores = iter([0.3, 0.5, 0.6, 0.4, 0.4, 0.9, 0.9, 0.9])
    start = pretraining("start", length=LengthConfig(max_steps=2))
    runs.pretrain(start)
    monkeypatch.setattr(GlueTask, "score", lambda self, answers: {"accuracy": next(scores)})
    run = fine_tuning(
        "run",
        encoder_from=start.out,
        length=LengthConfig(max_epochs=6),
        checkpoints=CheckpointConfig(patience=2),
        baselines=False,  # whose answers would be scored too
    )
    runs.fit(run)
    state = load_trainer_state(Path(str(run.out)) / "checkpoints" / "last")
    assert state is not None
    assert (state["standing"]["epoch"], state["finished"]) == (4, True)
    assert state["best"] == pytest.approx(0.6)
