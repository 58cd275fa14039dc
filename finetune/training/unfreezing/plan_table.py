"""A plan of unfreezing as it is logged, and printed before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.console.output import counted
from finetune.console.tables import aligned
from finetune.training.unfreezing.rates import RatePlan

Row = dict[str, Any]


def plan_rows(
    rates: RatePlan, peaks: Mapping[str, float], parameters: Mapping[str, int]
) -> list[Row]:
    """The plan as plain data, a row a phase: what is logged.

    Args:
        rates: The plan with its pace and schedule.
        peaks: Peak rate of each group, by name, lowest first.
        parameters: Number of parameters of each group, by name.

    Returns:
        Rows with `phase` (from 1), `epochs` and `steps` [begin, end], None where the end is not
        known; `groups` (names), `parameters` (trainable), `boundary`, and `rates`: name →
        {"start", "peak", "end"}, or None where not known.
    """
    return [
        {
            "phase": index + 1,
            "epochs": [phase.start, rates.pace.epochs if phase.end is None else phase.end],
            "steps": list(rates.pace.steps(rates.plan)[index]),
            "groups": [rates.plan.names[group] for group in phase.groups],
            "parameters": sum(parameters[rates.plan.names[group]] for group in phase.groups),
            "boundary": phase.boundary,
            "rates": _rates(rates, index, peaks),
        }
        for index, phase in enumerate(rates.plan.phases)
    ]


def _rates(
    rates: RatePlan, index: int, peaks: Mapping[str, float]
) -> dict[str, dict[str, float] | None]:
    factors = rates.phase_factors(index)
    named: dict[str, dict[str, float] | None] = {}
    for group in rates.plan.phases[index].groups:
        name, triple = rates.plan.names[group], factors[group]
        # No triple where the clock decides: the group then has no rates to show.
        points = zip(("start", "peak", "end"), triple or (), strict=False)
        named[name] = {point: factor * peaks[name] for point, factor in points} or None
    return named


def plan_table(rows: Sequence[Row], policy: str, cached: Mapping[int, str] | None = None) -> str:
    """The plan as text of at most 80 columns: the phases, then the rates.

    Args:
        rows: What `plan_rows` gave.
        policy: What the plan is called.
        cached: Boundary → what is cached of its prefix ("0.31 GiB"); None leaves the column out.
    """
    head = ["phase", "epochs", "steps", "trainable", "parameters", "boundary"]
    lines = [[*_phase_cells(row)] for row in rows]
    if cached is not None:
        head.append("cache")
        for row, line in zip(rows, lines, strict=True):
            line.append(cached.get(row["boundary"], "-"))
    rate_head = ["phase", "group", "rate at start", "peak", "end"]
    rate_lines = [cells for row in rows for cells in _rate_cells(row)]
    count = len(rows)
    title = f"unfreezing: {policy}, {counted(count, 'phase')}"
    return "\n".join(
        [
            title,
            *aligned([head, *lines], "><><>><"),
            "",
            *aligned([rate_head, *rate_lines], "><>>>"),
        ]
    )


def _phase_cells(row: Row) -> list[str]:
    return [
        str(row["phase"]),
        _stretch(*row["epochs"]),
        _count(*row["steps"]),
        _row_of_names(row["groups"]),
        f"{row['parameters']:,}",
        str(row["boundary"]),
    ]


def _stretch(begin: float, end: float | None) -> str:
    """`0-1.5`, without digits that say nothing."""
    return f"{_short(begin)} on" if end is None else f"{_short(begin)}-{_short(end)}"


def _short(epochs: float) -> str:
    return str(round(epochs, 3)).removesuffix(".0")


def _count(begin: int, end: int | None) -> str:
    return "rest" if end is None else str(end - begin)


def _row_of_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def _rate_cells(row: Row) -> list[list[str]]:
    """A line a group, neighbours with the same rates together, the topmost first."""
    alike: list[tuple[list[str], dict[str, float] | None]] = []
    for name, points in row["rates"].items():
        if alike and alike[-1][1] == points:
            alike[-1][0].append(name)
        else:
            alike.append(([name], points))
    return [
        [str(row["phase"]) if number == 0 else "", _row_of_names(names), *_points(points)]
        for number, (names, points) in enumerate(reversed(alike))
    ]


def _points(points: dict[str, float] | None) -> list[str]:
    if points is None:
        return ["by the clock"] * 3
    return [f"{points[point]:.2e}" for point in ("start", "peak", "end")]
