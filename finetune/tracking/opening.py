"""Opening the places that a run's numbers go to, and closing them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger

from finetune.checkpoints.seed_folders import METRICS
from finetune.errors import ConfigError
from finetune.machine.packages import is_installed
from finetune.tracking.config import TrackingConfig
from finetune.tracking.jsonl import JsonlLogger, plain
from finetune.tracking.login import wandb_mode
from finetune.tracking.shown import Shown
from finetune.tracking.wandb_run import WandbRunLogger

log = logging.getLogger(__name__)


def loggers(
    config: TrackingConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    *,
    name: str | None = None,
    group: str | None = None,
    kind: str | None = None,
    tags: Sequence[str] = (),
    resume: bool = False,
    steps: int = 0,
) -> list[Logger]:
    """Open the places that a run's numbers go to.

    Args:
        config: Whether to use Weights & Biases and what else, and names.
        run_dir: The run folder; it is made if it is not there.
        settings: All settings of the run, nested.
        name: What the run is called where the config names nothing; its folder's name if None.
        group: What the run is grouped under where the config names nothing, as "glue/cola · tiny".
        kind: What it does: a job type of Weights & Biases, by which runs can be distinguished.
        tags: Words that every run of this kind gets.
        resume: Whether this continues the run in the folder, or starts one.
        steps: Optimizer steps that are behind in a resumed run.

    Returns:
        Lightning loggers, the local one first; hand them to `finish` in the end.

    Raises:
        ConfigError: A logger needs a package that is not installed.
    """
    further = _further(config, run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    as_csv = "csv" in config.logger
    found = [JsonlLogger(run_dir, resume=resume, steps=steps, as_csv=as_csv), *further]
    mode = wandb_mode() if config.wandb else "disabled"
    if mode == "disabled":
        return found
    if not is_installed("wandb"):
        log.info("wandb is not installed; metrics go to %s only", run_dir / METRICS)
        return found
    if os.path.expanduser("~") == "~":  # where its settings are, which it does not do without
        file = run_dir / METRICS
        log.warning("wandb needs a home folder: set HOME; metrics go to %s only", file)
        return found
    names = {"name": config.run_name or name or run_dir.name, "group": config.group or group}
    run = WandbRunLogger(
        run_dir,
        mode=mode,
        resume=resume,
        project=config.project,
        job_type=kind,
        tags=[*dict.fromkeys([*tags, *config.tags])],
        config=plain(settings),
        **names,
    )
    return [*found, run]


def check_packages(config: TrackingConfig) -> None:
    """Refuse a logger whose package is not installed, before a run writes anything.

    Raises:
        ConfigError: TensorBoard is wanted and not installed.
    """
    packages = ("tensorboard", "tensorboardX")
    if "tensorboard" in config.logger and not any(map(is_installed, packages)):
        raise ConfigError(
            "logger: tensorboard needs a package that is not installed: "
            "pip install 'finetune[tensorboard]', or leave it out"
        )


def _further(config: TrackingConfig, run_dir: Path) -> list[Logger]:
    check_packages(config)
    if "tensorboard" not in config.logger:
        return []
    # Of a resumed run the new file of events stands beside the old one, as TensorBoard reads.
    return [TensorBoardLogger(run_dir, name="tensorboard", version="", default_hp_metric=False)]


def finish(
    loggers: Sequence[Logger],
    summary: Mapping[str, Any] | None = None,
    *,
    shown: Callable[[], Shown] | None = None,
    failed: bool = False,
) -> None:
    """Close what `loggers` opened.

    Args:
        loggers: What `loggers` returned.
        summary: The run's results, which become its summary in Weights & Biases.
        shown: Gives the tables and files of the run; called only where somebody takes them.
        failed: Whether the run ended before its time.
    """
    for logger in loggers:
        if isinstance(logger, JsonlLogger):
            logger.close()
        elif isinstance(logger, WandbRunLogger):
            if shown is not None:
                logger.show(shown)
            logger.close(summary or {}, failed=failed)
        else:
            logger.finalize("failed" if failed else "success")
