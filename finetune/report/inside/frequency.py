"""Loss of a pretraining run by how often a token was seen, beside that of frequencies alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.report.inside.files import InspectionFile, blocks, figure_of
from finetune.report.inside.layers import layers_figure, series
from finetune.report.markup import Cell, Column, Html, Row, data_table, element, joined
from finetune.report.parts import Part

LEAD = (
    "Masked tokens of held-out documents, by how often the token stands in the training documents. "
    "“Frequencies alone” is the loss of a model that knows these counts and nothing else: what "
    "lies between the two was learnt from the context."
)
LOSSES = {"loss": "loss", "unigram_loss": "frequencies alone"}


def frequency_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect frequency` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("frequency", "Loss by frequency", blocks(files, _block), LEAD)


def _block(file: InspectionFile) -> Html:
    content = file.content
    bins = {_seen(int(one["least"]), int(one["most"])): one for one in content["bins"]}
    lines = [_line(key, bins) for key in LOSSES]
    lines[1] |= {"colour": "var(--baseline)", "dashed": True}
    names = list(bins)
    plot = layers_figure("layers", "Loss by times seen, nats", names, lines, percent=False)
    return joined([element("h3", file.name), plot, _table(bins, content)])


def _line(key: str, bins: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    points = {
        name: None if one[key] is None else {"mean": one[key], "std": 0.0}
        for name, one in bins.items()
    }
    return series(LOSSES[key], 0, points)


def _seen(least: int, most: int) -> str:
    if most == 0:
        return "never"
    return f"{_compact(least)}–{_compact(most)}"


def _compact(count: int) -> str:
    """`9999` -> `9k`: the first digits say enough of a bound that is a power of ten."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count // size}{letter}"
    return str(count)


def _table(bins: Mapping[str, Mapping[str, Any]], every: Mapping[str, Any]) -> Html:
    columns = [
        Column("Seen in training"),
        Column("Kinds", number=True, about="Different tokens of the vocabulary"),
        Column("Masked", number=True),
        *(Column(title.capitalize(), number=True) for title in LOSSES.values()),
        Column("Accuracy, percent", number=True),
    ]
    rows: list[Row] = [
        [name, Cell(f"{int(one['kinds']):,}"), *_cells(one)] for name, one in bins.items()
    ]
    rows.append(["all", None, *_cells(every)])
    return data_table("Masked tokens by times seen", columns, rows, sortable=False)


def _cells(one: Mapping[str, Any]) -> list[Cell]:
    losses = [None if one[key] is None else figure_of(one[key]) for key in LOSSES]
    right = None if one["accuracy"] is None else figure_of(one["accuracy"])
    return [
        Cell(f"{int(one['tokens']):,}"),
        *(Cell(None if loss is None else f"{loss:.3f}") for loss in losses),
        Cell(None if right is None else f"{100 * right:.1f}"),
    ]
