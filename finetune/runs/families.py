"""Families of tasks: what the library needs to know to fine-tune one by a command.

The library names no family: `families` finds those that installed packages offer as the entry
point `finetune.families`, a dictionary of `Family` by command word. Whoever needs them asks it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.errors import ConfigError, nearest
from finetune.machine.packages import load_entry

if TYPE_CHECKING:
    from finetune.runs.settings import FitRun
    from finetune.task.interface import Task

ENTRY_POINT = "finetune.families"


def _fit_run() -> type[FitRun]:
    from finetune.runs.settings import FitRun

    return FitRun


def _nothing() -> str:
    return ""


def _no_names() -> list[str]:
    return []


def _no_anchors() -> dict[str, list[Anchor]]:
    return {}


def _as_given(run: Any, task: Any) -> Any:
    return run


class Anchor(NamedTuple):
    """A published figure that a report sets beside a run's own."""

    metric: str
    """The metric's name in results.json."""
    value: float
    """A fraction."""
    model: str
    """Whose figure it is."""
    split: str
    """What it was measured on: `test` or `validation`."""
    source: str
    """Where it was published."""
    examples: int | None = None
    """Examples of the official data, training and first validation split together: beside runs on
    other data it is not shown. None: beside all runs."""


@dataclass(frozen=True)
class Family:
    """A family of tasks, fine-tuned by one command: `finetune glue TASK`."""

    help: str
    """One line for the list of commands."""
    make: Callable[[Any, tuple[str, ...] | None], Task]
    """Builds the task that a run's `task` names (`glue/sst2`); its classes are in the given order,
    that of a checkpoint's head, or in the task's own where that is None."""
    names: Callable[[], list[str]] = _no_names
    """The tasks of the family, of which the command's first word names one."""
    only: str = ""
    """The task, where the command takes no name."""
    settings: Callable[[], type[FitRun]] = _fit_run
    """The settings of a run, `FitRun` or a class that adds to it."""
    resolve: Callable[[Any, Any], Any] = _as_given
    """The settings with what the task has found out from its files, so that the run's folder says
    it and its answers need no file again."""
    about: Callable[[], str] = _nothing
    """More lines for `--help`."""
    anchors: Callable[[], Mapping[str, Sequence[Anchor]]] = _no_anchors
    """Published figures by task (`glue/sst2`), which reports show beside runs."""
    group: str = "benchmark"
    """Heading under which `finetune --help` lists it."""


_replaced: ContextVar[Mapping[str, Family] | None] = ContextVar("_replaced", default=None)


def families() -> Mapping[str, Family]:
    """The families of all installed packages, by the word of their command."""
    replaced = _replaced.get()
    return _installed() if replaced is None else replaced


@contextmanager
def using_families(table: Mapping[str, Family]) -> Iterator[None]:
    """In the block there are these families and no others, for tests and for unusual reports.

    >>> from finetune.runs.families import families, using_families
    >>> with using_families({"glue": families()["glue"]}):
    ...     list(families())
    ['glue']
    """
    token = _replaced.set(table)
    try:
        yield
    finally:
        _replaced.reset(token)


@cache
def _installed() -> dict[str, Family]:
    table: dict[str, Family] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT):
        try:
            table |= load_entry(entry)
        except Exception as error:  # somebody else's package must not stop every command
            package = entry.dist.name if entry.dist else entry.name
            warnings.warn(
                f"the task families of the package {package} ({entry.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}; repair or uninstall it",
                stacklevel=2,
            )
    return table


def family_of(task: str) -> Family:
    """The family of `glue/sst2`.

    Raises:
        ConfigError: No such family.
    """
    word = task.split("/")[0]
    if word not in families():
        raise ConfigError(f"task {task!r}: unknown family {word!r}; {nearest(word, families())}")
    return families()[word]


def complete(run: FitRun) -> FitRun:
    """A plain FitRun with the settings of its family's own beside it, at their defaults.

    Args:
        run: The settings; those of a family's own class come back as they are.
    """
    settings = family_of(run.task).settings()
    if type(run) is not _fit_run() or isinstance(run, settings):
        return run
    return settings(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})


def find_task(
    name: str,
    *,
    data: str | Path | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
) -> Task:
    """The task of an installed family by its name, to be used without a run.

    >>> import finetune
    >>> task = finetune.find_task(
    ...     "classify", train="data/train.csv", validation="data/validation.csv"
    ... )
    >>> task.labels, task.monitor
    (('bad', 'good'), 'accuracy')

    Args:
        name: Family and task, such as `glue/cola`; of `classify`, `answer` and the like, which read
            files of one's own, the family alone.
        data: Folder with the official files; left out, the variable FINETUNE_DATA or the hub.
        train: File to train on in place of the official one.
        validation: File to validate on in place of the official one.
        test: File to test on in place of the official one.

    Returns:
        The task; its files are read when its examples are asked for.

    Raises:
        ConfigError: There is no such family or task, or a file that it needs is not named.
    """
    family = family_of(name)
    if "/" not in name:
        if not family.only:
            raise ConfigError(
                f"task {name!r}: expected FAMILY/NAME; choose one of "
                f"{', '.join(f'{name}/{one}' for one in family.names())}"
            )
        name = f"{name}/{family.only}"
    places = {"data": data, "train": train, "validation": validation, "test": test}
    given = {key: str(place) for key, place in places.items() if place is not None}
    run = _fit_run()(encoder_from="none", task=name, **given)  # type: ignore[arg-type]
    return make_task(complete(run))


def make_task(run: FitRun, labels: tuple[str, ...] | None = None) -> Task:
    """The task that a run's settings name.

    Args:
        run: The settings.
        labels: The classes of a checkpoint's head in their order; None for the task's own.
    """
    return family_of(run.task).make(run, labels)


def read_fit(folder: Path) -> FitRun:
    """Read the settings that a fine-tuning run was made with.

    Raises:
        ConfigError: The folder holds no run, or one of another kind.
    """
    from finetune.runs.folder import RunFolder

    run = RunFolder(folder)
    task = run.read_config().get("task")
    if not task:
        return run.read_settings(_fit_run())  # says what is wrong with it
    family = family_of(str(task))
    settings = run.read_settings(family.settings())
    # Earlier versions called all data of one's own by one name, and their results do.
    return _named(settings, family.only) if _is_unnamed(settings) else settings


def with_recorded_name(run: FitRun) -> FitRun:
    """A run that is resumed, with the name of one's own data under which it was begun."""
    from finetune.runs.folder import RunFolder

    if not run.resume or not _is_unnamed(run):
        return run
    task = str(RunFolder(Path(str(run.out))).read_config().get("task") or "")
    return _named(run, task.partition("/")[2]) if "/" in task else run


def _is_unnamed(run: FitRun) -> bool:
    """Whether the data are one's own, and have no name yet."""
    only = family_of(run.task).only
    return bool(only) and run.task.endswith(f"/{only}") and getattr(run, "name", "") is None


def _named(run: FitRun, name: str) -> FitRun:
    return dataclasses.replace(run, name=name)  # type: ignore[call-arg]
