"""Tracking: where a run's numbers go.

`metrics.jsonl` in the run folder always gets them, a line a step. Weights & Biases gets the same
ones with the settings, the results, tables and artifacts, inside the run folder and offline unless
`WANDB_MODE` or a login says otherwise; TensorBoard and a CSV file get them where that is asked for.
Nothing here asks the user, and only a run that is online waits for a network, for seconds at most.
What the numbers mean is the business of those who log them.
"""

from finetune.tracking.config import TrackingConfig
from finetune.tracking.jsonl import JsonlLogger
from finetune.tracking.login import logged_in
from finetune.tracking.opening import check_packages, finish, loggers
from finetune.tracking.shown import Artifact, Shown, Table, plain_name
from finetune.tracking.wandb_run import WandbRunLogger

__all__ = [
    "Artifact",
    "JsonlLogger",
    "Shown",
    "Table",
    "TrackingConfig",
    "WandbRunLogger",
    "check_packages",
    "finish",
    "logged_in",
    "loggers",
    "plain_name",
]
