"""Families of tasks: what the library needs to know to fine-tune one by a command.

The library names no family: `families` finds those that installed packages offer as the entry
point `finetune.families`, a dictionary of `Family` by command word. Whoever needs them asks it.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.errors import ConfigError, nearest
from finetune.machine.packages import load_entry

if TYPE_CHECKING:
    from finetune.task.interface import Task

ENTRY_POINT = "finetune.families"


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
    settings: Callable[[], type[Any]] | None = None
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


def make_task(run: Any, labels: tuple[str, ...] | None = None) -> Task:
    """The task that a run's settings name.

    Args:
        run: The settings, a FitRun.
        labels: The classes of a checkpoint's head in their order; None for the task's own.
    """
    return family_of(run.task).make(run, labels)
