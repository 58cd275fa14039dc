"""The settings of a fine-tuning run by its task: the class that the task's family adds to."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from finetune.errors import ConfigError
from finetune.runs.families import family_of, make_task
from finetune.runs.folder import RunFolder, say
from finetune.runs.settings import FitRun, default_folder, fit_settings
from finetune.task.interface import Task


def complete(run: FitRun) -> FitRun:
    """A plain FitRun with the settings of its family's own beside it, at their defaults.

    Args:
        run: The settings; those of a family's own class come back as they are.
    """
    settings = fit_settings(run.task)
    if type(run) is not FitRun or isinstance(run, settings):
        return run
    return settings(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})


def with_beams(run: FitRun, beams: int | None) -> FitRun:
    """The settings with another number of beams, where one is given.

    Raises:
        ConfigError: The run's answers are not searched for.
    """
    if beams is None:
        return run
    search = getattr(run, "search", None)
    if search is None:
        raise ConfigError(
            f"--beams is for runs of finetune write, whose answers are searched for, got a run of "
            f"{run.task}; remove it"
        )
    changed: FitRun = dataclasses.replace(run, search=dataclasses.replace(search, beams=beams))  # type: ignore[call-arg]
    return changed


def full_name(name: str) -> str:
    """Family and task of a name: `classify` stands for `classify/own`.

    Raises:
        ConfigError: There is no such family, or it has several tasks.
    """
    family = family_of(name)
    if "/" in name:
        return name
    if not family.only:
        names = ", ".join(f"{name}/{task}" for task in family.names())
        raise ConfigError(f"task {name!r}: expected FAMILY/NAME; choose one of {names}")
    return f"{name}/{family.only}"


def find_task(
    name: str,
    *,
    data: str | Path | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
) -> Task:
    """Find a task of an installed family by its name, to use it without a run.

    >>> import finetune
    >>> task = finetune.find_task(
    ...     "classify", train="data/train.csv", validation="data/validation.csv"
    ... )
    >>> task.labels, task.monitor
    (('bad', 'good'), 'accuracy')

    Args:
        name: Family and task, such as `glue/cola`; the family alone for `classify`, `answer`,
            `choose` and `write`, which read your own files.
        data: Folder with the official files; default: the variable FINETUNE_DATA, or the hub.
        train: File to train on instead of the official one.
        validation: File to validate on instead of the official one.
        test: File to test on instead of the official one.

    Returns:
        The task; its files are read on first use.

    Raises:
        ConfigError: There is no such family or task, or a file that it needs is not named.
    """
    paths = {"data": data, "train": train, "validation": validation, "test": test}
    given = {key: str(path) for key, path in paths.items() if path is not None}
    run = FitRun(encoder_from="none", task=full_name(name), **given)  # type: ignore[arg-type]
    return make_task(complete(run))


def read_fit(folder: Path) -> FitRun:
    """Read the settings that a fine-tuning run was made with.

    Raises:
        ConfigError: The folder holds no run, or one of another kind.
    """
    run = RunFolder(folder)
    task = run.read_config().get("task")
    if not task:
        return run.read_settings(FitRun)  # says what is wrong with it
    family = family_of(str(task))
    settings = run.read_settings(fit_settings(str(task)))
    # Earlier versions called all data of one's own by one name, and their results do.
    return _named(settings, family.only) if _is_unnamed(settings) else settings


def with_recorded_name(run: FitRun) -> FitRun:
    """A run that is resumed, with the name of one's own data under which it was begun."""
    if not run.resume or not hasattr(run, "name") or getattr(run, "dataset", None) is not None:
        return run
    task = str(RunFolder(Path(str(run.out))).read_config().get("task") or "")
    family, _, name = task.partition("/")
    if not name or family != run.task.partition("/")[0]:
        return run
    if run.name not in (None, name):
        say(f"{run.out}: its data keep the name with which the run began, {name}")
    return _named(run, name)


def folder_of(run: FitRun) -> str:
    """The run's folder, by default named after its task: that of one's own data has their name."""
    if run.out is not None:
        return run.out
    run = complete(run)
    is_named_by_file = _is_unnamed(run) and run.train is not None
    return default_folder(make_task(run).name if is_named_by_file else run.task)


def _is_unnamed(run: FitRun) -> bool:
    """Whether the data are one's own, and have no name yet."""
    only = family_of(run.task).only
    return bool(only) and run.task.endswith(f"/{only}") and getattr(run, "name", "") is None


def _named(run: FitRun, name: str) -> FitRun:
    return dataclasses.replace(run, name=name)  # type: ignore[call-arg]
