"""A plan applied to a module while it trains: what has gradients, what is in eval mode, which rate.

Everything follows from the number of batches behind, so a resumed run needs no state of its
own here. Nothing is frozen before the first batch: under data parallel training what is frozen when
the module is wrapped would never be averaged, not even after its thaw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from finetune.training.unfreezing.plan import Pace, Phase, Plan
from finetune.training.unfreezing.policies import (
    Layers,
    UnfreezeConfig,
    reset_optimizer_state,
    set_modes,
    set_trainable,
)
from finetune.training.unfreezing.rates import RatePlan


@dataclass
class Phases:
    """The phases of a run, and the one in which it stands."""

    rates: RatePlan
    """The plan with its pace and the shape of the rate."""
    config: UnfreezeConfig
    """Moments and dropout of frozen parts."""
    current: int | None = None
    """Index of the phase that is applied; None before the first batch."""

    @property
    def pace(self) -> Pace:
        """How epochs are cut into batches and steps."""
        return self.rates.pace

    @property
    def groups(self) -> range:
        """Numbers of the groups that are trainable now; all before the first batch."""
        plan = self.rates.plan
        if self.current is None:
            return range(plan.num_groups)
        return plan.phases[self.current].groups

    def as_last(self) -> Phases:
        """The last phase alone, without an end: what a run that is trained on stays in."""
        rates, pace = self.rates, self.pace
        plan = Plan((Phase(rates.plan.phases[-1].groups, 0.0, None),), rates.plan.num_groups)
        endless = Pace(pace.batches_per_epoch)  # the fraction of the run is given
        return Phases(RatePlan(plan, endless, rates.schedule), self.config)

    @property
    def frozen_depth(self) -> int | None:
        """Blocks of the prefix that is the same for each pass over a text, 0 = embeddings alone.

        None where nothing below is frozen, or where dropout makes each pass another.
        """
        if self.groups.start == 0 or self.config.frozen_dropout:
            return None
        return self.groups.start - 1

    @property
    def prefix_is_original(self) -> bool:
        """Whether nothing below the boundary has been trained yet: what is cached is right."""
        if self.current is None:
            return True
        before = self.rates.plan.phases[: self.current]
        return all(phase.boundary >= self.groups.start for phase in before)

    def before_batch(
        self, layers: Layers, optimizer: torch.optim.Optimizer, batches_done: int
    ) -> None:
        """Apply the phase of the next batch.

        Args:
            layers: Layer groups by name, lowest first.
            optimizer: Has all of them.
            batches_done: Batches behind, since the start of the run.
        """
        plan = self.rates.plan
        phase = self.pace.phase_of_batch(plan, batches_done)
        if phase != self.current:
            self.current = phase
            # Here, after DDP has wrapped the module: what is frozen then, DDP never averages again.
            set_trainable(layers, self.groups)
            self.set_modes(layers)
        if self.config.optimizer_state == "reset" and self.pace.begins_phase(plan, batches_done):
            reset_optimizer_state(optimizer)

    def set_modes(self, layers: Layers) -> None:
        """Put frozen groups in eval mode, as after whatever puts all in training mode."""
        set_modes(layers, self.groups, frozen_dropout=self.config.frozen_dropout)

    def factors(self, layers: Layers, step: int, fraction: float) -> dict[str, float]:
        """The factor on each group's peak rate for the next step, by name."""
        if self.pace.total_steps is not None:  # by steps, so exactly as the plan's table shows
            values = self.rates.factors(self.current or 0, step)
        else:
            values = self.rates.factors(self.current or 0, step, fraction)
        return dict(zip(layers, values, strict=True))
