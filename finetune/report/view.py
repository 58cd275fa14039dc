"""The runs in the order of the page: by task, each with its baseline, colour and comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.comparison import Comparison, Difference, compare, corrected
from finetune.metrics import semantics
from finetune.report.collecting import Collection, Problem, ReportedRun, nested, number
from finetune.runs.families import Anchor

COLOURS = 8
"""Colours of the style sheet, besides that of baselines."""

TOLERANCE = 0.01
"""Fraction of the examples by which releases of the same data differ."""
TRAINING = ("data", "train", "examples")

Anchors = Mapping[str, Sequence[Anchor]]
"""Published figures by task."""


@dataclass(frozen=True)
class TaskView:
    """The runs of one task."""

    task: str
    """Such as `family/task`."""
    runs: tuple[ReportedRun, ...]
    """The baseline last."""
    baseline: ReportedRun | None
    """What the others are compared with."""
    comparisons: Mapping[str, Comparison]
    """By the name of the run that is compared with the baseline."""
    anchors: tuple[Anchor, ...]
    """Published figures."""

    @property
    def key(self) -> str:
        """The task's name as an id in the page."""
        return re.sub(r"[^a-z0-9]+", "-", self.task.lower()).strip("-") or "task"

    @property
    def headline(self) -> str | None:
        """The metric that stands for its runs."""
        named = (semantics.headline(run.group.metrics) for run in self.runs if run.group)
        return next((name for name in named if name), None)

    @property
    def models_language(self) -> bool:
        """Whether these are pretrainings or adaptations."""
        return all(run.models_language for run in self.runs)

    def colour(self, run: ReportedRun) -> str:
        """A colour of the style sheet: grey for the baseline, the others in order."""
        if run is self.baseline:
            return "var(--baseline)"
        others = [other for other in self.runs if other is not self.baseline]
        return f"var(--c{others.index(run) % COLOURS + 1})"

    def hollow(self, run: ReportedRun) -> bool:
        """Whether its colour is used a second time, so that its mark is a ring or a dashed line."""
        return run is not self.baseline and self.runs.index(run) >= COLOURS

    def difference(self, run: ReportedRun) -> Difference | None:
        """The headline metric of a run less that of the baseline."""
        comparison = self.comparisons.get(run.name)
        collection = comparison.differences if comparison else ()
        return next((item for item in collection if item.metric == self.headline), None)


def task_views(
    collection: Collection, baselines: Sequence[Path] = (), anchors: Anchors | None = None
) -> list[TaskView]:
    """Sort runs by task and data, in the order of their first ones.

    What was scored on the same examples belongs together, whatever it is called; of runs that do
    not say on which, those of one task with the same metrics.

    A task's baseline is the run that was named as one; else the first that started from random
    weights; else, where there are several runs, the first.

    Args:
        collection: The runs; what cannot be compared is added to its problems.
        baselines: Run folders, or folders of runs.
        anchors: Published figures by task.
    """
    groups: list[list[ReportedRun]] = []
    for run in collection.runs:
        alike = next((group for group in groups if any(_are_alike(run, one) for one in group)), [])
        groups += [] if alike else [alike]
        alike.append(run)
    named = [place.resolve() for place in baselines]
    pairs = zip(_headings(groups), groups, strict=True)
    return [_view(collection, task, runs, named, anchors or {}) for task, runs in pairs]


def _are_alike(a: ReportedRun, b: ReportedRun) -> bool:
    """Whether two runs were scored on the same examples, as far as they say."""
    if a.data and b.data:
        return a.data == b.data
    metrics = [set(run.group.metrics) for run in (a, b) if run.group]
    return a.task == b.task and (len(metrics) < 2 or bool(metrics[0] & metrics[1]))


def _headings(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """The tasks of the groups; those of one name by their training files, or numbered."""
    tasks = [runs[0].task for runs in groups]
    files = [_training_file(runs) for runs in groups]
    headings = []
    for place, (task, file) in enumerate(zip(tasks, files, strict=True)):
        others = [files[n] for n, other in enumerate(tasks) if other == task and n != place]
        which = file if file and file not in others else str(1 + tasks[:place].count(task))
        headings.append(f"{task} ({which})" if others else task)
    return headings


def _training_file(runs: Sequence[ReportedRun]) -> str | None:
    files = nested(runs[0].results, "data", "train", "files")
    first = next(iter(files if isinstance(files, list) else ()), None)
    return Path(first).name if isinstance(first, str) else None


def _view(
    collection: Collection,
    task: str,
    runs: Sequence[ReportedRun],
    named: Sequence[Path],
    anchors: Anchors,
) -> TaskView:
    baseline = _baseline(runs, named)
    others = [run for run in runs if run is not baseline]
    made = {run.name: _compared(collection, run, baseline) for run in others}
    there = {name: comparison for name, comparison in made.items() if comparison is not None}
    comparisons = dict(zip(there, corrected(list(there.values())), strict=True))
    ordered = (*others, *([] if baseline is None else [baseline]))
    published = tuple(one for one in anchors.get(runs[0].task, ()) if _is_of(one, runs))
    return TaskView(task, ordered, baseline, comparisons, published)


def _is_of(anchor: Anchor, runs: Sequence[ReportedRun]) -> bool:
    """Whether runs learnt from the data that a figure was published on, or nearly all of them."""
    if anchor.examples is None:
        return True
    counts = [_examples(run) for run in runs]
    return any(abs(count - anchor.examples) <= TOLERANCE * anchor.examples for count in counts)


def _examples(run: ReportedRun) -> float:
    """Examples of the training split and of the scored one."""
    return sum(number(run.results, *path) or 0.0 for path in (TRAINING, ("examples",)))


def _baseline(runs: Sequence[ReportedRun], named: Sequence[Path]) -> ReportedRun | None:
    if len(runs) < 2:
        return None
    places = {run.name: run.folder.path.resolve() for run in runs}
    chosen = (run for run in runs if {places[run.name], *places[run.name].parents} & {*named})
    scratch = (run for run in runs if run.from_scratch)
    return next(chosen, None) or next(scratch, None) or runs[0]


def _compared(
    collection: Collection, run: ReportedRun, baseline: ReportedRun | None
) -> Comparison | None:
    if baseline is None or run.group is None or baseline.group is None:
        return None
    if not (run.group.metrics and baseline.group.metrics):
        return None
    a, b = run.group, baseline.group
    made = collection.attempt(run.name, lambda: compare(a, b))
    if made is None:
        last = collection.problems[-1]
        what = f"it is not compared with {baseline.name}: {last.what}"
        collection.problems[-1] = Problem(run.name, what, damaged=False)
    return made


def shown(metric: str, value: float | None, *, signed: bool = False) -> str | None:
    """A value as tables have it, with a true minus; None where there is none."""
    if value is None:
        return None
    return semantics.shown(metric, value, signed=signed).replace("-", "−")


def mean_and_deviation(metric: str, run: ReportedRun) -> str | None:
    """`14.20 ± 0.87`; without a deviation where there is one seed."""
    values = run.group.values(metric) if run.group and metric in run.group.metrics else []
    if not values:
        return None
    from finetune.comparison import spread

    of = spread(values)
    deviation = "" if of.std is None else f" ± {shown(metric, of.std)}"
    return f"{shown(metric, of.mean)}{deviation}"
