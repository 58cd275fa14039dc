"""What a reader must know first: gaps, degenerate runs, scores at chance level, divergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finetune.metrics.semantics import goodness, headline, label
from finetune.report.collecting import Problem, ReportedRun, number
from finetune.report.markup import Html, element
from finetune.report.view import TaskView, shown

MUCH_CUT = 0.2
"""Share of texts that lost their end above which it is reported."""

MOST_PLACES = 4
"""So many runs with the same warning are named."""


def warnings(view: TaskView) -> Iterator[Problem]:
    """What the results of a task's runs themselves tell of trouble."""
    for run in view.runs:
        for what in (
            *_degenerate(run),
            *_at_chance(run),
            *_below_elementary(run),
            *_diverged(run),
            *_cut(run),
            *_foreign(run),
        ):
            yield Problem(run.name, what, damaged=False)


def _degenerate(run: ReportedRun) -> Iterator[str]:
    seeds = [str(seed.seed) for seed in run.seeds if seed.results.get("collapsed")]
    if seeds:
        yield f"degenerate: one answer for every example with seed {', '.join(seeds)}"
    if "fixed_answer" in run.results:
        yield f"not trained: every example is answered {run.results['fixed_answer']!r}"


def _at_chance(run: ReportedRun) -> Iterator[str]:
    metric = headline(run.group.metrics if run.group else [])
    if metric is None or "fixed_answer" in run.results:
        return
    value = run.mean("metrics", metric)
    baseline = run.trivial(metric)
    if (
        value is not None
        and baseline is not None
        and goodness(metric, value) <= goodness(metric, baseline)
    ):
        yield (
            f"not above the trivial baseline in {label(metric)}: {shown(metric, value)} against "
            f"{shown(metric, baseline)}"
        )


def _below_elementary(run: ReportedRun) -> Iterator[str]:
    metric = headline(run.group.metrics if run.group else [])
    value = None if metric is None else run.mean("metrics", metric)
    if metric is None or value is None or (best := run.elementary(metric)) is None:
        return
    name, bar = best
    if goodness(metric, value) < goodness(metric, bar):
        yield (
            f"below the baseline {label(name)} in {label(metric)}: {shown(metric, value)} against "
            f"{shown(metric, bar)}"
        )


def _diverged(run: ReportedRun) -> Iterator[str]:
    steps = [
        int(line["step"])
        for seed in run.seeds
        for line in seed.lines
        if line.get("train/loss", 0.0) is None
    ]
    if steps:
        yield f"the training loss is not finite from step {min(steps):,} on"


def _cut(run: ReportedRun) -> Iterator[str]:
    cut = run.mean("data", "validation", "trimmed")
    if cut is not None and cut > MUCH_CUT:
        length = number(run.config, "max_length")
        limit = "the length" if length is None else f"{length:.0f} tokens"
        yield f"{100 * cut:.0f} % of the validation texts were truncated to {limit}"


def _foreign(run: ReportedRun) -> Iterator[str]:
    for seed in run.seeds:
        for split in seed.folder.foreign_splits(seed.results):
            of = "" if seed.folder == run.folder else f"{seed.folder.path.name}/"
            yield (f"{of}{seed.folder.foreign(split)}; finetune evaluate rewrites them")


def grouped(problems: Sequence[Problem]) -> dict[tuple[str, bool], list[str]]:
    """Problems of the same words together: those and whether something is left out -> places."""
    places: dict[tuple[str, bool], list[str]] = {}
    for problem in dict.fromkeys(problems):
        places.setdefault((problem.what, problem.damaged), []).append(problem.place)
    return places


def problem_list(problems: Sequence[Problem]) -> Html:
    """Problems as a list, what is left out first; those of several runs once, with their number."""
    ordered = sorted(grouped(problems).items(), key=lambda item: not item[0][1])
    items = [
        element(
            "li",
            element("b", ", ".join(places[:MOST_PLACES])),
            f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else None,
            f" ({len(places)} runs)" if len(places) > 1 else None,
            ": ",
            what,
            class_="damaged" if damaged else None,
        )
        for (what, damaged), places in ordered
    ]
    return element("ul", *items, class_="problems")
