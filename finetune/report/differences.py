"""In which settings the runs of a task differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.report.collecting import ReportedRun
from finetune.report.markup import Cell, Column, Html, Row, data_table, element
from finetune.report.view import TaskView
from finetune.runs.inputs import differing


def differences_tables(views: Sequence[TaskView]) -> list[Html]:
    """Tables of what differs: one of all tasks that have a single run beside their baseline.

    A task with more runs has one of its own, with a column a run.
    """
    pairs: dict[tuple[str, str], tuple[list[Any], list[str]]] = {}
    tables = []
    for view in views:
        runs = [run for run in view.runs if run.config]
        different = differing([run.config for run in runs]) if len(runs) > 1 else {}
        if len(runs) != 2:
            tables += [_table(view.task, runs, different)] if different else []
            continue
        for key, values in different.items():
            pairs.setdefault((key, repr(values)), (values, []))[1].append(view.task)
    return [*([_pairs_table(pairs)] if pairs else []), *tables]


def _table(task: str, runs: Sequence[ReportedRun], different: Mapping[str, list[Any]]) -> Html:
    columns = [Column("Setting"), *(Column(run.name) for run in runs)]
    rows: list[Row] = [
        [element("code", key), *map(_cell, values)] for key, values in different.items()
    ]
    return data_table(task, columns, rows)


def _pairs_table(pairs: Mapping[tuple[str, str], tuple[list[Any], list[str]]]) -> Html:
    columns = [Column("Setting"), Column("Run"), Column("Baseline"), Column("Tasks")]
    rows: list[Row] = [
        [element("code", key), *map(_cell, values), Cell(", ".join(tasks), class_="wraps")]
        for (key, _), (values, tasks) in pairs.items()
    ]
    return data_table("Runs and their baselines", columns, rows)


def _cell(value: Any) -> Cell:
    if value is ...:
        return Cell(element("span", "not recorded", class_="none"))
    return Cell(element("code", _written(value)))


def _written(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def describe_settings(run: ReportedRun) -> Html:
    """All settings of a run as text."""
    from finetune.settings.values import write

    return element("pre", write(run.config))
