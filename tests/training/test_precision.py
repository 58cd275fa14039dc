"""Precision, accumulation, clipping and processes: what may change the speed, not the result."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from finetune import jobs as runs
from finetune.checkpoints.folder import load_checkpoint
from finetune.encoder import Encoder, EncoderConfig, block
from finetune.errors import ConfigError
from finetune.jobs import session
from finetune.runs.settings import PretrainRun
from finetune.settings import fields as settings
from finetune.training.config import CheckpointConfig, LoaderConfig, TrainerConfig
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.trainer import build_trainer
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import rate_factor
from tests.made.nets import tiny_config

PLAIN = tiny_config(
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    causal=True,
)
"""No dropout, and as many tokens to name in every block: a mean of means is the mean."""
SMOOTH = OptimizerConfig(learning_rate=1e-2, adam_epsilon=1e-2)
"""A step is then a smooth function of its gradient, where AdamW's usual one asks for the sign."""


def lines(run: PretrainRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run.out) / "metrics.jsonl").read_text().splitlines()]


def weights(run: PretrainRun) -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(run.out) / "checkpoints" / "last").weights()


@pytest.fixture
def plain(pretraining: Callable[..., PretrainRun]) -> Callable[..., PretrainRun]:
    """A run of a few steps without dropout, every step logged."""

    def make(out: str, *, micro_batches: int = 1, steps: int = 3, **trainer: Any) -> PretrainRun:
        return pretraining(
            out,
            encoder=PLAIN,
            optimizer=SMOOTH,
            loader=LoaderConfig(batch_size=16, micro_batches=micro_batches),
            length=LengthConfig(max_steps=steps),
            trainer=TrainerConfig(log_every_steps=1, progress=False, **trainer),
            checkpoints=CheckpointConfig(),
        )

    return make


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=0, msg=name)


def test_bfloat16_trains_on_the_cpu_and_keeps_whole_weights(
    plain: Callable[..., PretrainRun],
) -> None:
    whole, half = plain("whole", steps=6), plain("half", steps=6, precision="bf16-mixed")
    runs.pretrain(whole)
    results = runs.pretrain(half)
    assert all(tensor.dtype == torch.float32 for tensor in weights(half).values())
    for ours, theirs in zip(lines(half), lines(whole), strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=0.02)
    assert results["metrics"]["loss"] < lines(half)[0]["train/loss"]


@pytest.mark.parametrize("variant", [{"position": "rotary"}, {"attention_score": "additive"}])
def test_variants_train_in_bfloat16(
    variant: dict[str, Any], plain: Callable[..., PretrainRun]
) -> None:
    run = plain("run", steps=4, precision="bf16-mixed")
    run = dataclasses.replace(run, encoder=dataclasses.replace(PLAIN, causal=False, **variant))
    runs.pretrain(run)
    losses = [line["train/loss"] for line in lines(run)]
    assert losses[-1] < losses[0]


def test_two_micro_batches_are_one_batch(plain: Callable[..., PretrainRun]) -> None:
    one, two = plain("one"), plain("two", micro_batches=2)
    runs.pretrain(one)
    runs.pretrain(two)
    assert_close(weights(two), weights(one))
    for ours, theirs in zip(lines(two), lines(one), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["epoch"] == pytest.approx(theirs["epoch"], abs=0.1)
        for name in ("train/loss", "train/gradient_norm", "lr/head"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name


@pytest.mark.parametrize("largest", [0.1, 100.0, None])
def test_a_gradient_is_clipped_and_its_norm_before_is_kept(largest: float | None) -> None:
    module = Pretrainer(Encoder(dataclasses.replace(PLAIN, vocab_size=20)))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter) * 0.01
    before = nn.utils.get_total_norm([p.grad for p in module.parameters()])
    assert before > 0.1
    module.is_logged_step = True
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.configure_gradient_clipping(optimizer, largest, "norm")
    after = nn.utils.get_total_norm([p.grad for p in module.parameters()])
    assert module.gradient_norm is not None
    torch.testing.assert_close(module.gradient_norm, before)
    expected = before if largest in (None, 100.0) else torch.tensor(0.1)
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=0)


def test_clipping_changes_the_steps_and_not_the_norm_that_is_logged(
    plain: Callable[..., PretrainRun],
) -> None:
    kept, clipped = plain("kept", gradient_clip=None), plain("clipped", gradient_clip=0.01)
    runs.pretrain(kept)
    runs.pretrain(clipped)
    norms = [lines(run)[0]["train/gradient_norm"] for run in (kept, clipped)]
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 0.01
    kept_weight, clipped_weight = (weights(run)["head.dense.weight"] for run in (kept, clipped))
    assert not torch.equal(kept_weight, clipped_weight)


@pytest.mark.parametrize(
    "settings",
    [{"precision": "15-mixed"}, {"accelerator": "abacus"}, {"strategy": "chess"}],
)
def test_what_lightning_does_not_know_is_one_clear_error(settings: dict[str, str]) -> None:
    (value,) = settings.values()
    with pytest.raises(ConfigError, match=value):
        build_trainer(
            TrainerConfig(**settings),  # type: ignore[arg-type]
            LengthConfig(max_steps=1),
            callbacks=[],
            loggers=[],
        )


TWO_PROCESSES = """
import os, sys
from pathlib import Path
import torch
from finetune import jobs as runs
from finetune.jobs import session
from finetune.settings import fields as settings
from finetune.runs.settings import PretrainRun
from finetune.training.loop.progress import Clock

class TickingClock(Clock):  # another one in each process, and no time is lost by waiting for it
    now = 0.0

    @property
    def seconds(self):
        self.now += 0.1 * (1 + int(os.environ.get("LOCAL_RANK", "0")))
        return self.now

fit = session.Session._fit

def fit_and_show(self, *arguments):
    fit(self, *arguments)
    rank = os.environ.get("LOCAL_RANK", "0")
    torch.save(self.module.state_dict(), self.folder.path / f"rank-{rank}.pt")

session.Session._fit, session.Clock = fit_and_show, TickingClock
if __name__ == "__main__":
    runs.pretrain(settings.read(PretrainRun, Path(sys.argv[1])))
"""


def in_two_processes(run: PretrainRun, folder: Path) -> list[dict[str, torch.Tensor]]:
    """Run it in a process that starts the second one; the weights that each ended with."""
    script, config = folder / "script.py", folder / "run.yaml"
    script.write_text(TWO_PROCESSES)
    config.write_text(settings.dump(run))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, str(script), str(config)],
        env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [torch.load(Path(run.out) / f"rank-{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["steps", "minutes"])
def test_two_processes_keep_the_same_weights(
    limit: str, plain: Callable[..., PretrainRun], tmp_path: Path
) -> None:
    """Two processes with batches of eight do what one with sixteen does; dropout differs."""
    two = plain("two", batch_size=8, steps=5, devices=2, strategy="ddp", accelerator="cpu")
    if limit == "minutes":
        encoder = EncoderConfig(**{**PLAIN.to_dict(), "hidden_dropout_prob": 0.1})
        length = LengthConfig(max_minutes=0.05)
        two = dataclasses.replace(two, encoder=encoder, length=length)
    first, second = in_two_processes(two, tmp_path)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert json.loads((Path(two.out) / "results.json").read_text())["metrics"]
    rates = [line["lr/head"] for line in lines(two) if "lr/head" in line]
    assert 0 < rates[-1] < 0.3 * max(rates)
    if limit == "steps":
        one = plain("one", steps=5)
        runs.pretrain(one)
        assert_close(first, weights(one))
        assert rates == [line["lr/head"] for line in lines(one)]


def test_each_step_has_the_rate_of_the_steps_behind(plain: Callable[..., PretrainRun]) -> None:
    run = plain("run", steps=5)
    runs.pretrain(run)
    peak, shape = run.optimizer.learning_rate, run.schedule
    rates = [line["lr/head"] for line in lines(run) if "lr/head" in line]
    assert rates == [peak * rate_factor(step / 5, shape) for step in range(5)]


def test_deterministic_is_asked_of_torch_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for deterministic in (False, True):
        config = TrainerConfig(accelerator="cpu", deterministic=deterministic)
        build_trainer(config, LengthConfig(max_steps=1), callbacks=[], loggers=[])
    assert asked == [True]  # otherwise it stays as the caller has it
    assert "CUBLAS_WORKSPACE_CONFIG" in os.environ


@pytest.mark.parametrize(
    ("device", "precision", "dtype"),
    [
        ("cuda", "32-true", torch.float32),
        ("cuda", "bf16-mixed", torch.bfloat16),
        ("cuda", "16-mixed", torch.float16),
        ("cpu", "bf16-mixed", torch.float32),
    ],
)
def test_a_gpus_ceiling_is_that_of_the_precision_that_the_run_computes_in(
    device: str,
    precision: str,
    dtype: torch.dtype,
    pretraining: Callable[..., PretrainRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float32 alone a run in bfloat16 would use several times what a GPU can do."""
    asked: list[torch.dtype] = []
    monkeypatch.setattr(session, "pick_device", lambda accelerator: torch.device(device))
    monkeypatch.setattr(session, "matmul_ceiling", lambda device, dtype: asked.append(dtype) or 1.0)
    run = pretraining("unused", trainer=TrainerConfig(precision=precision))
    made: Any = SimpleNamespace(task=None, run=run)
    assert session.Session._ceiling(made) is not None
    assert asked == [dtype]


def test_a_run_that_compiles_asks_the_encoder_for_it(
    plain: Callable[..., PretrainRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[nn.Module] = []
    monkeypatch.setattr(
        block,
        "_compiled",
        lambda: lambda one, *more, **words: calls.append(one) or one(*more, **words),
    )
    one, two = plain("one"), plain("two", compile=True)
    runs.pretrain(one)
    assert not calls
    runs.pretrain(two)
    assert len(calls) == 2 * 3  # blocks, steps
    assert_close(weights(two), weights(one))
