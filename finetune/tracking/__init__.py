"""Tracking: log the metrics of a run.

They are always written to `metrics.jsonl` in the run folder, one line for each step. Weights &
Biases gets the same ones with the settings, the results, tables and artifacts, inside the run
folder and offline unless `WANDB_MODE` or a login is set; TensorBoard and a CSV file get them on
request. Nothing here prompts the user, and only an online run waits for a network, for seconds at
most. The meaning of a metric is not defined here, but in `finetune.metrics.semantics`.
"""

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.tracking.config import TrackingConfig
    from finetune.tracking.jsonl import JsonlLogger
    from finetune.tracking.opening import check_packages, finish, logged_in, loggers
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

__getattr__ = lazy_names(__name__, __all__, ("config", "shown", "opening", "jsonl", "wandb_run"))
