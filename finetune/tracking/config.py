"""Settings of the loggers of a run."""

from __future__ import annotations

import dataclasses

from finetune.errors import ConfigError
from finetune.ranges import check_values, within

FURTHER = ("tensorboard", "csv")
"""Loggers that `logger` may name."""


@dataclasses.dataclass
class TrackingConfig:
    """Loggers of a run, and its name there.

    >>> from finetune import TrackingConfig
    >>> tracking = TrackingConfig(wandb=False, logger=["tensorboard"])
    >>> tracking.project
    'finetune'
    """

    wandb: bool = True
    """Log to Weights & Biases too (offline, in the run folder, unless you are logged in)."""
    project: str = "finetune"
    """Project in Weights & Biases."""
    tags: list[str] = dataclasses.field(default_factory=list)
    """Tags of the run, in addition to those that are set automatically."""
    run_name: str | None = None
    """Name of the run; none = the name of its folder."""
    group: str | None = None
    """Group of the run; none = task and encoder, and for several seeds the folder."""
    logger: list[str] = dataclasses.field(default_factory=list)
    """More loggers: tensorboard (writes RUN/tensorboard), csv (writes RUN/metrics.csv)."""
    table_examples: int = within(0, 1_000_000, default=200)
    """Examples in the table of predictions, hardest first; 0 = no table."""
    checkpoint_artifact: bool = False
    """Log the best checkpoint to Weights & Biases as an artifact."""

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            ConfigError: A logger is unknown, or the number of examples is negative.
        """
        check_values(self)
        self.tags, self.logger = _split_at_commas(self.tags), _split_at_commas(self.logger)
        for name in self.logger:
            if name not in FURTHER:
                raise ConfigError(
                    f"logger: expected {' or '.join(FURTHER)}, got {name!r} (Weights & Biases is "
                    "on unless --no-wandb is given)"
                )


def _split_at_commas(names: list[str]) -> list[str]:
    """`a,b` is two names, as `a b` is on the command line."""
    parts = [part.strip() for name in names for part in name.split(",")]
    return [part for part in parts if part]
