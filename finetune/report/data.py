"""What the runs were made from and how: the splits of each task's data, and the circumstances."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from finetune.metrics.semantics import column_title, label, shown
from finetune.report.collecting import ReportedRun, nested, number
from finetune.report.markup import (
    Cell,
    Child,
    Column,
    Html,
    Row,
    data_table,
    details,
    element,
    joined,
)
from finetune.report.overview import run_name
from finetune.report.view import TaskView

NAMED_CLASSES = 12
"""So many classes are named with their counts."""
SHOWN_FILES = 3

Facts = Mapping[str, Any]


def data_tables(views: Sequence[TaskView]) -> Html | None:
    """The splits of each task's data: a table for each description that its runs give."""
    tables = [
        _splits_table(view.task, names, facts)
        for view in views
        for names, facts in _descriptions(view)
    ]
    return joined(tables) if tables else None


def _descriptions(view: TaskView) -> Iterator[tuple[list[str], Facts]]:
    """The data of a task's runs, with the names of the runs where these differ."""
    groups: dict[str, tuple[list[str], Facts]] = {}
    for run in view.runs:
        facts = run.results.get("data")
        if isinstance(facts, Mapping) and any(_splits(facts)):
            names, _ = groups.setdefault(_key(facts), ([], facts))
            names.append(run.name)
    for names, facts in groups.values():
        yield (names if len(groups) > 1 else []), facts


def _key(facts: Facts) -> str:
    """The same for data of the same content, wherever its files lie."""
    plain = [
        [split, {name: value for name, value in about.items() if name != "files"}]
        for split, about in _splits(facts)
    ]
    return json.dumps(plain, sort_keys=True, default=str)


def _splits(facts: Facts) -> Iterator[tuple[str, Facts]]:
    for name, about in facts.items():
        if isinstance(about, Mapping) and "examples" in about:
            yield name, about


def _splits_table(task: str, runs: Sequence[str], facts: Facts) -> Html:
    columns = [
        Column("Split"),
        Column("Examples", number=True),
        Column("Labels", about="Examples of each class, or the range of the numbers"),
        Column("Words", number=True, about="Of an example: median, and 95th percentile"),
        Column("Tokens", number=True, about="Of a sequence, truncated: median, 95th percentile"),
        Column("Cut", number=True, about="Fraction of examples that lost their end to max_length"),
        Column("Repeated", number=True, about="Examples whose texts an earlier one has"),
        Column("In train too", number=True, about="Examples whose texts are in the training split"),
    ]
    shared = facts.get("shared_texts")
    rows = [_split_row(split, about, shared) for split, about in _splits(facts)]
    whose = f" ({', '.join(runs)})" if runs else ""
    return data_table(f"{task}{whose}", columns, rows, sortable=False)


def _split_row(split: str, about: Facts, shared: Any) -> Row:
    files = [Path(str(file)).name for file in about.get("files") or ()]
    more = [f"{len(files) - SHOWN_FILES} more"] if len(files) > SHOWN_FILES else []
    names = ", ".join([*files[:SHOWN_FILES], *more])
    cut = number(about, "trimmed")
    in_train = None
    if isinstance(shared, Mapping) and split != "train":
        in_train = int(shared.get(f"train/{split}", 0))
    is_counted = "words" in about  # earlier versions counted no repetitions
    return [
        joined([split, element("span", names, class_="below") if names else None]),
        Cell(f"{about['examples']:,}", about["examples"]),
        Cell(_labels(about), class_="wraps"),
        _lengths(about.get("words")),
        _lengths(about.get("tokens")),
        Cell(None if cut is None else f"{cut:.1%}", cut),
        _count(about.get("duplicate_texts", 0) if is_counted else None, about["examples"]),
        _count(in_train, about["examples"]),
    ]


def _count(count: int | None, of: int) -> Cell:
    if not count:
        return Cell(None if count is None else "0", count)
    return Cell(joined([f"{count:,}", element("span", f"{count / of:.1%}", class_="below")]), count)


def _lengths(about: Any) -> Cell:
    median, high = number(about, "median"), number(about, "p95")
    if median is None or high is None:
        return Cell(None)
    return Cell(joined([f"{median:,.0f}", element("span", f"{high:,.0f}", class_="below")]), median)


def _labels(about: Facts) -> Child:
    classes, numbers = about.get("classes"), about.get("numbers")
    if isinstance(classes, Mapping) and classes:
        return _classes(classes)
    if isinstance(numbers, Mapping) and "mean" in numbers:
        least, mean, most = (f"{numbers[name]:,.4g}" for name in ("min", "mean", "max"))
        return f"{least} to {most}, mean {mean}"
    return None


def _classes(counts: Facts) -> str:
    total = sum(counts.values()) or 1
    named = list(counts.items())[:NAMED_CLASSES]
    words = [f"{name} {count:,} ({count / total:.0%})" for name, count in named]
    rest = len(counts) - len(named)
    return ", ".join([*words, *([f"and {rest:,} more classes"] if rest else [])])


def corpus_table(views: Sequence[TaskView]) -> Html | None:
    """The corpora of pretrainings and adaptations, a row a run; None where there are none."""
    runs = [(view, run) for view in views if view.models_language for run in view.runs]
    rows = [
        _corpus_row(view, run, run.results["data"])
        for view, run in runs
        if number(run.results, "data", "documents") is not None
    ]
    if not rows:
        return None
    columns = [
        Column("Run"),
        Column("Corpus"),
        Column("Documents", number=True, about="And of them those held out for validation"),
        Column("Repeated", number=True, about="Documents that occur more than once"),
        Column("Tokens", number=True),
        Column("Unknown", number=True, about="Fraction of tokens that are [UNK]"),
    ]
    return data_table("Corpora", columns, rows, sortable=False)


def _corpus_row(view: TaskView, run: ReportedRun, facts: Facts) -> Row:
    names = [Path(str(file)).name for file in facts.get("corpus") or ()]
    held_out = number(facts, "validation_documents")
    below = None if held_out is None else element("span", f"{held_out:,.0f}", class_="below")
    unknown, repeated = number(facts, "unknown_share"), number(facts, "duplicate_documents")
    tokens = number(facts, "tokens")
    return [
        run_name(view, run),
        Cell(", ".join(names[:SHOWN_FILES]), class_="wraps"),
        Cell(joined([f"{facts['documents']:,}", below]), facts["documents"]),
        Cell(None if repeated is None else f"{repeated:,.0f}", repeated),
        Cell(None if tokens is None else f"{tokens:,.0f}", tokens),
        Cell(None if unknown is None else f"{unknown:.2%}", unknown),
    ]


def made_table(views: Sequence[TaskView]) -> Html | None:
    """When, where and by which command each run was made; None where none says."""
    runs = [(view, run) for view in views for run in view.runs if "finished" in run.results]
    if not runs:
        return None
    columns = [
        Column("Run"),
        Column("Finished"),
        Column("Machine"),
        Column("Versions"),
        Column("Command"),
    ]
    rows = [_made_row(view, run) for view, run in runs]
    table = data_table("How the runs were made", columns, rows, hide_caption=True)
    return details(f"How the runs were made ({len(rows)})", table)


def _made_row(view: TaskView, run: ReportedRun) -> Row:
    results = run.results
    versions = results.get("versions") or {}
    shown = [f"{name} {versions[name]}" for name in ("finetune", "torch") if name in versions]
    command, folder = results.get("command"), results.get("working_folder")
    where = element("span", f"in {folder}", class_="below") if command and folder else None
    return [
        run_name(view, run),
        _date(str(results["finished"])),
        Cell(_machine(results.get("machine") or {}), class_="wraps"),
        Cell(", ".join(shown) or None, class_="wraps"),
        Cell(joined([_command(command), where]), class_="wraps"),
    ]


def _command(command: object) -> Html:
    """A command line that is broken between its words alone."""
    if not isinstance(command, str):
        return element("span", "from Python", class_="none")
    words = (element("span", word, class_="unbroken") for word in command.split())
    return element("code", joined(words, " "))


def _date(text: str) -> Cell:
    try:
        return Cell(datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M"), text)
    except ValueError:
        return Cell(text)


def _machine(about: Facts) -> str:
    memory = about.get("memory_gib")
    parts = [about.get("gpu"), about.get("processor")]
    parts += [f"{about['cores']} cores"] if about.get("cores") else []
    parts += [f"{memory:.0f} GiB"] if memory else []
    return ", ".join(str(part) for part in parts if part)


def lengths_tables(views: Sequence[TaskView]) -> Html | None:
    """The first metric of runs that write, over the words of the source: a table a task."""
    tables = [table for view in views if (table := _lengths_table(view)) is not None]
    return joined(tables) if tables else None


def _lengths_table(view: TaskView) -> Html | None:
    parts = {run.name: _by_length(run.results) for run in view.runs}
    parts = {name: found for name, found in parts.items() if found}
    if not parts:
        return None
    bins = sorted({key for found in parts.values() for key in found})
    metric = next(iter(parts.values()))[bins[0]][1]
    columns = [Column("Words of the source"), Column("Examples", number=True)]
    columns += [Column(f"{name}, {column_title(metric)}", number=True) for name in parts]
    rows: list[Row] = []
    for least, most in bins:
        found = [one.get((least, most)) for one in parts.values()]
        examples = next(int(one[0]) for one in found if one)
        words = f"{least}" if least == most else f"{least}–{most}"
        cells = [Cell(shown(metric, one[2]), one[2]) if one else Cell(None) for one in found]
        rows.append([Cell(words, least), Cell(f"{examples:,}", examples), *cells])
    return data_table(
        f"{label(metric)} of {view.task} over the length of the source", columns, rows
    )


def _by_length(results: Facts) -> dict[tuple[int, int], tuple[float, str, float]]:
    """Fewest and most words of a part -> its examples, the metric and its value."""
    found = {}
    for part in nested(results, "report", "by_source_length") or []:
        bounds = int(part["least"]), int(part["most"])
        metric = next(name for name in part if name not in ("least", "most", "examples"))
        found[bounds] = float(part["examples"]), metric, float(part[metric])
    return found
