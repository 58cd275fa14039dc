"""From run folders to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from finetune.console.output import counted
from finetune.errors import ConfigError, DataError
from finetune.files.writing import write_text
from finetune.report.assembling import parts
from finetune.report.collecting import Collection, Problem, collect
from finetune.report.markup import element, joined
from finetune.report.page import page
from finetune.report.parts import Part
from finetune.report.view import TaskView, task_views
from finetune.runs.families import Anchor, families
from finetune.runs.opening import check_writable
from finetune.runs.sweeps import SUMMARY, choice_lines


@dataclass(frozen=True)
class Report:
    """A report that has been written."""

    path: Path
    """The file."""
    runs: tuple[str, ...]
    """Names of the runs in it."""
    problems: tuple[Problem, ...]
    """What could not be shown, or only in part."""


def write_report(
    places: Sequence[Path],
    out: Path,
    *,
    baselines: Sequence[Path] = (),
    title: str | None = None,
    data: Path | None = None,
    more: Sequence[Part] = (),
) -> Report:
    """Write a report of runs.

    Args:
        places: Run folders, of one seed or of several, and folders of such.
        out: The HTML file to write; one that is there is replaced.
        baselines: What the runs of a task are compared with; left out, the run from random
            weights, or the first one. They need not be among the places.
        title: The page's heading.
        data: Folder with the official files, for the texts of examples, in place of the one that
            each run was made with.
        more: Further parts, such as those that look inside a net.

    Returns:
        What was written, and what could not be.

    Raises:
        DataError: No run could be read.
        ConfigError: The file cannot be written.
    """
    _check_file(out)
    collection = collect([*places, *baselines])
    if not collection.runs and not more:
        reasons = "; ".join(f"{problem.place}: {problem.what}" for problem in collection.problems)
        raise DataError(f"expected runs to report, got none ({reasons}); name a run folder")
    views = task_views(collection, baselines, _anchors())
    shown = parts(collection, views, data, [*_sweeps(places, collection), *more])
    write_text(out, page(title or _title(views), _subtitle(collection, views), shown))
    names = tuple(run.name for run in collection.runs)
    return Report(out, names, tuple(dict.fromkeys(collection.problems)))


def _sweeps(places: Sequence[Path], collection: Collection) -> list[Part]:
    """What the sweeps among the places chose, and by how much the choice flatters."""
    body = []
    for place in places:
        lines = collection.attempt(str(place), partial(_choice, place))
        if lines:
            body += [element("h3", str(place)), *(element("p", line) for line in lines)]
    lead = "The best run of a sweep, and its score on rows that did not choose it."
    return [Part("sweeps", "Sweeps", joined(body), lead)] if body else []


def _choice(place: Path) -> list[str]:
    file = place / SUMMARY
    return choice_lines(json.loads(file.read_bytes())) if file.is_file() else []


def _check_file(out: Path) -> None:
    check_writable(out.parent)
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")


def _anchors() -> dict[str, Sequence[Anchor]]:
    return {
        task: anchors
        for family in families().values()
        for task, anchors in family.anchors().items()
    }


def _title(views: Sequence[TaskView]) -> str:
    tuned = [view.task for view in views if not view.models_language]
    if len(tuned) == 1:
        return f"Runs on {tuned[0]}"
    return f"Runs on {len(tuned)} tasks" if tuned else "Pretraining"


def _subtitle(collection: Collection, views: Sequence[TaskView]) -> str:
    seeds = sum(len(run.seeds) for run in collection.runs)
    tasks = sum(not view.models_language for view in views)
    counts = [(len(collection.runs), "run"), (seeds, "training")]
    counts += [(tasks, "task")] if tasks else []
    return " · ".join(counted(count, noun) for count, noun in counts)
