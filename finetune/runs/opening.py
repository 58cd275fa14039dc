"""Taking a run's folder: whether a run may have it, and what is removed or kept when it opens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from finetune.checkpoints.seed_folders import (
    ANY_SEED,
    BASELINES,
    CHECKPOINTS,
    CONFIG,
    DATA,
    LOG,
    METRICS,
    PREDICTIONS,
    RESULTS,
    RESULTS_BEFORE,
    SUBMISSION,
    TABLE,
    TEXTS,
    TOKENIZER,
)
from finetune.errors import ConfigError
from finetune.files.cache_folder import cache_folder
from finetune.files.unpacking import without_sheet
from finetune.files.writing import is_temporary, remove, settle, sweep, write_text
from finetune.machine.processes import first_process_only
from finetune.machine.restarts import is_restart, requeue_after
from finetune.runs import inputs as run_inputs
from finetune.runs.folder import RunFolder, say
from finetune.runs.lock import LOCK, in_use, is_running
from finetune.settings import fields as settings

SPLITS = ("train", "validation", "test")
PARTS = (
    RESULTS,
    CHECKPOINTS,
    RESULTS_BEFORE,
    METRICS,
    TABLE,
    LOG,
    PREDICTIONS,
    TEXTS,
    BASELINES,
    SUBMISSION,
    TOKENIZER,
    "wandb",
    "tensorboard",
    CONFIG,
)
"""What a run writes; `--overwrite` removes these and nothing else, in this order.

A kill on the way leaves a run that can be resumed or has not started: the results go before
the checkpoints that they are made of, and the settings last.
"""
MODES = ("resume", "overwrite", "extend_epochs", "find_lr", "dry_run")
"""Settings of one call of the command and not of the run."""
R = TypeVar("R")


@first_process_only
def check_folder(folder: RunFolder, run: object, *, resume: bool, overwrite: bool) -> None:
    """Say whether a run may have this folder, and touch nothing.

    A run that was stopped before its first checkpoint has nothing to lose, and is started over.

    Args:
        folder: RUN.
        run: The run's settings, a dataclass.
        resume: Continue the run that is there.
        overwrite: Remove the run that is there.

    Raises:
        ConfigError: It holds another run and neither was said; or it holds something else; or
            there is nothing to resume; or the settings have changed since; or it cannot be
            written; or a process is running there.
    """
    for place in (folder, *folder.seeds):
        if is_running(place.path):
            raise in_use(place.path)
    _check_content(folder, run, resume=resume, overwrite=overwrite)


def after_restart(run: R) -> R:
    """The settings of a run; if torchrun or SLURM has started its command again, it continues.

    Args:
        run: A dataclass of settings with `resume` and `overwrite`.
    """
    is_trained = not any(getattr(run, mode, False) for mode in ("find_lr", "dry_run"))
    if not (is_trained and is_restart()):
        return run
    # Without looking whether there is something: all processes must come to the same answer.
    return dataclasses.replace(run, resume=True, overwrite=False)  # type: ignore[type-var]


def _continues(folder: RunFolder, *, resume: bool) -> bool:
    """Whether a run is resumed; a restarted command whose run had not begun starts it."""
    return resume and (folder.config_file.is_file() or not is_restart())


def _check_content(folder: RunFolder, run: object, *, resume: bool, overwrite: bool) -> None:
    resume = _continues(folder, resume=resume)
    if resume and overwrite:
        raise ConfigError("--resume continues a run and --overwrite deletes it: give one of them")
    check_writable(folder.path)
    there = folder.config_file.is_file()
    _check_extension(folder, run, resume=resume)
    if resume:
        if not there:
            raise ConfigError(
                f"{folder.path} contains no run to resume; start one without --resume"
            )
        run_inputs.check_settings(folder.path, folder.read_settings(type(run)), run)
    elif there and not overwrite and folder.has_started:
        raise ConfigError(
            f"{folder.path} already contains a run; continue it with --resume, replace it with "
            "--overwrite, or choose another --out"
        )
    elif there:
        _check_inputs_outside(folder, run)
    elif folder.path.exists() and not all(map(_is_passing, folder.path.iterdir())):
        raise ConfigError(
            f"{folder.path} is not empty and contains no run; choose a new folder for --out"
        )


def _check_extension(folder: RunFolder, run: object, *, resume: bool) -> None:
    if not getattr(run, "extend_epochs", None):
        return
    if not resume:
        raise ConfigError("--extend-epochs continues a finished run: add --resume")
    if folder.config_file.is_file() and not folder.was_finished:
        raise ConfigError(
            f"{folder.path}: expected a finished run to extend, got one that was stopped; "
            "continue it with --resume, without --extend-epochs, first"
        )


def _check_inputs_outside(folder: RunFolder, run: object) -> None:
    removed = {path.resolve() for path in _parts(folder)}
    for _, given in run_inputs.paths_in(run):
        files = map(without_sheet, [given] if isinstance(given, str) else given)
        for source in filter(os.path.exists, files):
            place = Path(source).resolve()
            if place == folder.path.resolve() or removed & {place, *place.parents}:
                raise ConfigError(
                    f"{source} lies in --out {folder.path}, whose run is to be replaced; "
                    "name another --out"
                )


def _parts(folder: RunFolder) -> list[Path]:
    """What a run wrote here, in the order of removal."""
    first, *parts = (folder.path / name for name in PARTS)
    return [first, *folder.path.glob(ANY_SEED), *parts]


@first_process_only
def check_inputs(folder: RunFolder, run: object, inputs: run_inputs.Inputs) -> None:
    """Refuse to resume a run, if that is asked, with other inputs than it began with.

    Args:
        folder: RUN.
        run: The run's settings.
        inputs: Those that are known so far.

    Raises:
        ConfigError: One has changed.
    """
    if getattr(run, "resume", False):
        run_inputs.check_inputs(folder.path, inputs)


@contextmanager
def opened(folder: RunFolder, run: Any, inputs: run_inputs.Inputs) -> Iterator[None]:
    """Have a run's folder while the block runs: held, opened for it, and with an open log.

    Args:
        folder: RUN.
        run: The run's settings, a dataclass.
        inputs: All that the run reads.

    Raises:
        ConfigError: As for `open_folder`; or another process has it.
    """
    with folder.hold():
        open_folder(folder, run, resume=run.resume, overwrite=run.overwrite, inputs=inputs)
        with folder.log():
            try:
                yield
            except BaseException as error:
                _requeue_after(error, wanted=run.checkpoints.requeue)
                raise


@first_process_only
def _requeue_after(error: BaseException, *, wanted: bool) -> None:
    if message := requeue_after(error, wanted=wanted):
        say(message)


@first_process_only
def open_folder(
    folder: RunFolder,
    run: object,
    *,
    resume: bool,
    overwrite: bool,
    inputs: run_inputs.Inputs | None = None,
) -> None:
    """Take the folder for a run and write config.yaml; what it needs has been read by then.

    Args:
        folder: RUN.
        run: The run's settings, a dataclass.
        resume: Continue the run that is there.
        overwrite: Remove the run that is there first.
        inputs: All that the run reads; left out where nothing is trained.

    Raises:
        ConfigError: As for `check_folder`, but that this process may hold the folder; or the run
            was begun with other inputs.
    """
    _check_content(folder, run, resume=resume, overwrite=overwrite)
    resume = _continues(folder, resume=resume)
    sweep(cache_folder(getattr(run, "cache_dir", None)))
    if resume:
        if inputs is not None:
            _compare_inputs(folder, inputs)
        settle_folder(folder)
        return
    clear_folder(folder)
    if inputs is not None:  # first: what has a config.yaml can be resumed
        run_inputs.write_inputs(folder.path, inputs)
    write_text(folder.config_file, settings.dump(run_inputs.with_full_paths(_without_mode(run))))


def _compare_inputs(folder: RunFolder, inputs: run_inputs.Inputs) -> None:
    """Refuse other inputs than the run began with; if it does not say, keep those of now."""
    run_inputs.check_inputs(folder.path, inputs)
    if run_inputs.read_inputs(folder.path) is None:
        if folder.has_started:
            say(
                f"{folder.path} has no {run_inputs.FILE} (an earlier version began the run): it "
                "is not checked whether its data and encoder are still the same"
            )
        run_inputs.write_inputs(folder.path, inputs)


def clear_folder(folder: RunFolder) -> None:
    """Remove what a run wrote here (its seeds' folders too), and leave anything else."""
    for part in _parts(folder):
        remove(part)


def settle_folder(folder: RunFolder) -> None:
    """End what a kill cut off here, for the process that holds the folder."""
    for place in [folder.path, *filter(Path.is_dir, folder.path.iterdir())]:
        settle(place)


def _is_passing(path: Path) -> bool:
    """Whether it is there without a run: while a process writes, after a kill, or as its data."""
    return path.name in (LOCK, run_inputs.FILE) or is_temporary(path) or _is_data(path)


def _is_data(path: Path) -> bool:
    """Whether it is the folder of the data that a run was given in memory."""
    if path.name != DATA or not path.is_dir():
        return False
    return {file.name for file in path.iterdir()} <= {f"{split}.jsonl" for split in SPLITS}


def _without_mode(run: object) -> object:
    """What is recorded: used again as a --config, it is not to replace the run."""
    known = dataclasses.fields(run)  # type: ignore[arg-type]
    modes = {field.name: field.default for field in known if field.name in MODES}
    return dataclasses.replace(run, **modes)  # type: ignore[type-var]


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written.

    Raises:
        ConfigError: It, or what is to hold it, is a file or may not be written.
    """
    place = Path(os.path.realpath(folder))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        what = "a link to itself" if place.is_symlink() else "a file"
        raise ConfigError(f"--out {folder}: {place} is {what}; name a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {folder}: {place} may not be written; name another folder")
