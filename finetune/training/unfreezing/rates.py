"""The rate of each group at any step: the schedule's factor times a thawed group's own warm-up.

This is the rule that the optimizer obeys, and that the plan's table shows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from finetune.training.schedules import ScheduleConfig, rate_factor
from finetune.training.unfreezing.plan import Pace, Plan


def phase_progress(step: int, begin: int, end: int) -> float:
    """Fraction of a phase that lies behind, in [0, 1].

    Args:
        step: Steps of the run behind.
        begin: Steps behind when the phase begins.
        end: Steps behind when it ends, more than `begin`.
    """
    return min(max((step - begin) / (end - begin), 0.0), 1.0)


def thaw_warmup_factor(fraction: float, thawed_at: float, thaw_warmup_ratio: float) -> float:
    """A thawed group's own linear warm-up, which multiplies the schedule's factor.

    Args:
        fraction: Fraction of the run behind, in [0, 1].
        thawed_at: Fraction of the run behind at the group's thaw; 0 = trainable from the start.
        thaw_warmup_ratio: How long the warm-up is, as a fraction of the run; 0 = none.

    Returns:
        From 0 at the thaw to 1; always 1 for a group that was never frozen.
    """
    if thawed_at <= 0 or thaw_warmup_ratio <= 0:
        return 1.0
    return min(max((fraction - thawed_at) / thaw_warmup_ratio, 0.0), 1.0)


@dataclass(frozen=True)
class RatePlan:
    """The factor on each group's peak rate at any step of a run that follows a plan."""

    plan: Plan
    """The phases."""
    pace: Pace
    """Batches and steps of the run."""
    schedule: ScheduleConfig
    """Shape of the rate."""
    schedule_scope: Literal["run", "phase"] = "run"
    """Whether that shape covers the run or each phase."""
    thaw_warmup_ratio: float = 0.0
    """Warm-up of a thawed group, as a fraction of the run."""

    @functools.cached_property
    def steps(self) -> list[tuple[int, int | None]]:
        """Of each phase: steps behind when it begins and when it ends (None = not known)."""
        return self.pace.steps(self.plan)

    def factors(self, phase: int, step: int, fraction: float | None = None) -> list[float]:
        """The factor of each group for the next step.

        Args:
            phase: Index of the phase that the step belongs to.
            step: Steps of the run behind.
            fraction: Fraction of the run behind, for a run that the clock limits; otherwise the
                steps say.

        Returns:
            One factor a group, in [0, 1], lowest group first; 0 where it is frozen.

        Raises:
            ValueError: The clock limits the run, and no fraction is given.
        """
        progress = self._fraction(step) if fraction is None else fraction
        factor = self._of_schedule(phase, step, progress)
        return [
            0.0 if thaw is None else factor * self._of_thaw(thaw, progress)
            for thaw in self._thaws(phase)
        ]

    def phase_factors(self, phase: int) -> list[tuple[float, float, float] | None]:
        """Each group's factor at the first step of a phase, at its highest and at the last step.

        Returns:
            A triple a group; None where it is frozen, or where the clock decides and there are
            several phases.
        """
        points = self._points(phase)
        base = [self._of_schedule(phase, step, progress) for step, progress in points]
        thaws = self._thaws(phase)
        triples: dict[int | None, tuple[float, float, float] | None] = {None: None}
        for thaw in {thaw for thaw in thaws if thaw is not None}:
            curve = base
            if self.thaw_warmup_ratio:
                warmup = [self._of_thaw(thaw, progress) for _, progress in points]
                curve = [factor * rise for factor, rise in zip(base, warmup, strict=True)]
            triples[thaw] = (curve[0], max(curve), curve[-1]) if curve else None
        return [triples[thaw] for thaw in thaws]

    def _thaws(self, phase: int) -> list[int | None]:
        return [self.plan.thawed_in(group, phase) for group in range(self.plan.num_groups)]

    def _of_schedule(self, phase: int, step: int, progress: float) -> float:
        begin, end = self.steps[phase]
        if self.schedule_scope == "run" or len(self.steps) == 1 or end is None:
            return rate_factor(progress, self.schedule)
        return rate_factor(phase_progress(step, begin, end), self.schedule)

    def _of_thaw(self, thaw: int, progress: float) -> float:
        if self.pace.total_steps is None or self.thaw_warmup_ratio == 0:
            return 1.0
        return thaw_warmup_factor(
            progress, self._fraction(self.steps[thaw][0]), self.thaw_warmup_ratio
        )

    def _fraction(self, step: int) -> float:
        if self.pace.total_steps is None:
            raise ValueError("under a limit in minutes the fraction of the run must be given")
        return step / self.pace.total_steps

    def _points(self, phase: int) -> list[tuple[int, float]]:
        """The steps of a phase with the fraction of the run behind; none where not known."""
        begin, end = self.steps[phase]
        if end is not None and self.pace.total_steps is not None:
            return [(step, self._fraction(step)) for step in range(begin, end)]
        if len(self.steps) > 1:  # which part of the run a phase will be, only the clock knows
            return []
        # The clock decides: a hundred points of the one phase find its highest rate near enough.
        return [(0, percent / 100) for percent in range(101)]
