"""A run in Weights & Biases. Only this module imports that library, and only inside functions."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import _DummyExperiment, rank_zero_experiment
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from finetune.files.writing import write_text
from finetune.metrics.semantics import Better, headline, known, meaning
from finetune.tracking.jsonl import plain
from finetune.tracking.shown import Artifact, Shown, Table

log = logging.getLogger(__name__)

INIT_SECONDS, FINISH_SECONDS = 10.0, 30.0
"""How long an online run may wait for the network, at its start and end."""
STUCK_SECONDS, START_SECONDS = 25.0, 60.0
"""How much longer W&B's process may leave a call unanswered, and take to start."""
STEP = "step"
"""The x axis of all metrics: optimizer steps made so far."""
PEAK_MEMORY = "perf/peak_gib"
"""The measurement of which the highest value counts; of others the mean does."""
SUMMARIES: dict[Better | None, str | None] = {"lower": "min", "higher": "max", None: None}
"""Which way a metric is better -> its value in the summary."""
_STAGING, _RUN_ID = "WANDB_DATA_DIR", "WANDB_RUN_ID"
_USED_IDS: set[str] = set()  # of the runs of this process


class WandbRunLogger(WandbLogger):
    """Lightning's Weights & Biases logger for a separate run inside the run folder.

    Metrics are logged by `step`, and the summary has the best value (`summary_of`). The run's id is
    stored beside it, so that a resumed run is the same run in Weights & Biases.
    """

    def __init__(
        self, run_dir: Path, *, mode: str, resume: bool, config: Mapping[str, Any], **names: Any
    ) -> None:
        """Set the names of the run; it starts when the first value is logged.

        Args:
            run_dir: The run folder.
            mode: `offline`, `online` or another of Weights & Biases' modes.
            resume: Whether the run in the folder is resumed.
            config: All settings, nested, as plain values.
            names: Further arguments of `wandb.init`: project, name, group, job_type, tags.
        """
        self._folder = run_dir / "wandb"
        self._id_file = self._folder / "run-id"
        self._is_lost = False  # whether W&B's process has ended
        self._defined: set[str] = set()
        self._last_step: dict[str, int] = {}
        run_id = self._id_file.read_text().strip() if resume and self._id_file.exists() else None
        super().__init__(save_dir=run_dir, id=run_id, **names)
        self._wandb_init |= {"mode": mode, "config": dict(config), "reinit": "create_new"}
        del self._wandb_init["anonymous"]  # Lightning 2.6 passes it, W&B 0.31 warns about it
        # Offline no server knows the run; its id joins the parts when they are synced.
        self._wandb_init["resume"] = "allow" if resume and mode != "offline" else None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, started on first use; a dummy that ignores calls if W&B's process has ended."""
        if self._experiment is None and not self._is_lost:
            with self._harmless(START_SECONDS):
                self._experiment = _start(_with_unused_id(self._wandb_init))
                self._experiment.define_metric(STEP, hidden=True)
            if self._experiment is not None:
                _USED_IDS.add(self._experiment.id)
                write_text(self._id_file, f"{self._experiment.id}\n")
        return _DummyExperiment() if self._experiment is None else self._experiment

    @contextmanager
    def _harmless(self, seconds: float = 0.0) -> Iterator[None]:
        """Contain calls to W&B's process that fail or hang: training continues without it.

        Args:
            seconds: How long the calls may take when all is well.
        """
        try:
            with _ended_if_stuck(seconds + STUCK_SECONDS):
                yield
        except Exception as error:
            if not self._is_lost:
                reason = " ".join(str(error).split()) or type(error).__name__
                log.warning("Weights & Biases failed; the run continues without it: %s", reason)
            self._is_lost, self._experiment = True, None
            _forget_process()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values under their names, at a step."""
        run = self.experiment
        if not self._is_lost:
            with self._harmless():
                self._log(run, metrics, step)

    def _log(self, run: Any, metrics: Mapping[str, float], step: int | None) -> None:
        for name in [name for name in metrics if name not in self._defined]:
            # One by one, not by patterns: if two patterns fit a name, W&B 0.31 takes either.
            run.define_metric(name, step_metric=STEP, summary=summary_of(name))
            self._defined.add(name)
        self._last_step = self._last_step if step is None else {STEP: step}
        run.log({**metrics} if step is None else {**metrics, **self._last_step})

    @rank_zero_only
    def show(self, shown: Callable[[], Shown]) -> None:
        """Log tables and artifacts; an error there becomes a warning of one line."""
        run = self.experiment
        if self._is_lost:
            return
        try:
            content = shown()
            with _staged_in(self._folder / "staged"):
                if tables := {table.name: _media(table) for table in content.tables}:
                    with self._harmless():
                        run.log({**tables, **self._last_step})
                for artifact in content.artifacts:
                    theirs = _wandb_artifact(artifact)
                    with self._harmless():
                        _log_artifact(run, theirs, artifact.used)
        except Exception as error:  # the results are already in the run folder: nothing is lost
            reason = " ".join(str(error).split())
            log.warning(
                "Weights & Biases did not receive all tables and files of the run: %s", reason
            )

    @rank_zero_only
    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Write the summary of the run, and end it.

        Each metric of the results is also logged as `best/NAME`, and the headline as
        `best/headline`: sweeps and tables in Weights & Biases cannot read nested values.
        """
        run = self.experiment
        if self._is_lost:
            return
        metrics = summary.get("metrics") or {}
        best = {f"best/{name}": value for name, value in metrics.items()}
        if (name := headline(metrics)) is not None:
            best["best/headline"] = metrics[name]
        online = self._wandb_init["mode"] != "offline"
        with self._harmless(FINISH_SECONDS if online else 0.0):
            run.summary.update({**plain(summary), **plain(best)})
            run.finish(exit_code=int(failed))


def _media(table: Table) -> Any:
    import wandb

    theirs = wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
    if table.chart is None:
        return theirs
    return wandb.plot_table(table.chart, theirs, fields={name: name for name in table.columns})


def _wandb_artifact(artifact: Artifact) -> Any:
    import wandb

    theirs = wandb.Artifact(artifact.name, artifact.kind, metadata=plain(artifact.facts))
    for name, path in sorted(artifact.files.items()):
        # Uploaded from the run folder: by default W&B copies each file into its cache, and a
        # checkpoint would take its size on the disk twice more.
        theirs.add_file(str(path), name=name, policy="immutable", skip_cache=True)
    for name, text in sorted(artifact.texts.items()):
        with theirs.new_file(name, encoding="utf-8") as file:
            file.write(text)
    return theirs


def _log_artifact(run: Any, theirs: Any, is_used: bool) -> None:
    if is_used:
        # `use_artifact` refuses to work offline (W&B 0.31), although the call that it makes for an
        # artifact given by its content is recorded offline too; this is that call.
        run._log_artifact(theirs, is_user_created=True, use_after_commit=True)
    else:
        run.log_artifact(theirs)


@contextmanager
def _ended_if_stuck(seconds: float) -> Iterator[None]:
    """Kill W&B's process if a block takes too long, so that calls that wait for it fail."""
    timer = threading.Timer(seconds, _end_process)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process() -> None:
    """Kill the process that W&B started for this one; its library cannot do that."""
    process = _process()
    if process is not None:
        process.kill()


def _process() -> Any:
    from wandb.sdk import wandb_setup

    connection: Any = wandb_setup.singleton()._connection
    return getattr(getattr(connection, "_proc", None), "_process", None)


def _forget_process() -> None:
    """Detach from W&B's process, or its library shows a traceback when this process exits."""
    import wandb

    process = _process()
    with _ended_if_stuck(STUCK_SECONDS), suppress(Exception):
        wandb.teardown()
    if process is not None:
        process.kill()
        process.wait()


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Stage files for upload in a folder of the run, not in the user's home folder."""
    if _STAGING in os.environ:
        yield
        return
    os.environ[_STAGING] = str(folder.absolute())
    try:
        yield
    finally:
        del os.environ[_STAGING]


def _with_unused_id(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Use the id that a sweep's agent set for the first run of this process only.

    The further seeds of a run would otherwise overwrite it.
    """
    agent_id = os.environ.get(_RUN_ID)
    if arguments["id"] is not None or agent_id is None:
        return arguments
    return {**arguments, "id": secrets.token_hex(4) if agent_id in _USED_IDS else agent_id}


def _start(arguments: Mapping[str, Any]) -> Any:
    """Start a run without console output; if the server cannot be reached, start it offline."""
    import wandb

    quiet = wandb.Settings(
        silent=True,
        console="off",
        symlink=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
    )
    try:
        return wandb.init(**arguments, settings=quiet)
    except (wandb.Error, TimeoutError) as error:
        if arguments["mode"] == "offline":
            raise
        log.warning("Weights & Biases stays offline: %s", " ".join(str(error).split()))
    # With a new id: that of the failed attempt stays in use until this process ends.
    offline = {**arguments, "mode": "offline", "resume": None, "id": None}
    return wandb.init(**offline, settings=quiet)


def summary_of(name: str) -> str | None:
    """Which value of a metric's history Weights & Biases shows in the table of runs.

    Args:
        name: As it is logged, such as `val/accuracy`.

    Returns:
        `min` for losses and perplexities, `max` for scores and for memory, `mean` for speeds;
        None, which stands for the last value, where neither direction is better.
    """
    section = name.partition("/")[0]
    if section == "val" or (section == "train" and known(name)):
        return SUMMARIES[meaning(name).better]
    if section == "perf":
        return "max" if name == PEAK_MEMORY else "mean"
    return None
