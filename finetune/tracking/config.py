"""The settings of tracking."""

from __future__ import annotations

import dataclasses

from finetune.errors import ConfigError
from finetune.ranges import check_values, within

FURTHER = ("tensorboard", "csv")
"""What `logger` may name."""


@dataclasses.dataclass
class TrackingConfig:
    """Where a run's numbers go, and under what name."""

    wandb: bool = True
    """Whether Weights & Biases gets the run too (offline, in the run folder, unless logged in)."""
    project: str = "finetune"
    """Weights & Biases project."""
    tags: list[str] = dataclasses.field(default_factory=list)
    """Words to find the run by, besides those that every run of its kind gets."""
    run_name: str | None = None
    """Name of the run; its folder's name if none."""
    group: str | None = None
    """Runs that belong together; task and encoder if none, and the folder where it holds seeds."""
    logger: list[str] = dataclasses.field(default_factory=list)
    """Where the numbers go besides: tensorboard (RUN/tensorboard), csv (RUN/metrics.csv)."""
    table_examples: int = within(0, 1_000_000, default=200)
    """Examples that a table of answers shows, the hardest first; 0 = no such tables."""
    checkpoint_artifact: bool = False
    """Hand the best checkpoint to Weights & Biases too (sync uploads it from the run folder)."""

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            ConfigError: A logger is unknown, or the number of examples is negative.
        """
        check_values(self)
        for name in self.logger:
            if name not in FURTHER:
                raise ConfigError(
                    f"logger: expected {' or '.join(FURTHER)}, found {name!r} (Weights & Biases is "
                    "on unless --no-wandb is given)"
                )
