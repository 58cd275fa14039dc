"""Figures over the layers of a net, and tables whose cells are shaded by what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.report.inside.files import figure_of
from finetune.report.markup import Column, Html, Row, data_table, details, element
from finetune.report.parts import figure
from finetune.report.view import COLOURS

Summary = Mapping[str, Any]
"""`mean` and `std`."""
SHORT = 8
"""Rows of a table that is shown at once; a longer one is folded."""
WIDE = 6
"""Columns from which on a shaded table is set smaller."""


def short_name(layer: str) -> str:
    """A layer's name where space is short: `embeddings` -> `emb`, `block 3` -> `3`."""
    return {"embeddings": "emb", "scalar mix": "mix"}.get(layer, layer.removeprefix("block "))


def colour(index: int) -> str:
    """A colour of the style sheet for the n-th of several, from 0."""
    return f"var(--c{index % COLOURS + 1})"


def series(name: str, index: int, points: Mapping[str, Summary | None]) -> dict[str, Any]:
    """A line of a figure.

    Args:
        name: What it is of.
        index: Which of the lines it is, from 0: gives the colour; later ones are dashed.
        points: Name on the axis -> mean and deviation; None where there is none.
    """
    values = [
        (at, figure_of(one["mean"]), figure_of(one["std"])) for at, one in points.items() if one
    ]
    return {
        "name": name,
        "colour": colour(index),
        "dashed": index >= COLOURS,
        "points": [[at, mean, std or 0.0] for at, mean, std in values if mean is not None],
    }


def layers_figure(
    kind: str,
    title: str,
    names: Sequence[str],
    lines: Sequence[Mapping[str, Any]],
    *,
    percent: bool,
    note: str | None = None,
    **more: Any,
) -> Html:
    """Lines (`layers`) or bars (`shares`) over names, each with its deviation.

    Args:
        kind: `layers` or `shares`.
        title: Its heading.
        names: Along the axis.
        lines: What `series` made.
        percent: Whether the values are fractions, shown in percent.
        note: A remark below it.
        more: `apart` (a name whose points no line leads to), `rules` (`y`, `label`), `domain`.
    """
    scale = 100 if percent else 1
    values = "; ".join(
        f"{one['name']}: "
        + ", ".join(f"{at} {scale * mean:.{1 if percent else 2}f}" for at, mean, _ in one["points"])
        for one in lines
    )
    axis = {"names": list(names), "short": [short_name(name) for name in names]}
    spec = {**axis, "series": list(lines), "percent": percent, **more}
    return figure(kind, title, f"{title}. {values}", spec, note)


def layer_table(caption: str, groups: Sequence[str], rows: Sequence[Row]) -> Html:
    """Numbers by layer, a column a group; folded where there are many layers."""
    columns = [Column("Layer"), *(Column(name, number=True) for name in groups)]
    long = len(rows) > SHORT
    table = data_table(caption, columns, rows, sortable=False, hide_caption=long)
    return details(f"{caption}, as a table ({len(rows)} rows)", table) if long else table


@dataclass(frozen=True)
class Matrix:
    """Numbers by row and column."""

    title: str
    """What they are."""
    below: str
    """More about them."""
    corner: str
    """What rows and columns are."""
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    """None is a dash."""


def shaded_table(
    matrix: Matrix, written: Callable[[float], str], shade: Callable[[float], float]
) -> Html:
    """A matrix as a table with its numbers: the stronger the colour, the larger.

    Args:
        matrix: What is shown.
        written: A value as text.
        shade: A value as a strength, 0 to 1.
    """
    rows, columns, values = matrix.rows, matrix.columns, matrix.values
    heads = [element("th", name, scope="col") for name in columns]
    lines = [
        element("tr", element("th", name, scope="row"), *(_shaded(v, written, shade) for v in row))
        for name, row in zip(rows, values, strict=True)
    ]
    first = element("td", element("span", matrix.corner), class_="corner")
    table = element(
        "table",
        element("caption", matrix.title, element("span", matrix.below, class_="below")),
        element("thead", element("tr", first, *heads)),
        element("tbody", *lines),
        class_="matrix heat small" if len(columns) >= WIDE else "matrix heat",
    )
    label = f"{matrix.title}, {matrix.below}"
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def grid(matrices: Sequence[Matrix], tables: Sequence[Html]) -> Html:
    """Tables side by side, as many as fit."""
    most = max((len(matrix.columns) for matrix in matrices), default=0)
    return element("div", *tables, class_="matrices wide" if most >= WIDE else "matrices many")


def _shaded(
    value: float | None, written: Callable[[float], str], shade: Callable[[float], float]
) -> Html:
    if value is None:
        return element("td", "–")
    share = min(1.0, max(0.0, shade(value)))
    return element("td", written(value), style=f"--share:{share:.3f}")
