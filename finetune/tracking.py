"""Tracking: where a run's numbers go.

`metrics.jsonl` in the run folder always gets them, a line a step. Weights & Biases gets the same
ones with the settings and the results, inside the run folder and offline unless `WANDB_MODE` or a
login says otherwise. Nothing here asks the user, and only a run that is online waits for a network,
for seconds at most. What the numbers mean is the business of those who log them.
"""

from __future__ import annotations

import configparser
import dataclasses
import importlib.util
import json
import logging
import math
import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

log = logging.getLogger(__name__)

_INIT_SECONDS, _FINISH_SECONDS = 10.0, 30.0  # how long an online run may wait for the network
_PUBLIC_HOSTS = ["api.wandb.ai", "api.forge.coreweave.com"]  # its old and its new address


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
    """Runs that belong together; task and encoder if none."""


def loggers(
    config: TrackingConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    *,
    group: str | None = None,
    tags: Sequence[str] = (),
    resume: bool = False,
) -> list[Logger]:
    """Open the places that a run's numbers go to.

    Args:
        config: Whether to use Weights & Biases, and names.
        run_dir: The run folder; it is made if it is not there.
        settings: All settings of the run, nested.
        group: What the run is grouped under where the config names nothing, as "glue/cola · tiny".
        tags: Words that every run of this kind gets.
        resume: Whether this goes on with the run in the folder, or starts one.

    Returns:
        Lightning loggers, the local one first; hand them to `finish` in the end.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    found: list[Logger] = [JsonlLogger(run_dir, resume=resume)]
    mode = _wandb_mode() if config.wandb else "disabled"
    if mode == "disabled":
        return found
    if importlib.util.find_spec("wandb") is None:
        log.info("wandb is not installed; metrics go to %s only", run_dir / "metrics.jsonl")
        return found
    found.append(
        WandbRunLogger(
            run_dir,
            mode=mode,
            resume=resume,
            project=config.project,
            name=config.run_name or run_dir.name,
            group=config.group or group,
            tags=[*dict.fromkeys([*tags, *config.tags])],
            config=_plain(settings),
        )
    )
    return found


def finish(
    loggers: Sequence[Logger], summary: Mapping[str, Any] | None = None, *, failed: bool = False
) -> None:
    """Close what `loggers` opened.

    Args:
        loggers: What `loggers` returned.
        summary: The run's results, which become its summary in Weights & Biases.
        failed: Whether the run ended before its time.
    """
    for logger in loggers:
        if isinstance(logger, JsonlLogger | WandbRunLogger):
            logger.close(summary or {}, failed=failed)


class JsonlLogger(Logger):
    """Writes RUN/metrics.jsonl: one JSON object a step, with `step`, `epoch` and named values.

    A line is in the file as soon as it is logged; what is logged at the same step later is added to
    it. Floats are written exactly; what is no finite number is null. In a run that goes on, the
    first step to be logged drops the lines of later steps, which the run is about to write again.
    """

    def __init__(self, run_dir: Path, *, resume: bool = False) -> None:
        """Open the file, with what is in it if the run goes on.

        Args:
            run_dir: The run folder.
            resume: Whether lines that are there are kept.
        """
        super().__init__()
        self.path = run_dir / "metrics.jsonl"
        self._line: dict[str, Any] = {}
        self._start = 0  # of the last line, in bytes
        self._resumes = resume
        self._make_file()

    @property
    def name(self) -> str | None:
        """No name: checkpoints and other files need no folder for it."""
        return None

    @property
    def version(self) -> str | None:
        """No version, as no name."""
        return None

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: RUN/config.yaml has the settings."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values under their names.

        Args:
            metrics: Name → number; `epoch` is one of them.
            step: Optimizer steps made so far; None for the step of the last line.
        """
        if step is None:
            step = int(self._line.get("step", 0))
        if self._resumes:
            self._go_on_at(step)
        if self._line.get("step") != step:
            self._start, self._line = self.path.stat().st_size, {"step": step}
        self._line |= {name: _number(value) for name, value in metrics.items()}
        line = json.dumps(_step_first(self._line), allow_nan=False) + "\n"
        with self.path.open("r+b") as file:
            file.seek(self._start)
            file.write(line.encode())
            file.truncate()

    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Do nothing: every line is in the file, and the results have a file of their own."""

    @rank_zero_only
    def _make_file(self) -> None:
        if not (self._resumes and self.path.exists()):
            self.path.write_bytes(b"")

    def _go_on_at(self, step: int) -> None:
        """Keep the lines up to a step; that step's own line is added to."""
        kept = [line for line in _whole_lines(self.path) if json.loads(line)["step"] <= step]
        if kept and (last := json.loads(kept[-1]))["step"] == step:
            self._line, self._start = last, sum(map(len, kept[:-1]))
        self.path.write_bytes(b"".join(kept))
        self._resumes = False


class WandbRunLogger(WandbLogger):
    """Lightning's Weights & Biases logger, for a run of its own that lives in the run folder.

    Every value is a function of `step`. The run's id is kept beside it, so that a run that goes on
    is the same run in Weights & Biases.
    """

    def __init__(
        self, run_dir: Path, *, mode: str, resume: bool, config: Mapping[str, Any], **names: Any
    ) -> None:
        """Remember what the run is called; it starts when the first value is logged.

        Args:
            run_dir: The run folder.
            mode: `offline`, `online` or another of Weights & Biases' modes.
            resume: Whether the run in the folder goes on.
            config: All settings, nested, as plain values.
            names: Further arguments of `wandb.init`: project, name, group, tags.
        """
        self._id_file = run_dir / "wandb" / "run-id"
        run_id = self._id_file.read_text().strip() if resume and self._id_file.exists() else None
        super().__init__(save_dir=run_dir, id=run_id, **names)
        self._wandb_init |= {"mode": mode, "config": dict(config), "reinit": "create_new"}
        del self._wandb_init["anonymous"]  # Lightning 2.6 passes it, W&B 0.31 warns about it
        # Offline there is no server to ask for the run; the id alone joins the parts when synced.
        self._wandb_init["resume"] = "allow" if resume and mode != "offline" else None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, started at the first use."""
        if self._experiment is None:
            self._experiment = _start(self._wandb_init)
            self._id_file.write_text(f"{self._experiment.id}\n")
            self._experiment.define_metric("step", hidden=True)
            self._experiment.define_metric("*", step_metric="step")
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values under their names, at a step."""
        self.experiment.log({**metrics} if step is None else {**metrics, "step": step})

    @rank_zero_only
    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Give the run its summary, and end it."""
        self.experiment.summary.update(_plain(summary))
        self.experiment.finish(exit_code=int(failed))


def _start(arguments: Mapping[str, Any]) -> Any:
    """Start a run quietly; one that cannot go online stays offline."""
    import wandb

    quiet = wandb.Settings(
        silent=True,
        console="off",
        symlink=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        init_timeout=_INIT_SECONDS,
        finish_timeout=_FINISH_SECONDS,
    )
    try:
        return wandb.init(**arguments, settings=quiet)
    except (wandb.Error, TimeoutError) as error:
        if arguments["mode"] == "offline":
            raise
        log.warning("Weights & Biases stays offline: %s", " ".join(str(error).split()))
    # With an id of its own: that of the failed try stays in use as long as the process lives.
    offline = {**arguments, "mode": "offline", "resume": None, "id": None}
    return wandb.init(**offline, settings=quiet)


def _wandb_mode() -> str:
    """Return the mode asked for, but one that would ask for a login only where there is one."""
    mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in() else "offline")
    if mode not in ("offline", "dryrun", "disabled") and not _logged_in():
        log.warning("Weights & Biases stays offline: WANDB_MODE is %s, but there is no login", mode)
        return "offline"
    return "offline" if mode == "dryrun" else mode


def _logged_in() -> bool:
    """Whether Weights & Biases finds a key for its server without asking."""
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
    """Read what `wandb login` keeps besides .netrc."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")).expanduser()
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(folder / "settings")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    return parser["default"] if parser.has_section("default") else {}


def _whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file but for one that was cut off by a crash."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _step_first(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "epoch") if name in line} | line


def _number(value: Any) -> float | int | None:
    """Turn a logged value (a tensor of one number too) into what JSON has."""
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """Turn nested settings or results into what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
