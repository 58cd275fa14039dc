"""Similarity of the layers of several nets, and the nearest words in an embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.report.inside.files import InspectionFile, blocks, figure_of, short
from finetune.report.inside.layers import (
    Matrix,
    Summary,
    grid,
    layer_table,
    layers_figure,
    series,
    shaded_table,
    short_name,
)
from finetune.report.markup import Cell, Column, Html, Row, data_table, details, element, joined
from finetune.report.parts import Part

NEAREST = "By the cosine of their vectors in the embedding, before any layer has read the context."
CAVEAT = (
    "Linear CKA (Kornblith et al., 2019), 0 to 1. It is near 1 for any two layers where there are "
    "few examples for each feature, and a few directions of large variance can decide it, so that "
    "layers that are alike by it may differ in what can be read off them (Davari et al., 2023)."
)
OPEN = 6
"""Matrices that are shown at once; more are folded."""


def similarity_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect similarity` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("similarity", "Similarity of layers", blocks(files, _block), CAVEAT)


def _block(file: InspectionFile) -> Html:
    content = file.content
    groups: Mapping[str, Sequence[Summary]] = content["groups"]
    names = _layers(max(map(len, groups.values())))
    lines = [
        series(name, index, dict(zip(names, of, strict=False)))
        for index, (name, of) in enumerate(groups.items())
    ]
    plot = layers_figure(
        "layers", "CKA of the same layer", names, lines, percent=False, domain=[0, 1]
    )
    plots = joined([plot, _table(groups, names)])
    matrices = _matrices(content)
    tables = [shaded_table(one, "{:.2f}".format, lambda value: value) for one in matrices]
    shown = grid(matrices, tables)
    fold = details(f"Layers by layers ({len(matrices)})", shown, open_=len(matrices) <= OPEN)
    return joined([element("h3", _title(content)), plots, fold, _note(content)])


def _layers(count: int) -> list[str]:
    from finetune.inspection.layers import layer_names

    return layer_names(count)


def _title(content: Mapping[str, Any]) -> str:
    how = (
        "each token"
        if content["pooling"] == "tokens"
        else f"a vector a text ({content['pooling']})"
    )
    return f"{content['texts']}: {how}"


def _table(groups: Mapping[str, Sequence[Summary]], names: Sequence[str]) -> Html:
    rows: list[Row] = [
        [name, *(_cell(of[layer]) if layer < len(of) else Cell(None) for of in groups.values())]
        for layer, name in enumerate(names)
    ]
    return layer_table("CKA of the same layer", list(groups), rows)


def _cell(summary: Summary) -> Cell:
    mean = figure_of(summary["mean"])
    spread = f" ± {summary['std']:.3f}" if len(summary["values"]) > 1 else ""
    return Cell(None if mean is None else f"{mean:.3f}{spread}", mean)


def _matrices(content: Mapping[str, Any]) -> list[Matrix]:
    """A matrix for each pair of groups: the mean over the pairs of their runs."""
    names = content.get("names") or [short(run) for run in content["runs"]]
    together: dict[tuple[str, str], list[npt.NDArray[np.float64]]] = {}
    for pair in content["pairs"]:
        key = (str(names[pair["first"]]), str(names[pair["second"]]))
        together.setdefault(key, []).append(np.asarray(pair["cka"], np.float64))
    return [_matrix(*key, np.mean(each, axis=0), len(each)) for key, each in together.items()]


def _matrix(first: str, second: str, cka: npt.NDArray[np.float64], pairs: int) -> Matrix:
    within = first == second
    title = f"within {first}" if within else f"{first} – {second}"
    sides = [] if within else ["rows – columns"]
    below = ", ".join([*sides, f"mean of {pairs} pairs" if pairs > 1 else "one pair"])
    rows, columns = ([short_name(name) for name in _layers(count)] for count in cka.shape)
    values = [[figure_of(value) for value in row] for row in cka.tolist()]
    return Matrix(title, below, "layer", rows, columns, values)


def _note(content: Mapping[str, Any]) -> Html:
    compared = sorted({int(pair["rows"]) for pair in content["pairs"]})
    sizes = " to ".join(f"{count:,}" for count in (compared[:1] + compared[-1:])[: len(compared)])
    text = f"{sizes} examples are compared. ± and bars: one standard deviation over pairs of runs."
    return element("p", text, class_="note")


def words_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect words` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("words", "Nearest words", blocks(files, _nearest_words), NEAREST)


def _nearest_words(file: InspectionFile) -> Html:
    tables = [_nearest_table(one) for one in file.content["words"]]
    return joined([element("h3", file.name), element("div", *tables, class_="matrices many")])


def _nearest_table(one: Mapping[str, Any]) -> Html:
    pieces = " ".join(map(str, one["pieces"]))
    caption = str(one["word"]) if pieces == one["word"] else f"{one['word']} ({pieces})"
    columns = [Column("Nearest"), Column("Cosine", number=True)]
    near = [(str(each["token"]), figure_of(each["cosine"])) for each in one["neighbours"]]
    rows: list[Row] = [
        [token, Cell(None if cosine is None else f"{cosine:.3f}", cosine)] for token, cosine in near
    ]
    return data_table(caption, columns, rows, sortable=False)
