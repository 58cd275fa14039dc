"""The plan of a run: which layer groups are trainable when, in epochs, batches and steps.

Groups are numbered from the input up: 0 = embeddings, 1 … L = blocks (the last one with the final
norm), L + 1 = head. A plan is known before training and never changes, so everything that depends
on it (what has gradients, dropout, the cache, the rates) is computed again from the number of
batches behind; nothing here is state. Policies are turned into plans in `policies.py`.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from finetune.console.output import counted
from finetune.errors import ConfigError

FINEST = 10**6  # denominator at most: finer than a batch of an epoch, coarser than float noise


def group_names(num_blocks: int) -> list[str]:
    """Name the groups of an encoder of L blocks and its head, lowest first."""
    return ["embeddings", *(f"block_{block}" for block in range(1, num_blocks + 1)), "head"]


def exact(epochs: float) -> Fraction:
    """Read a number of epochs as the fraction that was meant.

    `0.57 * 100` is 56.99… in floating point, and the batch before the one that was meant; as 57/100
    it is exact. A third is a third.
    """
    return Fraction(epochs).limit_denominator(FINEST)


@dataclass(frozen=True)
class Phase:
    """A stretch of a run in which the same groups are trainable."""

    groups: range
    """Numbers of the trainable groups, without a gap, lowest first."""
    start: float
    """Epochs behind when it begins."""
    end: float | None
    """Epochs behind when it ends; None = the end of the run."""

    @property
    def boundary(self) -> int:
        """Number of the lowest trainable group: what lies below it needs no backward pass."""
        return self.groups.start


@dataclass(frozen=True)
class Plan:
    """Phases that follow one another without a gap.

    Raises:
        ConfigError: There is no phase; a phase has no group or one that is not there; the phases
            leave a gap or overlap; or one that is not the last has no end.
    """

    phases: tuple[Phase, ...]
    """In the order of the run."""
    num_groups: int
    """L + 2."""

    def __post_init__(self) -> None:
        """Refuse what is no plan."""
        if not self.phases:
            raise ConfigError("phases: expected at least one phase, got none")
        for number, phase in enumerate(self.phases, start=1):
            _check_groups(number, phase, self.num_groups)
        for number, (phase, start) in enumerate(zip(self.phases, self._starts(), strict=True), 1):
            _check_times(number, phase, start)

    def _starts(self) -> list[float | None]:
        """Where each phase should begin: at the end of the one before."""
        return [0.0, *(phase.end for phase in self.phases[:-1])]

    @property
    def names(self) -> list[str]:
        """Names of all groups, lowest first."""
        return group_names(self.num_groups - 2)

    def boundaries(self) -> list[int]:
        """The distinct boundaries that have a frozen prefix below them (1 … L + 1), ascending."""
        return sorted({phase.boundary for phase in self.phases} - {0})

    def thawed_in(self, group: int, phase: int) -> int | None:
        """Index of the phase in which a group was last thawed, as seen from a phase.

        Args:
            group: Its number.
            phase: Index of the phase from which to look back.

        Returns:
            The first of the unbroken row of phases, up to this one, that train the group; None if
            it is frozen in this phase.
        """
        first = None
        for index in range(phase, -1, -1):
            if group not in self.phases[index].groups:
                break  # an earlier thaw that was undone (chain-thaw) does not count
            first = index
        return first


def _check_groups(number: int, phase: Phase, num_groups: int) -> None:
    groups = phase.groups
    if len(groups) == 0 or groups.step != 1:
        raise ConfigError(
            f"phase {number}: expected a row of groups without a gap, got {list(groups)}"
        )
    if groups.start < 0 or groups.stop > num_groups:
        raise ConfigError(
            f"phase {number}: expected groups from 0 (embeddings) to {num_groups - 1} (head), "
            f"got {groups.start} to {groups.stop - 1}"
        )


def _check_times(number: int, phase: Phase, start: float | None) -> None:
    if start is None:
        raise ConfigError(
            f"phase {number - 1}: only the last phase may run to the end of the run; say how many "
            "epochs it has"
        )
    if exact(phase.start) != exact(start):
        word = "a gap" if phase.start > start else "an overlap"
        raise ConfigError(
            f"phase {number}: expected it to begin after {start:g} epochs, where the one before "
            f"ends, got {phase.start:g}, which is {word}"
        )
    if phase.end is not None and phase.end <= phase.start:
        raise ConfigError(
            f"phase {number}: expected more than 0 epochs, got {phase.end - phase.start:g}"
        )


@functools.lru_cache(maxsize=64)  # asked in every batch
def first_batches(plan: Plan, batches_per_epoch: int) -> tuple[int, ...]:
    """The batch at which each phase begins, counted from the start of the run.

    Args:
        plan: The phases, in epochs.
        batches_per_epoch: Batches of an epoch, each one step.

    Returns:
        floor(start * batches_per_epoch).
    """
    return tuple(int(exact(phase.start) * batches_per_epoch) for phase in plan.phases)


def phase_of_batch(plan: Plan, batches_done: int, batches_per_epoch: int) -> int:
    """Index of the phase that the next batch belongs to: the one rule that everything follows.

    Args:
        plan: The phases, in epochs.
        batches_done: Batches behind, since the start of the run.
        batches_per_epoch: Batches of an epoch, each one step.
    """
    return bisect_right(first_batches(plan, batches_per_epoch), batches_done) - 1


@dataclass(frozen=True)
class Pace:
    """How the epochs of a run are cut into batches, each one optimizer step."""

    batches_per_epoch: int
    """Batches of an epoch, over all processes."""
    total_steps: int | None = None
    """Steps of the whole run; None where the clock decides."""

    @property
    def epochs(self) -> float | None:
        """Epochs of the whole run, the last one in part; None where the clock decides."""
        return None if self.total_steps is None else self.total_steps / self.batches_per_epoch

    def phase_of_batch(self, plan: Plan, batches_done: int) -> int:
        """Index of the phase that the next batch belongs to."""
        return phase_of_batch(plan, batches_done, self.batches_per_epoch)

    def begins_phase(self, plan: Plan, batches_done: int) -> bool:
        """Whether the next batch is the first of a phase other than the first."""
        firsts = first_batches(plan, self.batches_per_epoch)
        return batches_done > 0 and batches_done in firsts  # at 0 there is no state to reset

    def steps(self, plan: Plan) -> list[tuple[int, int | None]]:
        """Of each phase: steps behind when it begins and when it ends (None = not known)."""
        begins = first_batches(plan, self.batches_per_epoch)
        return list(zip(begins, [*begins[1:], self.total_steps], strict=True))

    def check(self, plan: Plan) -> None:
        """See that each phase has a step.

        Raises:
            ConfigError: A phase is shorter than a step, or begins when the run is over.
        """
        for number, (begin, end) in enumerate(self.steps(plan), start=1):
            if end is None or end > begin:
                continue
            if number == len(plan.phases):
                raise ConfigError(
                    f"phase {number} of {number} would begin after step {begin}, and the run has "
                    f"{counted(end, 'step')}; give it more than {begin}, or shorten "
                    "the phases"
                )
            raise ConfigError(
                f"phase {number} is shorter than one step: an epoch has {self.batches_per_epoch}; "
                f"give it {1 / self.batches_per_epoch:.2g} epochs or more"
            )
