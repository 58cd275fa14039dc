"""Learning-rate schedules: how far a run has come -> the factor on every group's peak rate.

A schedule is a pure function of `progress`, the fraction of the run that lies behind, in [0, 1].
Steps, epochs and minutes all reduce to that fraction, so a run that is limited by the clock follows
the same curve as one that is limited by steps. Nothing here is state: resuming computes the factor
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from finetune.errors import ConfigError
from finetune.ranges import check_values, within

ScheduleName = Literal["slanted_triangular", "linear", "cosine", "constant", "wsd"]


@dataclass
class ScheduleConfig:
    """The learning-rate schedule.

    >>> from finetune import ScheduleConfig
    >>> schedule = ScheduleConfig("slanted_triangular")
    >>> schedule.cut_fraction, schedule.ratio
    (0.1, 32.0)
    """

    schedule: ScheduleName = "linear"
    """slanted_triangular (ULMFiT), or linear warm-up followed by linear, cosine, constant or wsd
    (warm-up, stable, decay: constant up to a decay at the end)."""
    warmup_ratio: float = within(
        0, 1, below=True, default=0.1, hint="choose 0.1 for a tenth of the run"
    )
    """Fraction of the run with linear warm-up from 0 to the peak rate, in [0, 1)."""
    cut_fraction: float = within(
        0, 1, above=True, below=True, default=0.1, hint="the paper uses 0.1"
    )
    """slanted_triangular: fraction of the run in which the rate rises, in (0, 1)."""
    ratio: float = within(1, 1_000_000, default=32.0, hint="the paper uses 32")
    """slanted_triangular: the peak rate divided by the lowest rate."""
    decay_fraction: float = within(0, 1, above=True, default=0.2)
    """wsd: fraction of the run in which the rate falls to 0, at its end, in (0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A ratio or fraction is out of its range, or warm-up and decay overlap.
        """
        check_values(self)
        if self.schedule == "wsd" and self.warmup_ratio + self.decay_fraction > 1:
            raise ConfigError(
                "warmup_ratio and decay_fraction must together be at most 1, got "
                f"{self.warmup_ratio} and {self.decay_fraction}; lower one"
            )


def slanted_triangular(progress: float, config: ScheduleConfig) -> float:
    """A short rise, then a long linear decay (Howard and Ruder, 2018, section 3.2, equation 3).

    Args:
        progress: Fraction of the run behind, in [0, 1]: t / T in the paper.
        config: Gives `cut_fraction` and `ratio`.

    Returns:
        The factor on the peak rate, between 1 / ratio and 1.
    """
    # The paper counts steps: its cut · (1 / cut_frac - 1) is T - cut, here 1 - cut.
    cut = config.cut_fraction
    rise = progress / cut if progress < cut else 1 - (progress - cut) / (1 - cut)
    return (1 + rise * (config.ratio - 1)) / config.ratio


def _warmed_up(progress: float, config: ScheduleConfig, decay: Callable[[float], float]) -> float:
    warmup = config.warmup_ratio
    if progress < warmup:
        return progress / warmup  # so the first step has rate 0, as in BERT's own code
    return decay((progress - warmup) / (1 - warmup))


def linear(progress: float, config: ScheduleConfig) -> float:
    """Linear warm-up, then a linear decay to zero (Devlin et al., 2019, appendix A.2)."""
    return _warmed_up(progress, config, lambda rest: 1 - rest)


def cosine(progress: float, config: ScheduleConfig) -> float:
    """Linear warm-up, then half a cosine to zero (Loshchilov and Hutter, 2017, equation 5)."""
    return _warmed_up(progress, config, lambda rest: 0.5 * (1 + math.cos(math.pi * rest)))


def constant(progress: float, config: ScheduleConfig) -> float:
    """Linear warm-up, then the peak rate to the end."""
    return _warmed_up(progress, config, lambda rest: 1.0)


def wsd(progress: float, config: ScheduleConfig) -> float:
    """Linear warm-up, the peak rate, then a short decay to zero (Hu et al., 2024, section 4).

    The decay is 1 - sqrt, which Hägele et al. (2024, section 3) found ahead of a line.
    """
    stable = 1 - config.decay_fraction
    if progress <= stable:
        return constant(progress, config)
    return 1 - math.sqrt((progress - stable) / config.decay_fraction)


SCHEDULES: dict[str, Callable[[float, ScheduleConfig], float]] = {
    "slanted_triangular": slanted_triangular,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
    "wsd": wsd,
}


def rate_factor(progress: float, config: ScheduleConfig) -> float:
    """The factor on the peak rate at this point of the run.

    Args:
        progress: Fraction of the run behind; clipped to [0, 1].
        config: Names the schedule and its shape.

    Returns:
        A factor in [0, 1].
    """
    return SCHEDULES[config.schedule](min(max(progress, 0.0), 1.0), config)
