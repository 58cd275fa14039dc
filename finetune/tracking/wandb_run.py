"""A run in Weights & Biases. This room alone knows that library, and only inside functions."""

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
from finetune.metrics.semantics import headline
from finetune.tracking.jsonl import plain
from finetune.tracking.metrics import STEP, summary_of
from finetune.tracking.shown import Artifact, Shown, Table

log = logging.getLogger(__name__)

INIT_SECONDS, FINISH_SECONDS = 10.0, 30.0
"""How long an online run may wait for the network."""
STUCK_SECONDS, START_SECONDS = 25.0, 60.0
"""How long W&B's own process may leave a call unanswered, and take to start, beyond that."""
_STAGING, _RUN_ID = "WANDB_DATA_DIR", "WANDB_RUN_ID"
_TAKEN: set[str] = set()  # ids of this process's runs


class WandbRunLogger(WandbLogger):
    """Lightning's Weights & Biases logger, for a run of its own that lives in the run folder.

    Every value is a function of `step`, and the summary keeps the best one (`summary_of`). The
    run's id is kept beside it, so that a resumed run is the same run in Weights & Biases.
    """

    def __init__(
        self, run_dir: Path, *, mode: str, resume: bool, config: Mapping[str, Any], **names: Any
    ) -> None:
        """Remember what the run is called; it starts when the first value is logged.

        Args:
            run_dir: The run folder.
            mode: `offline`, `online` or another of Weights & Biases' modes.
            resume: Whether the run in the folder is resumed.
            config: All settings, nested, as plain values.
            names: Further arguments of `wandb.init`: project, name, group, job_type, tags.
        """
        self._folder = run_dir / "wandb"
        self._id_file = self._folder / "run-id"
        self._is_lost = False  # whether W&B's process is gone
        self._defined: set[str] = set()
        self._at: dict[str, int] = {}  # the last step
        run_id = self._id_file.read_text().strip() if resume and self._id_file.exists() else None
        super().__init__(save_dir=run_dir, id=run_id, **names)
        self._wandb_init |= {"mode": mode, "config": dict(config), "reinit": "create_new"}
        del self._wandb_init["anonymous"]  # Lightning 2.6 passes it, W&B 0.31 warns about it
        # Offline there is no server to ask for the run; the id alone joins the parts when synced.
        self._wandb_init["resume"] = "allow" if resume and mode != "offline" else None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, started at the first use; one that takes everything if W&B's process is gone."""
        if self._experiment is None and not self._is_lost:
            with self._harmless(START_SECONDS):
                self._experiment = _start(_with_own_id(self._wandb_init))
                self._experiment.define_metric(STEP, hidden=True)
            if self._experiment is not None:
                _TAKEN.add(self._experiment.id)
                write_text(self._id_file, f"{self._experiment.id}\n")
        return _DummyExperiment() if self._experiment is None else self._experiment

    @contextmanager
    def _harmless(self, seconds: float = 0.0) -> Iterator[None]:
        """Let calls to W&B's process fail, or hang, without harm to the run.

        Args:
            seconds: How long they may take by themselves.
        """
        try:
            with _ended_if_stuck(seconds + STUCK_SECONDS):
                yield
        except Exception as error:
            if not self._is_lost:
                words = " ".join(str(error).split()) or type(error).__name__
                log.warning("Weights & Biases failed; the run continues without it: %s", words)
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
            # One by one: of two patterns that fit a name, W&B 0.31 takes any.
            run.define_metric(name, step_metric=STEP, summary=summary_of(name))
            self._defined.add(name)
        self._at = self._at if step is None else {STEP: step}
        run.log({**metrics} if step is None else {**metrics, **self._at})

    @rank_zero_only
    def show(self, shown: Callable[[], Shown]) -> None:
        """Log tables and artifacts; an error there is reported in one line and harms no run."""
        run = self.experiment
        if self._is_lost:
            return
        try:
            found = shown()
            with _staged_in(self._folder / "staged"):
                if tables := {table.name: _media(table) for table in found.tables}:
                    with self._harmless():
                        run.log({**tables, **self._at})
                for artifact in found.artifacts:
                    made = _made(artifact)
                    with self._harmless():
                        _hand_over(run, made, artifact.used)
        except Exception as error:  # the results are in the run folder by now
            words = " ".join(str(error).split())
            log.warning(
                "Weights & Biases did not receive all tables and files of the run: %s", words
            )

    @rank_zero_only
    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Give the run its summary, and end it.

        A metric of the results is logged as `best/NAME` too, and the headline as
        `best/headline`: sweeps and tables find no nested one.
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

    made = wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
    if table.chart is None:
        return made
    return wandb.plot_table(table.chart, made, fields={name: name for name in table.columns})


def _made(artifact: Artifact) -> Any:
    import wandb

    made = wandb.Artifact(artifact.name, artifact.kind, metadata=plain(artifact.facts))
    for name, path in sorted(artifact.files.items()):
        # Not copied: it is uploaded from where it lies.
        made.add_file(str(path), name=name, policy="immutable", skip_cache=True)
    for name, text in sorted(artifact.texts.items()):
        with made.new_file(name, encoding="utf-8") as file:
            file.write(text)
    return made


def _hand_over(run: Any, made: Any, is_used: bool) -> None:
    if is_used:
        # `use_artifact` refuses to work offline (W&B 0.31), although what it calls for an artifact
        # that is given by its content is written down offline as well; this is that.
        run._log_artifact(made, is_user_created=True, use_after_commit=True)
    else:
        run.log_artifact(made)


@contextmanager
def _ended_if_stuck(seconds: float) -> Iterator[None]:
    """End W&B's process if a block takes too long: calls that wait for it then fail."""
    timer = threading.Timer(seconds, _end_process)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process() -> None:
    """Kill the process that W&B has started for this one; its library has no way to do that."""
    process = _process()
    if process is not None:
        process.kill()


def _process() -> Any:
    from wandb.sdk import wandb_setup

    connection: Any = wandb_setup.singleton()._connection
    return getattr(getattr(connection, "_proc", None), "_process", None)


def _forget_process() -> None:
    """Let W&B not ask its process to end when this one ends: it would show a traceback."""
    import wandb

    process = _process()
    with _ended_if_stuck(STUCK_SECONDS), suppress(Exception):
        wandb.teardown()
    if process is not None:
        process.kill()
        process.wait()


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Let what is to be uploaded wait in a folder of the run, not in one of the user's home."""
    if _STAGING in os.environ:
        yield
        return
    os.environ[_STAGING] = str(folder.absolute())
    try:
        yield
    finally:
        del os.environ[_STAGING]


def _with_own_id(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the id that an agent of a sweep has set to the first run of the process alone."""
    given = os.environ.get(_RUN_ID)
    if arguments["id"] is not None or given is None:
        return arguments
    return {**arguments, "id": secrets.token_hex(4) if given in _TAKEN else given}


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
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
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
