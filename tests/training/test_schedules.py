"""Schedules against transformers' and the papers' formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from finetune.errors import ConfigError
from finetune.training.schedules import SCHEDULES, ScheduleConfig, rate_factor

STEPS = 200


def reference_factors(name: str) -> list[float]:
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup = {"num_warmup_steps": STEPS // 10}
    if name == "constant":
        scheduler = transformers.get_constant_schedule_with_warmup(optimizer, **warmup)
    else:
        make = getattr(transformers, f"get_{name}_schedule_with_warmup")
        scheduler = make(optimizer, num_training_steps=STEPS, **warmup)
    return [scheduler.lr_lambdas[0](step) for step in range(STEPS + 1)]


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_warmed_up_schedules_equal_those_of_transformers(name: Any) -> None:
    config = ScheduleConfig(schedule=name, warmup_ratio=0.1)
    ours = [rate_factor(step / STEPS, config) for step in range(STEPS + 1)]
    assert ours == pytest.approx(reference_factors(name), abs=1e-12)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.6])
def test_wsd_equals_that_of_transformers(warmup: float) -> None:
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = transformers.get_wsd_schedule(
        optimizer,
        num_warmup_steps=round(STEPS * warmup),
        num_decay_steps=STEPS * 2 // 5,
        num_training_steps=STEPS,
        decay_type="1-sqrt",
    )
    config = ScheduleConfig("wsd", warmup_ratio=warmup, decay_fraction=0.4)
    ours = [rate_factor(step / STEPS, config) for step in range(STEPS + 1)]
    expected = [scheduler.lr_lambdas[0](step) for step in range(STEPS + 1)]
    assert ours == pytest.approx(expected, abs=1e-12)


def paper_slanted_triangular(t: int, total: int, cut_frac: float, ratio: float) -> float:
    """Howard and Ruder (2018), equation 3, with the peak rate 1."""
    cut = math.floor(total * cut_frac)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize("cut_fraction", [0.1, 0.25, 0.5])
def test_slanted_triangle_equals_the_paper_s_equation(cut_fraction: float) -> None:
    config = ScheduleConfig(schedule="slanted_triangular", cut_fraction=cut_fraction, ratio=32)
    for step in range(STEPS + 1):
        expected = paper_slanted_triangular(step, STEPS, cut_fraction, 32)
        assert rate_factor(step / STEPS, config) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("warmup", [0.0, 0.3])
def test_factors_stay_between_zero_and_one(name: Any, warmup: float) -> None:
    config = ScheduleConfig(schedule=name, warmup_ratio=warmup)
    factors = [rate_factor(step / STEPS, config) for step in range(-5, STEPS + 5)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert max(factors) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_decaying_schedules_end_at_zero(name: Any) -> None:
    assert rate_factor(1.0, ScheduleConfig(schedule=name)) == pytest.approx(0, abs=1e-12)
    assert rate_factor(1.7, ScheduleConfig(schedule=name)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"warmup_ratio": 1.0}, r"warmup_ratio must be a number from 0 to below 1.*, got 1.0"),
        ({"cut_fraction": 0.0}, "cut_fraction must be a number above 0 and below 1, got 0.0"),
        (
            {"schedule": "wsd", "warmup_ratio": 0.5, "decay_fraction": 0.6},
            "warmup_ratio and decay_fraction must together be at most 1, got 0.5 and 0.6",
        ),
        ({"ratio": 0.5}, "ratio must be a number from 1 to .*, got 0.5"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**setting)


def test_minutes_follow_the_clock_and_steps_the_counter() -> None:
    from finetune.training.loop.progress import LengthConfig, RunLength

    clock: Any = SimpleNamespace(seconds=90.0)
    by_clock = RunLength(LengthConfig(max_minutes=3), steps_per_epoch=10, clock=clock)
    assert by_clock.total_steps is None
    assert by_clock.fraction(step=1234) == pytest.approx(0.5)
    clock.seconds = 180.0
    assert by_clock.fraction(step=0) == pytest.approx(1.0)
    by_epoch = RunLength(LengthConfig(max_epochs=4), steps_per_epoch=10, clock=clock)
    assert (by_epoch.total_steps, by_epoch.fraction(10)) == (40, 0.25)
    by_step = RunLength(LengthConfig(max_steps=50), steps_per_epoch=10, clock=clock)
    assert (by_step.total_steps, by_step.fraction(10)) == (50, 0.2)


def test_two_limits_at_once_are_refused() -> None:
    from finetune.training.loop.progress import LengthConfig

    with pytest.raises(ConfigError, match="got max_steps and max_minutes; keep one"):
        LengthConfig(max_steps=3, max_minutes=1.0)
    with pytest.raises(ConfigError, match="max_epochs must be .*(above 0|from 1).*, got 0"):
        LengthConfig(max_epochs=0)
    assert LengthConfig().or_default() == LengthConfig(max_epochs=3)
    assert LengthConfig(max_steps=7).or_default() == LengthConfig(max_steps=7)
