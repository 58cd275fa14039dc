"""Signals in every phase of a run, once and twice: one true line, the status, no traceback."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch

from finetune.checkpoints import folder as checkpoint
from finetune.jobs import adapting, fine_tuning, pretraining, scoring
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.pretrainer import Pretrainer

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# Phase -> what the run calls in it, and which call of it the signal comes in.
PHASES: dict[str, tuple[Any, str, int]] = {
    "reading": (pretraining, "build_corpus", 1),
    "preparing": (fine_tuning, "prepare", 1),
    "first step": (Checkpointer, "on_before_backward", 1),
    "a step": (Checkpointer, "on_before_backward", 7),
    "first saving": (safetensors.torch, "save_file", 1),
    "a saving": (safetensors.torch, "save_file", 3),
    "validating": (FineTuner, "validation_step", 2),
    "validating words": (Pretrainer, "validation_step", 2),
    "scoring": (scoring, "write_predictions", 1),
    "adapting": (adapting, "train_language_model", 1),
}
PRETRAINING = ("reading", "validating words")


def signal_in(
    phase: str, number: signal.Signals, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a signal come, once or twice, as a phase begins."""
    owner, name, at = PHASES[phase]
    plain: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def stopped(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return plain(*args, **more)

    monkeypatch.setattr(owner, name, stopped)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        pytest.param(
            phase,
            number,
            marks=[] if number == signal.SIGTERM else [pytest.mark.slow],
            id=f"{phase}-{number.name}",
        )
        for phase in PHASES
        for number in STOP_SIGNALS
    ],
)
def test_a_signal_in_any_phase_is_one_true_line(
    phase: str,
    number: signal.Signals,
    times: int,
    world: World,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    run = tmp_path / "run"
    if phase in PRETRAINING:
        words = world.pretrain(run, "--tokenizer", world.tokenizer)
    else:
        words = world.glue(run, *(["--adapt", 1] if phase == "adapting" else []))
    with monkeypatch.context() as patch:
        signal_in(phase, number, times, patch)
        outcome = call(*words)
    assert outcome.status == 128 + number, outcome.err
    assert outcome.out == ""
    assert outcome.complaint.startswith("finetune: stopped"), outcome.err
    assert outcome.err.count("finetune: ") == 1
    named = re.search(r"checkpoint saved to (\S+);", outcome.complaint)
    if named:
        assert checkpoint.load_checkpoint(Path(named[1])).weights()
        assert (Path(named[1]) / "trainer.pt").exists()
    else:
        assert not (run / "checkpoints" / "last").exists() or phase in ("scoring", "adapting")
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before
    left = [path.name for path in tmp_path.rglob("*") if ".tmp" in path.name or ".old" in path.name]
    assert left == []
    assert call(*words, "--overwrite").status == 0
