"""A plan of unfreezing as a picture and as a table: which layer groups learn when, how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.report.markup import Cell, Child, Column, Html, data_table, details
from finetune.report.parts import figure
from finetune.report.series import named

Row = Mapping[str, Any]


def group_order(plan: Sequence[Row]) -> list[str]:
    """Every layer group of a plan, the head first."""
    seen = {name: None for row in plan for name in row["groups"]}

    def height(name: str) -> float:
        if name == "embeddings":
            return 0
        return int(name.rpartition("_")[2]) if name.rpartition("_")[2].isdecimal() else 1e9

    return sorted(seen, key=height, reverse=True)


def plan_figure(plan: Sequence[Row], title: Child, colour: str) -> Html:
    """Layer groups over epochs: filled where a group learns, the stronger the higher its rate."""
    cells = [
        {
            "group": name,
            "begin": row["epochs"][0],
            "end": row["epochs"][1],
            "phase": row["phase"],
            "peak": ((row["rates"] or {}).get(name) or {}).get("peak"),
        }
        for row in plan
        for name in row["groups"]
    ]
    words = "; ".join(
        f"phase {row['phase']}, epochs {row['epochs'][0]:g} to "
        f"{'the end' if row['epochs'][1] is None else format(row['epochs'][1], 'g')}: "
        f"{named(row['groups'])}"
        for row in plan
    )
    spec = {"groups": group_order(plan), "cells": cells, "colour": colour}
    return figure("phases", title, words, spec)


def plan_rates(plan: Sequence[Row]) -> Html:
    """Phases with their steps, groups, parameters and rates."""
    columns = [
        Column("Phase", number=True),
        Column("Epochs", number=True),
        Column("Steps", number=True),
        Column("Trainable"),
        Column("Parameters", number=True),
        Column("Peak rates", number=True),
    ]
    rows = [
        [
            Cell(row["phase"], row["phase"]),
            _stretch(*row["epochs"]),
            _stretch(*row["steps"]),
            named(row["groups"]),
            Cell(f"{row['parameters']:,}", row["parameters"]),
            _peaks(row),
        ]
        for row in plan
    ]
    return details("The plan as a table", data_table("Plan", columns, rows, hide_caption=True))


def _stretch(begin: float, end: float | None) -> str:
    return f"{begin:g} on" if end is None else f"{begin:g}–{end:g}"


def _peaks(row: Row) -> str | None:
    peaks = [points["peak"] for points in (row["rates"] or {}).values() if points]
    if not peaks:
        return None
    low, high = min(peaks), max(peaks)
    return f"{high:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
