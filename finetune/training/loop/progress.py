"""How long a run is, and how far it has come.

A run is limited by steps, by epochs or by minutes. Each gives a fraction of the run that lies
behind, and the schedules know nothing else. Under a limit in minutes the fraction follows the
clock, so the rate ends at zero whatever the machine's speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from finetune.errors import ConfigError
from finetune.ranges import MOST_STEPS, check_values, within

LOG_EVERY = (50, 20, 10, 5, 2, 1)
"""Steps between log lines, where nothing is said: the largest that gives enough lines."""
LEAST_LINES = 20
DEFAULT_EPOCHS = 3
"""Of a fine-tuning whose length is not said (Devlin et al., 2019, section 4.1)."""


@dataclass
class LengthConfig:
    """How long to train: give one of the three.

    >>> from finetune import FitRun, LengthConfig
    >>> run = FitRun("runs/pretrained", "glue/cola", length=LengthConfig(max_epochs=3))
    >>> run.length.max_epochs
    3
    """

    max_steps: int | None = within(
        1, MOST_STEPS, default=None, instead_of=("max_epochs", "max_minutes")
    )
    """Number of optimizer steps."""
    max_epochs: int | None = within(
        1, MOST_STEPS, default=None, instead_of=("max_steps", "max_minutes")
    )
    """Number of passes over the training data."""
    max_minutes: float | None = within(
        0, 1e9, above=True, default=None, instead_of=("max_steps", "max_epochs")
    )
    """Minutes of wall-clock time, validation included; the schedule follows the clock."""

    def __post_init__(self) -> None:
        """Check that at most one limit is given and that it is positive.

        Raises:
            ConfigError: Two limits, or one that is not positive.
        """
        check_values(self)
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ConfigError(
                f"expected one of max_steps, max_epochs, max_minutes, got "
                f"{' and '.join(given)}; keep one"
            )

    def or_default(self) -> LengthConfig:
        """This limit, or `DEFAULT_EPOCHS` where none was given."""
        return self if any(vars(self).values()) else LengthConfig(max_epochs=DEFAULT_EPOCHS)


class Clock:
    """Seconds of training, counted on across interruptions."""

    def __init__(self) -> None:
        """Start at zero."""
        self._before = 0.0
        self._started = time.monotonic()  # the time of day may be set while a run trains

    @property
    def seconds(self) -> float:
        """Seconds of the run, without the time between an interruption and its resumption."""
        return self._before + time.monotonic() - self._started

    def resume(self, seconds: float) -> None:
        """Continue from this reading."""
        self._before, self._started = seconds, time.monotonic()


@dataclass(frozen=True)
class Extension:
    """Steps after the end of a run, over which its schedule starts again."""

    epochs: int
    """Epochs beyond the run's own limit, those of earlier extensions included."""
    start: int
    """Steps behind when it begins."""
    end: int
    """Steps behind when it ends."""


@dataclass
class RunLength:
    """A limit together with what is needed to read off how far the run is."""

    limit: LengthConfig
    steps_per_epoch: int
    clock: Clock
    extension: Extension | None = None
    """What a finished run is trained beyond its limit."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run; None where the clock decides."""
        if self.extension is not None:
            return self.extension.end
        if self.limit.max_epochs is not None:
            return self.limit.max_epochs * self.steps_per_epoch
        return self.limit.max_steps

    def fraction(self, step: int) -> float:
        """Fraction of the run behind after so many steps; above 1 once the time is over."""
        if self.extension is not None:
            return (step - self.extension.start) / (self.extension.end - self.extension.start)
        if self.total_steps is not None:
            return step / self.total_steps
        assert self.limit.max_minutes is not None  # LengthConfig: exactly one limit
        return self.clock.seconds / (60 * self.limit.max_minutes)


def log_interval(length: RunLength, step: int) -> int:
    """Steps between log lines at a step, where the settings do not say: 20 lines a run at least.

    Where the clock decides how many steps there will be, lines become rarer with the steps: all
    processes must agree, and their clocks do not.
    """
    steps = length.total_steps or step
    return next((every for every in LOG_EVERY if every * LEAST_LINES <= steps), 1)
