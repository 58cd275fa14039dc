"""The parts of a report, put together from runs; each is left out where there is nothing for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from finetune.comparison import Answer
from finetune.comparison.answers import confusion
from finetune.report import costs, overview
from finetune.report.answers import answers_of
from finetune.report.collecting import Collection, Problem, ReportedRun, number
from finetune.report.confusion import matrix_table, scatter, scores_table
from finetune.report.curves import by_examples, curves, plans
from finetune.report.data import corpus_table, data_tables, lengths_tables, made_table
from finetune.report.differences import describe_settings, differences_tables
from finetune.report.hardest import examples_list, hardest
from finetune.report.markup import Child, Html, details, element, joined
from finetune.report.parts import Part
from finetune.report.texts import Texts
from finetune.report.trust import trust
from finetune.report.view import TaskView
from finetune.report.warnings import grouped, problem_list, warnings

Seeds = list[list[Answer]]


def parts(
    collection: Collection,
    views: Sequence[TaskView],
    data: Path | None,
    more: Sequence[Part],
) -> list[Part]:
    """All parts in the order of the page.

    Args:
        collection: The runs; what turns out to be damaged is added to its problems.
        views: The same by task.
        data: A folder to look for these in, in place of the one that a run was made with.
        more: Parts of other packages, which come before the settings.
    """
    body = [part for part in _body(collection, views, data) if part is not None]
    settings = _settings(views)
    problems = [*collection.problems, *(problem for view in views for problem in warnings(view))]
    first = [_overview(views)] if collection.runs else []
    if problems:
        lead = "What is missing or damaged, and what a reader must know about the figures."
        first.append(
            Part("warnings", f"Warnings ({len(grouped(problems))})", problem_list(problems), lead)
        )
    return [*first, *body, *more, *([settings] if settings else [])]


def _overview(views: Sequence[TaskView]) -> Part:
    tuned = [view for view in views if not view.models_language]
    content = [
        overview.summary(tuned) if tuned else None,
        overview.headline_chart(tuned),
        overview.overview_table(views),
        overview.anchor_table(views),
    ]
    return Part("overview", "Overview", joined(content))


def _body(
    collection: Collection,
    views: Sequence[TaskView],
    data: Path | None,
) -> Iterator[Part | None]:
    tuned = [view for view in views if not view.models_language]
    language = [view for view in views if view.models_language]
    lead = joined(
        [
            "A run less its task's baseline, as ",
            element("code", "finetune compare"),
            " gives it; p-values are corrected over all runs and metrics of the task.",
        ]
    )
    tables = [partial(make, views) for make in (data_tables, corpus_table, made_table)]
    facts = [block for table in tables if (block := collection.attempt("data", table)) is not None]
    about = "What the runs of each task were trained and scored on, and how they were made."
    yield _part("data", "Data", joined(facts) if facts else None, about)
    yield _part("comparisons", "Comparisons", overview.comparisons(tuned), lead)
    lengths = collection.attempt("lengths", partial(lengths_tables, tuned))
    about = "Without attention a decoder reads one vector, and long sources suffer."
    yield _part("lengths", "Length of the source", lengths, about)
    examples = [
        block
        for view in tuned
        if (block := collection.attempt(view.task, partial(by_examples, view)))
    ]
    about = "What more training examples are worth, and where transfer pays."
    yield _part("examples", "Learning curve", joined(examples) if examples else None, about)
    yield _curves("pretraining", "Pretraining", language, collection)
    yield _curves("curves", "Fine-tuning curves", tuned, collection)
    learn = "The layer groups that learn, by epoch; the stronger, the higher the rate of a group."
    yield _part("plan", "Plan of unfreezing", plans(tuned, collection.attempt), learn)
    answers = {run.name: _answers(collection, run) for view in tuned for run in view.runs}
    yield _part("confusion", "Confusion matrices", _confusions(collection, tuned, answers))
    points = "Examples by their gold number and the predicted one, the mean over seeds."
    yield _part("scatter", "Predicted against gold", _scatters(collection, tuned, answers), points)
    sure = "How far probabilities can be trusted, on the scored split, all seeds together."
    yield _part("calibration", "Calibration", _trust(collection, tuned, answers), sure)
    yield _hardest(collection, tuned, answers, Texts(data))
    if collection.runs:
        cost = joined([costs.speed_table(views), costs.parts(collection)])
        yield Part("cost", "Speed and cost", cost)


def _part(key: str, title: str, body: Html | None, lead: Child = None) -> Part | None:
    return None if body is None else Part(key, title, body, lead)


def _curves(key: str, title: str, views: Sequence[TaskView], collection: Collection) -> Part | None:
    drawn = []
    for view in views:
        block = collection.attempt(view.task, partial(curves, view))
        if block is not None:
            drawn += [element("h3", view.task), block]
    lead = (
        "Line: mean over seeds; band: from the lowest to the highest seed; shades: the phases of "
        "unfreezing of the first run shown that has some. Drag to zoom, click a run to hide it."
    )
    return Part(key, title, joined(drawn), lead) if drawn else None


def _answers(collection: Collection, run: ReportedRun) -> tuple[str, Seeds]:
    return collection.attempt(run.name, lambda: answers_of(run)) or ("", [])


def _confusions(
    collection: Collection, views: Sequence[TaskView], answers: Mapping[str, tuple[str, Seeds]]
) -> Html | None:
    blocks = []
    for view in views:
        tables = []
        for run in view.runs:
            if _chooses(run):
                continue
            matrix = collection.attempt(run.name, partial(confusion, answers[run.name][1]))
            if matrix is not None:
                fold = details("Scores of each class", scores_table(matrix))
                tables.append(element("div", matrix_table(matrix, run.name), fold))
        if tables:
            blocks += [element("h3", view.task), element("div", *tables, class_="matrices")]
    return joined(blocks) if blocks else None


def _scatters(
    collection: Collection, views: Sequence[TaskView], answers: Mapping[str, tuple[str, Seeds]]
) -> Html | None:
    blocks = []
    for view in views:
        plots = [
            collection.attempt(run.name, partial(scatter, answers[run.name][1], run.name, colour))
            for run in view.runs
            for colour in [view.colour(run)]
        ]
        drawn = [plot for plot in plots if plot is not None]
        if drawn:
            blocks += [element("h3", view.task), element("div", *drawn, class_="matrices")]
    return joined(blocks) if blocks else None


def _trust(
    collection: Collection, views: Sequence[TaskView], answers: Mapping[str, tuple[str, Seeds]]
) -> Html | None:
    blocks = []
    for view in views:
        seeds = {run.name: answers[run.name][1] for run in view.runs}
        block = collection.attempt(view.task, partial(trust, view, seeds))
        if block is not None:
            blocks += [element("h3", view.task), block]
    return joined(blocks) if blocks else None


def _chooses(run: ReportedRun) -> bool:
    """Whether answers are letters of options, which are no classes: each is a sequence to read."""
    sequences = number(run.results, "data", "train", "sequences")
    examples = number(run.results, "data", "train", "examples")
    if not sequences or not examples:
        return False
    return sequences >= 2 * examples and sequences % examples == 0


def _hardest(
    collection: Collection,
    views: Sequence[TaskView],
    answers: Mapping[str, tuple[str, Seeds]],
    texts: Texts,
) -> Part | None:
    blocks = []
    for view in views:
        folds = [
            fold
            for run in view.runs
            if (
                fold := _hardest_of(collection, run, *answers[run.name], texts, run is view.runs[0])
            )
        ]
        if folds:
            blocks += [element("h3", view.task), *folds]
    if not blocks:
        return None
    lead = "Wrong answers that the net is surest of, on average over seeds."
    return Part("examples", "Hardest examples", joined(blocks), lead)


def _hardest_of(
    collection: Collection, run: ReportedRun, split: str, seeds: Seeds, texts: Texts, first: bool
) -> Html | None:
    hard = collection.attempt(run.name, lambda: hardest(seeds)) if seeds else None
    if not hard:
        return None
    known = collection.attempt(run.name, lambda: texts.of(run, split, [one.id for one in hard]))
    note = None
    if known is None:
        what = f"texts of its examples are not shown: {collection.problems[-1].what}"
        collection.problems[-1] = Problem(run.name, what, damaged=False)
        note = element("p", "The data are not there any more: ids and answers only.", class_="note")
    shown = collection.attempt(run.name, lambda: examples_list(hard, known))
    return None if shown is None else details(run.name, note, shown, open_=first, class_="run")


def _settings(views: Sequence[TaskView]) -> Part | None:
    tables = differences_tables(views)
    every = [
        details(run.name, describe_settings(run), class_="run")
        for view in views
        for run in view.runs
        if run.config
    ]
    if not every:
        return None
    lead = "Settings in which the runs of a task differ; below, all settings of each run."
    return Part("settings", "Settings", joined([*tables, details("All settings", *every)]), lead)
