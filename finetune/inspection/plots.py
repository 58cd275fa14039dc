"""PNG plots for the commands of `inspect`; they need the extra `plots` (matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.errors import ConfigError
from finetune.inspection.attention import AttentionMap
from finetune.machine.packages import is_installed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
LABELLED, LABELLED_ALONE = 32, 80
"""Largest number of tokens at which the axes of one of several matrices, or of a single one, are
labelled: more would be unreadable."""


def check_plots() -> None:
    """Refuse early where plots cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if not is_installed("matplotlib"):
        raise ConfigError(
            "--png needs matplotlib, which is not installed; run pip install 'finetune[plots]'"
        )


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no window system, nothing global

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", bbox_inches="tight")
    return content.getvalue()


def _plain(text: str) -> str:
    """Text that matplotlib shows literally: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def attention_png(shown: AttentionMap, layer: int = -1, head: int = -1) -> bytes:
    """All heads of a map as small matrices; or those of one layer, one head, or one alone.

    Args:
        shown: The map.
        layer: From 0; -1 for all.
        head: From 0; -1 for all.
    """
    layers = range(shown.layers) if layer < 0 else [layer]
    heads = range(shown.heads) if head < 0 else [head]
    size = len(shown.tokens)
    panels = len(layers) * len(heads)
    labelled = size <= (LABELLED_ALONE if panels == 1 else LABELLED) and panels <= 16
    side = max(2.2, 0.2 * size + 0.9) if labelled else 1.5
    figure = _figure(side * len(heads) + 1.0, side * len(layers) + 0.6)
    axes = figure.subplots(len(layers), len(heads), squeeze=False)
    names = [_plain(token) for token in shown.tokens]
    image = None
    for row, number in enumerate(layers):
        for column, which in enumerate(heads):
            panel = axes[row][column]
            weights = shown.weights[number, which]
            # By the square root of the weight: most weights are far below 0.1.
            image = panel.imshow(np.sqrt(weights), cmap="Blues", vmin=0, vmax=1)
            panel.set_title(f"layer {number + 1}, head {which + 1}", fontsize=8)
            panel.set_xticks(range(size) if labelled else [], names if labelled else [])
            first = labelled and column == 0  # matrices in one line have the same rows
            panel.set_yticks(range(size) if first else [], names if first else [])
            panel.tick_params(labelsize=7, length=0)
            panel.tick_params(axis="x", rotation=90)
    assert image is not None, "an encoder has a head at least"
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.01)
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar.set_ticks([tick**0.5 for tick in ticks], labels=[f"{100 * tick:g} %" for tick in ticks])
    bar.ax.tick_params(labelsize=7)
    figure.supylabel("attending token", fontsize=8)
    figure.supxlabel("attended token", fontsize=8)
    return _png(figure)


def curves_png(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    names: Sequence[str],
    label: str,
    line: float | None = None,
) -> bytes:
    """One curve over the layers for each group, with its standard deviation as error bars.

    Args:
        curves: Name -> a summary (mean, std) for each layer, and for the mix of them.
        names: Names of the layers and the mix.
        label: Label of the vertical axis.
        line: Value of the baseline, drawn as a dashed line; None for no line.
    """
    figure = _figure(max(4.5, 0.7 * len(names) + 2), 3.4)
    axes = figure.subplots()
    for shift, (name, points) in enumerate(curves.items()):
        # Slightly side by side: error bars of equal means would hide each other.
        layers = [*range(len(points) - 1), len(names) - 1]
        at = [layer + 0.06 * (shift - (len(curves) - 1) / 2) for layer in layers]
        means, spread = ([point[key] for point in points] for key in ("mean", "std"))
        style: dict[str, Any] = {"marker": "o", "ms": 4, "capsize": 3}
        drawn = axes.errorbar(at[:-1], means[:-1], spread[:-1], label=_plain(name), **style)
        color = drawn.lines[0].get_color()  # the mix is not a layer: no line leads to it
        axes.errorbar(at[-1], means[-1], spread[-1], ls="none", color=color, **style)
    if line is not None:
        axes.axhline(line, ls="--", lw=1, color="grey", label="baseline")
    rotation = 30 if len(names) > 6 else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=8)
    axes.set_ylabel(_plain(label), fontsize=9)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(fontsize=8, loc="outside upper center", ncols=min(4, len(curves) + 1))
    return _png(figure)


def similarity_png(pairs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bytes:
    """The CKA matrix of each pair of encoders, side by side.

    Args:
        pairs: The result of `compare_models`.
        names: Names of the models.
    """
    columns = min(4, len(pairs))
    rows = -(-len(pairs) // columns)
    figure = _figure(2.8 * columns + 0.6, 2.8 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, pair in zip(axes.flat, pairs, strict=False):
        matrix = np.array(pair["cka"])
        panel.imshow(matrix, cmap="viridis", vmin=0, vmax=1, origin="lower")
        if matrix.size <= 64:
            for (row, column), value in np.ndenumerate(matrix):
                ink = "black" if value > 0.6 else "white"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, size=7)
        panel.set_ylabel(_plain(names[pair["first"]]), fontsize=7)
        panel.set_xlabel(_plain(names[pair["second"]]), fontsize=7)
        for axis, count in ((panel.yaxis, len(matrix)), (panel.xaxis, len(matrix[0]))):
            axis.set_ticks(range(0, count, 1 + count // 14))
        panel.tick_params(labelsize=7)
    for panel in axes.flat[len(pairs) :]:
        panel.set_visible(False)
    figure.suptitle("linear CKA, layer by layer (0 = embeddings)", fontsize=9)
    return _png(figure)
