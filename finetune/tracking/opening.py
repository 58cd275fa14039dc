"""Open the loggers of a run, and close them."""

from __future__ import annotations

import configparser
import logging
import netrc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytorch_lightning.loggers import Logger, TensorBoardLogger

from finetune.checkpoints.seed_folders import METRICS
from finetune.errors import ConfigError
from finetune.machine.packages import is_installed
from finetune.tracking.config import TrackingConfig
from finetune.tracking.jsonl import JsonlLogger, plain
from finetune.tracking.shown import Shown
from finetune.tracking.wandb_run import WandbRunLogger

log = logging.getLogger(__name__)

LONGEST_TAG = 64
"""Characters of a tag; Weights & Biases starts no run with a longer one."""
_PUBLIC_HOSTS = ["api.wandb.ai", "api.forge.coreweave.com"]  # its old and its new host


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
    """Open the loggers of a run.

    Args:
        config: Which loggers to use, and the names of the run there.
        run_dir: The run folder; created if it does not exist.
        settings: All settings of the run, nested.
        name: Name of the run if the config has none; None = the name of its folder.
        group: Group of the run if the config has none, such as "glue/cola · tiny".
        kind: Job type in Weights & Biases, by which runs can be filtered.
        tags: Tags of every run of this kind.
        resume: Whether this continues the run in the folder.
        steps: Optimizer steps already made by a resumed run.

    Returns:
        Lightning loggers, the local one first; pass them to `finish` at the end.

    Raises:
        ConfigError: A logger needs a package that is not installed.
    """
    tensorboard = _tensorboard(config, run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    as_csv = "csv" in config.logger
    opened = [JsonlLogger(run_dir, resume=resume, steps=steps, as_csv=as_csv), *tensorboard]
    mode = wandb_mode() if config.wandb else "disabled"
    if mode == "disabled":
        return opened
    if not is_installed("wandb"):
        log.info("wandb is not installed; metrics go to %s only", run_dir / METRICS)
        return opened
    if os.path.expanduser("~") == "~":  # there is no home folder, where wandb needs its settings
        file = run_dir / METRICS
        log.warning("wandb needs a home folder: set HOME; metrics go to %s only", file)
        return opened
    names = {"name": config.run_name or name or run_dir.name, "group": config.group or group}
    run = WandbRunLogger(
        run_dir,
        mode=mode,
        resume=resume,
        project=config.project,
        job_type=kind,
        tags=[*dict.fromkeys([*(tag[:LONGEST_TAG] for tag in tags), *config.tags])],
        config=plain(settings),
        **names,
    )
    return [*opened, run]


def check_packages(config: TrackingConfig) -> None:
    """Refuse a logger whose package is not installed, before a run writes anything.

    Raises:
        ConfigError: TensorBoard is requested and not installed.
    """
    packages = ("tensorboard", "tensorboardX")
    if "tensorboard" in config.logger and not any(map(is_installed, packages)):
        raise ConfigError(
            "logger: tensorboard needs a package that is not installed; run pip install "
            "'finetune[tensorboard]', or leave it out"
        )


def _tensorboard(config: TrackingConfig, run_dir: Path) -> list[Logger]:
    check_packages(config)
    if "tensorboard" not in config.logger:
        return []
    # A resumed run writes a second file of events beside the first; TensorBoard reads both as one.
    return [TensorBoardLogger(run_dir, name="tensorboard", version="", default_hp_metric=False)]


def finish(
    loggers: Sequence[Logger],
    summary: Mapping[str, Any] | None = None,
    *,
    shown: Callable[[], Shown] | None = None,
    failed: bool = False,
) -> None:
    """Close the loggers of a run.

    Args:
        loggers: The result of the function `loggers`.
        summary: The run's results, which become its summary in Weights & Biases.
        shown: Returns the tables and files of the run; called only if a logger takes them.
        failed: Whether the run ended early.
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


def wandb_mode() -> str:
    """The requested mode; offline where an online mode would prompt for a login."""
    mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
    if mode not in ("offline", "dryrun", "disabled") and not logged_in():
        log.warning("Weights & Biases stays offline: WANDB_MODE is %s, but there is no login", mode)
        return "offline"
    return "offline" if mode == "dryrun" else mode


def logged_in() -> bool:
    """Whether Weights & Biases finds a key for its server without a prompt."""
    stored = _stored_settings()
    if os.environ.get("WANDB_API_KEY") or stored.get("api_key"):
        return True
    server = os.environ.get("WANDB_BASE_URL") or stored.get("base_url")
    hosts = [urlsplit(server).netloc] if server else _PUBLIC_HOSTS
    try:
        keys = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(keys.authenticators(host) for host in hosts)


def _stored_settings() -> Mapping[str, str]:
    """The settings that `wandb login` stores besides .netrc."""
    folder = Path(os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")))
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(folder / "settings")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    return parser["default"] if parser.has_section("default") else {}
