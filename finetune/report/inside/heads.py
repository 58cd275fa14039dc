"""What kind of looking each head does, a matrix of layers by heads a figure; attention maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from finetune.console.output import counted
from finetune.report.inside.files import InspectionFile, blocks, figure_of
from finetune.report.inside.layers import WIDE, Matrix, grid, shaded_table
from finetune.report.markup import Cell, Column, Html, Row, data_table, details, element, joined
from finetune.report.parts import Part

CAVEAT = (
    "Averages over the tokens of many texts (Clark et al., 2019), beside those of a head that "
    "looks at all tokens alike. They do not say what a head is needed for: attention on [SEP] is "
    "mostly a way of doing nothing (Clark et al., 2019; Kobayashi et al., 2020), and a head that "
    "looks important by them can often be removed without loss (Michel et al., 2019)."
)


class Figure(NamedTuple):
    """A figure of a head."""

    title: str
    head: str
    """The title in a table."""
    scale: str
    """Figures of one scale are shaded alike."""
    written: Callable[[float], str]
    compact: Callable[[float], str]
    """Where there are many heads."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _whole_percent(value: float) -> str:
    return f"{100 * value:.0f}"


_NUMBER = ("{:.2f}".format, "{:.1f}".format)
_SHARE = (_percent, _whole_percent)


FIGURES: dict[str, Figure] = {
    "distance": Figure("distance, tokens", "Distance", "distance", *_NUMBER),
    "entropy": Figure("entropy, nats", "Entropy", "entropy", *_NUMBER),
    "cls_entropy": Figure("entropy of what [CLS] looks at, nats", "of [CLS]", "entropy", *_NUMBER),
    "cls": Figure("attention on [CLS], %", "[CLS] %", "share", *_SHARE),
    "sep": Figure("attention on [SEP], %", "[SEP] %", "share", *_SHARE),
    "self": Figure("attention on the token itself, %", "Self %", "share", *_SHARE),
    "previous": Figure("attention on the previous token, %", "Previous %", "share", *_SHARE),
    "next": Figure("attention on the next token, %", "Next %", "share", *_SHARE),
}
"""Field of heads.json -> how it is shown."""

Heads = Mapping[tuple[int, int], Mapping[str, float | None]]
"""Layer and head, both from 1 -> figures."""


def heads_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect heads` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("heads", "Heads", blocks(files, _block), CAVEAT)


def _block(file: InspectionFile) -> Html:
    content = file.content
    heads = {
        (int(one["layer"]), int(one["head"])): {key: figure_of(one[key]) for key in FIGURES}
        for one in content["heads"]
    }
    uniform = {key: figure_of(content["uniform"][key]) for key in FIGURES}
    matrices = {key: _matrix(heads, uniform, key) for key in FIGURES}
    tables = [
        shaded_table(matrix, _written(matrix, key), _shade(heads, key))
        for key, matrix in matrices.items()
    ]
    text = (
        f"{counted(content['sequences'], 'text')} of {content.get('texts', 'a file')}, "
        f"{content['tokens']:,} tokens. The stronger the colour, the larger: distances, entropies "
        "and fractions each have a scale of their own."
    )
    note = element("p", text, class_="note")
    fold = details(f"All heads as a table ({len(heads)})", _table(heads, uniform, file.name))
    shown = grid(list(matrices.values()), tables)
    return joined([element("h3", file.name), shown, note, fold])


def _matrix(heads: Heads, uniform: Mapping[str, float | None], key: str) -> Matrix:
    figure = FIGURES[key]
    layers, numbers = (sorted({head[side] for head in heads}) for side in (0, 1))
    values = [[heads[layer, head][key] for head in numbers] for layer in layers]
    alike = uniform[key]
    below = f"layers by heads; a uniform head: {'–' if alike is None else figure.written(alike)}"
    rows, columns = (list(map(str, names)) for names in (layers, numbers))
    return Matrix(figure.title, below, "layer", rows, columns, values)


def _written(matrix: Matrix, key: str) -> Callable[[float], str]:
    figure = FIGURES[key]
    return figure.compact if len(matrix.columns) >= WIDE else figure.written


def _shade(heads: Heads, key: str) -> Callable[[float], float]:
    """By the largest value of all figures of the same scale; small fractions by the root."""
    scale = FIGURES[key].scale
    keys = [key for key, figure in FIGURES.items() if figure.scale == scale]
    most = max((one[key] or 0.0 for one in heads.values() for key in keys), default=0.0)
    power = 0.5 if scale == "share" else 1.0
    return lambda value: (max(0.0, value) / most) ** power if most > 0 else 0.0


def _table(heads: Heads, uniform: Mapping[str, float | None], name: str) -> Html:
    columns = [Column("Layer and head"), *(Column(f.head, number=True) for f in FIGURES.values())]
    rows: list[Row] = [
        [Cell(f"{layer}.{head}", 1000.0 * layer + head), *_cells(figures)]
        for (layer, head), figures in heads.items()
    ]
    rows.append([Cell("uniform", ""), *_cells(uniform)])
    return data_table(f"Heads of {name}", columns, rows)


def _cells(figures: Mapping[str, float | None]) -> list[Cell]:
    values: list[tuple[Any, float | None]] = [(FIGURES[key], figures[key]) for key in FIGURES]
    return [Cell(None if v is None else figure.written(v), v) for figure, v in values]


def attention_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect attention` found.

    Raises:
        DataError: A file holds no map.
    """
    from finetune.inspection import attention_part as drawn
    from finetune.inspection.attention_page import CAVEAT

    pieces = [one.draw(lambda file: drawn(_map(file.content))) for one in files]
    body = [
        joined([element("h3", one.name), Html(piece.html)])
        for one, piece in zip(files, pieces, strict=True)
    ]
    style, script = pieces[0].css, pieces[0].js
    return Part("attention", "Attention maps", joined(body), CAVEAT, script, style)


def _map(content: Mapping[str, Any]) -> Any:
    import numpy as np

    from finetune.inspection import AttentionMap

    tokens, segments = tuple(map(str, content["tokens"])), tuple(content["segments"])
    weights = np.asarray(content["weights"], np.float32)
    if weights.ndim != 4 or weights.shape[2:] != (len(tokens), len(tokens)):
        raise ValueError(
            f"expected weights by layer, head and {len(tokens)} tokens twice, got shape "
            f"{weights.shape}"
        )
    if len(segments) != len(tokens) or not np.isfinite(weights).all():
        raise ValueError("expected a segment for each token, and finite weights")
    return AttentionMap(tokens, segments, weights)


ALIGNMENT = (
    "What a decoder looked at while it wrote (Bahdanau et al., 2015, figure 3): the fraction of "
    "cross-attention of each token that was written on each token that was read, the mean over "
    "the heads of the last block. Above the encoder's first block a position is a mixture of "
    "tokens; a weight says what was mixed in, not why."
)


def alignment_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect alignment` found.

    Raises:
        DataError: A file holds no map.
    """
    return Part("alignment", "Alignment", blocks(files, _alignment), ALIGNMENT)


def _alignment(file: InspectionFile) -> Html:
    content = file.content
    source, target = (list(map(str, content[side])) for side in ("source", "target"))
    values = [[figure_of(weight) for weight in row] for row in content["alignment"][-1]]
    if len(values) != len(target) or any(len(row) != len(source) for row in values):
        raise ValueError(f"expected weights of {len(target)} by {len(source)} tokens")
    matrix = Matrix("attention, %", "written by read", "written", target, source, values)
    return joined([element("h3", file.name), shaded_table(matrix, _whole_percent, float)])
