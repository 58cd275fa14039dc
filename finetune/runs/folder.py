"""The run folder: what a run leaves behind, and who may write into it.

RUN/config.yaml      all that the run used, defaults included
RUN/inputs.json      digests of what it reads (`run_inputs`)
RUN/metrics.jsonl    a line a log step
RUN/results.json     what came out
RUN/checkpoints/     best: the weights to keep; last: all that resuming needs
RUN/predictions/     a file a split
RUN/running.lock     while a process writes here: locked by it (`hold`)
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from finetune.checkpoints.seed_folders import seed_folders
from finetune.console.output import printable
from finetune.errors import ConfigError, DataError
from finetune.files.cache_folder import cache_folder as cache_folder
from finetune.files.writing import is_temporary, remove, settle, sweep, write_text
from finetune.machine.processes import first_process_only, is_first_process
from finetune.runs import inputs as run_inputs
from finetune.runs.lock import LOCK, held, in_use, is_running
from finetune.settings import fields as settings
from finetune.settings.renames import with_new_names
from finetune.settings.values import load

Results = dict[str, Any]
T = TypeVar("T")

PARTS = (
    "results.json",
    "checkpoints",
    "metrics.jsonl",
    "metrics.csv",
    "predictions",
    "submission",
    "tokenizer",
    "wandb",
    "tensorboard",
    "config.yaml",
)
"""What a run writes; `--overwrite` removes these and nothing else, in this order.

A kill on the way leaves a run that can be resumed or has not started: the results go before
the checkpoints that they are made of, and the settings last.
"""
SESSION_KEYS = (
    "resume",
    "overwrite",
    "dry_run",
    "find_lr",
    "out",
    "tracking",
    "trainer.progress",
    "loader.num_workers",
    "checkpoints.checkpoint_every_steps",
    "cache_dir",
    "caching.cache",
    "caching.cache_gib",
)
"""Settings that may differ when a run is resumed: they change no number."""
INPUTS = ("encoder_from", "tokenizer", "train", "validation")
"""Settings that name a file or folder, which `--overwrite` must not remove."""


@first_process_only
def check_folder(folder: Path, run: object, *, resume: bool, overwrite: bool) -> None:
    """Say whether a run may have a folder, and touch nothing.

    A run that was stopped before its first checkpoint has nothing to lose, and is started over.

    Args:
        folder: RUN.
        run: The run's settings, a dataclass.
        resume: Go on with the run that is there.
        overwrite: Remove the run that is there.

    Raises:
        ConfigError: It holds another run and neither was said; or it holds something else; or
            there is nothing to resume; or the settings have changed since; or it cannot be written;
            or a process is running there.
    """
    for place in (folder, *seed_folders(folder)):
        if is_running(place):
            raise in_use(place)
    _check_content(folder, run, resume=resume, overwrite=overwrite)


def _check_content(folder: Path, run: object, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("--resume continues a run and --overwrite deletes it: give one of them")
    check_writable(folder)
    there = (folder / "config.yaml").is_file()
    if resume:
        if not there:
            raise ConfigError(f"{folder} contains no run to resume; start one without --resume")
        _check_unchanged(folder, run)
    elif there and not overwrite and has_started(folder):
        raise ConfigError(
            f"{folder} already contains a run; continue it with --resume, replace it with "
            "--overwrite, or choose another --out"
        )
    elif there:
        _check_inputs_outside(folder, run)
    elif folder.exists() and not all(map(_is_passing, folder.iterdir())):
        raise ConfigError(
            f"{folder} is not empty and contains no run; choose a new folder for --out"
        )


def _is_passing(path: Path) -> bool:
    """Whether it is only there while a process writes, or was left by one that was killed."""
    return path.name in (LOCK, run_inputs.FILE) or is_temporary(path)


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


def has_started(folder: Path) -> bool:
    """Whether a run folder, or that of one of its seeds, holds a checkpoint or results."""
    kept = ("results.json", "checkpoints/*/config.json")
    found = (path for part in kept for at in ("", "seed-*/") for path in folder.glob(at + part))
    return not all(is_temporary(path.parent) for path in found)


def _check_inputs_outside(folder: Path, run: object) -> None:
    parts = [*(folder / name for name in PARTS), *folder.glob("seed-*")]
    removed = {path.resolve() for path in parts}
    for name in INPUTS:
        source = getattr(run, name, None)
        if source is not None and Path(source).exists():
            place = Path(source).resolve()
            if place == folder.resolve() or removed & {place, *place.parents}:
                raise ConfigError(
                    f"{source} lies in --out {folder}, whose run is to be replaced; "
                    "name another --out"
                )


@first_process_only
def check_inputs(folder: Path, run: object, inputs: run_inputs.Inputs) -> None:
    """Refuse to resume a run, if that is asked, with other inputs than it began with.

    Args:
        folder: RUN.
        run: The run's settings.
        inputs: Those that are known so far.

    Raises:
        ConfigError: One has changed.
    """
    if getattr(run, "resume", False):
        run_inputs.check_inputs(folder, inputs)


@first_process_only
def open_run(
    folder: Path,
    run: object,
    *,
    resume: bool,
    overwrite: bool,
    inputs: run_inputs.Inputs | None = None,
) -> None:
    """Take a folder for a run and write its config.yaml; what it needs has been read by then.

    Args:
        folder: RUN.
        run: The run's settings, a dataclass.
        resume: Go on with the run that is there.
        overwrite: Remove the run that is there first.
        inputs: All that the run reads; left out where nothing is trained.

    Raises:
        ConfigError: As for `check_folder`, but that this process may hold the folder; or it was
            begun with other inputs.
    """
    _check_content(folder, run, resume=resume, overwrite=overwrite)
    sweep(cache_folder(getattr(run, "cache_dir", None)))
    if resume:
        if inputs is not None:
            _compare_inputs(folder, inputs)
        settle_run(folder)
        return
    clear_run(folder)
    if inputs is not None:  # first: what has a config.yaml can be resumed
        run_inputs.write_inputs(folder, inputs)
    write_text(folder / "config.yaml", settings.dump(_without_mode(run)))


def _without_mode(run: object) -> object:
    """What is recorded: used again as a --config, it is not to replace the run."""
    known = {field.name for field in dataclasses.fields(run)}  # type: ignore[arg-type]
    modes = {name: False for name in ("resume", "overwrite") if name in known}
    return dataclasses.replace(run, **modes)  # type: ignore[type-var]


def _compare_inputs(folder: Path, inputs: run_inputs.Inputs) -> None:
    """Refuse other inputs than a run began with; of a run that does not say, keep those of now."""
    run_inputs.check_inputs(folder, inputs)
    if run_inputs.read_inputs(folder) is None:
        if has_started(folder):
            say(
                f"{folder} has no {run_inputs.FILE} (an earlier version began the run): it is not "
                "checked whether its data and encoder are still the same"
            )
        run_inputs.write_inputs(folder, inputs)


def hold(folder: Path) -> AbstractContextManager[None]:
    """Keep a folder for this process while the block runs: others see that a run is writing there.

    Args:
        folder: RUN; it is made if it is not there.

    Raises:
        ConfigError: Another process holds it.
    """
    return held(folder) if is_first_process() else nullcontext()


def clear_run(folder: Path) -> None:
    """Remove what a run wrote into its folder (its seeds' folders too), and leave anything else."""
    first, *parts = (folder / name for name in PARTS)
    for part in [first, *folder.glob("seed-*"), *parts]:
        remove(part)


def settle_run(folder: Path) -> None:
    """End what a kill cut off in a run's folder, for the process that holds it."""
    for place in [folder, *filter(Path.is_dir, folder.iterdir())]:
        settle(place)


def read_run(cls: type[T], folder: Path) -> T:
    """Read the settings that a run was made with.

    Args:
        cls: The kind of run that is wanted, a dataclass of settings.
        folder: RUN.

    Raises:
        ConfigError: The folder holds no run, or one of another kind.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{folder}: expected a run folder with config.yaml, found none")
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    content = with_new_names(load(file))
    if isinstance(content, dict) and not content.keys() <= known:
        about = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
        wanted = about[:1].lower() + about[1:]
        raise ConfigError(
            f"{folder}: expected a run that was made to {wanted}, found one of another kind"
        )
    return settings.read(cls, file, warn=False)  # the record of a run is not to be edited


def _check_unchanged(folder: Path, run: object) -> None:
    """Refuse to resume under other settings: the numbers would be those of no run at all."""
    before = _flat(dataclasses.asdict(read_run(type(run), folder)))  # type: ignore[call-overload]
    now = _flat(dataclasses.asdict(run))  # type: ignore[call-overload]
    for key in now:
        may_differ = any(key == free or key.startswith(free + ".") for free in SESSION_KEYS)
        if not may_differ and before[key] != now[key]:
            raise ConfigError(
                f"{folder}: {key} was {before[key]!r} when the run began and is {now[key]!r} now; "
                "resume with the settings of its config.yaml, or start another run"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


@first_process_only
def write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Write small files below a folder, each whole or not at all: name -> content."""
    for name, text in contents.items():
        write_text(folder / name, text)


@first_process_only
def write_results(folder: Path, results: Results) -> None:
    """Write RUN/results.json."""
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(folder / "results.json", text + "\n")


def read_results(folder: Path) -> Results:
    """Read RUN/results.json.

    Raises:
        DataError: It is missing (the run has not ended) or damaged.
    """
    path = folder / "results.json"
    try:
        results: Results = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(
            f"{path}: no such file; the run has not ended (continue with --resume)"
        ) from None
    except ValueError as error:
        raise DataError(f"{path}: expected JSON, found {error}") from None
    return results


def over_seeds(runs: Sequence[Results]) -> Results:
    """Mean and standard deviation (n - 1) of each metric over seeds, with each seed's results."""
    first = runs[0]
    return {
        "task": first["task"],
        "split": first["split"],
        "seeds": [run["seed"] for run in runs],
        "metrics": {
            name: summarise([run["metrics"][name] for run in runs]) for name in first["metrics"]
        },
        "collapsed": [run["seed"] for run in runs if run.get("collapsed")],
        "runs": list(runs),
    }


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1; 0 for one value) and the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


def versions() -> dict[str, str]:
    """Python and the libraries that a number may depend on."""
    names = ("torch", "pytorch-lightning", "tokenizers", "transformers", "numpy", "finetune")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@first_process_only
def say(message: str) -> None:
    """Print a message for the user (stderr, so that stdout has results only)."""
    print(printable(message), file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print what is being done; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        say(message)
