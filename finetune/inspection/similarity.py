"""How alike the layers of two encoders, or of one, are: linear CKA (Kornblith et al., 2019).

CKA(X, Y) = |Yᵀ X|² / (|Xᵀ X| |Yᵀ Y|), Frobenius norms, X and Y centred; rows are the same examples.
It does not change under rotation and scaling of either side, and lies between 0 and 1.

How not to read it: with fewer examples than features it is near 1 for any two layers, so use
several examples for each feature; and a few directions of large variance can dominate it, so two
layers may be similar by it and yet differ in what a classifier can use (Davari et al., 2023).

Within one encoder two things can collapse with depth: layers that change nothing, and tokens that
become alike, until a text is one vector (Dong et al., 2021). `collapse` measures both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.errors import ConfigError
from finetune.inspection.layers import LayerStates, layer_names
from finetune.jobs.sources import Model, Sequences
from finetune.runs.results import summarise

TOKENS = "tokens"
"""The name that stands for no pooling: each token is an example."""


class Moments:
    """Sums of products of centred columns, accumulated over batches.

    Each batch is centred by its mean and the shift between means is added (Chan et al., 1983), so
    the result is that of all rows at once, however they are batched, to rounding in float64.
    """

    def __init__(self) -> None:
        """Start without rows."""
        self.rows = 0
        self._means: tuple[Tensor, Tensor] | None = None
        self._products: Tensor | None = None

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add rows.

        Args:
            x: (n, F).
            y: (n, G), of the same examples.
        """
        if not len(x):
            return
        x, y = x.double(), y.double()
        means = (x.mean(0), y.mean(0))
        products = (x - means[0]).T @ (y - means[1])
        count = len(x)
        if self._means is None or self._products is None:
            self._means, self._products, self.rows = means, products, count
            return
        total = self.rows + count
        shifts = [new - old for new, old in zip(means, self._means, strict=True)]
        self._products += products + torch.outer(*shifts) * (self.rows * count / total)
        self._means = (
            self._means[0] + shifts[0] * (count / total),
            self._means[1] + shifts[1] * (count / total),
        )
        self.rows = total

    @property
    def products(self) -> Tensor:
        """Xᵀ Y of centred columns, float64 (F, G)."""
        if self._products is None:
            raise ValueError("expected rows, got none")
        return self._products


def linear_cka(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Linear CKA of two representations.

    Args:
        batches: Rows of both, (n, F) and (n, G), of the same examples, in batches of any size.

    Returns:
        0 to 1; NaN where a representation is constant.
    """
    both, first, second = Moments(), Moments(), Moments()
    for x, y in batches:
        both.update(x, y)
        first.update(x, x)
        second.update(y, y)
    return _cka(both.products, first.products, second.products)


def _cka(both: Tensor, first: Tensor, second: Tensor) -> float:
    denominator = float(first.norm() * second.norm())
    return float(both.square().sum()) / denominator if denominator else float("nan")


def layer_similarity(
    states: Sequence[LayerStates], pooling: str = TOKENS
) -> npt.NDArray[np.float64]:
    """Linear CKA of every layer of one encoder with every layer of another.

    Args:
        states: States of the two encoders, for the same texts in the same order.
        pooling: `tokens` if both encoders have the same tokens; or a name in `POOLINGS`.

    Returns:
        float64 (L + 1, M + 1): row = layer of the first, column = layer of the second.
    """
    sizes = [side.layers for side in states]
    cross = [[Moments() for _ in range(sizes[1])] for _ in range(sizes[0])]
    within = [[Moments() for _ in range(size)] for size in sizes]
    for first, second in _aligned(states, pooling):
        for row, x in enumerate(first):
            within[0][row].update(x, x)
            for column, y in enumerate(second):
                cross[row][column].update(x, y)
        for column, y in enumerate(second):
            within[1][column].update(y, y)
    return np.array(
        [
            [
                _cka(moments.products, within[0][r].products, within[1][c].products)
                for c, moments in enumerate(row)
            ]
            for r, row in enumerate(cross)
        ]
    )


def _aligned(
    states: Sequence[LayerStates], pooling: str
) -> Iterable[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Rows of both encoders, batch by batch: (n, D) for each layer."""
    if pooling != TOKENS:
        yield tuple(list(side.vectors(pooling)) for side in states)  # type: ignore[misc]
        return
    for (_, mask, first), (_, _, second) in zip(*states, strict=True):
        yield [_tokens(h, mask) for h in first], [_tokens(h, mask) for h in second]


def _tokens(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden.flatten(0, 1) if mask is None else hidden[mask]


def compare_models(
    models: Sequence[Model], sequences: Sequence[Sequences], pooling: str, **cache: Any
) -> list[dict[str, Any]]:
    """Compare the layers of all pairs of encoders on the same texts.

    Args:
        models: Encoders; one alone is compared with itself.
        sequences: The texts as tokenized for each of them.
        pooling: `tokens` or a name in `POOLINGS`.
        cache: `caching` and `cache_dir` of the hidden states.

    Returns:
        For each pair: numbers of the two models, `rows` (examples compared), `cka` (layers of the
        first by layers of the second), and `same_layer`, its diagonal.

    Raises:
        ConfigError: The pooling is `tokens`, and the encoders tokenize the texts differently.
    """
    ids = [[list(map(int, f.input_ids)) for f in texts.features] for texts in sequences]
    if pooling == TOKENS and any(other != ids[0] for other in ids[1:]):
        raise ConfigError(
            "the encoders split the texts into different tokens, so tokens cannot be compared; "
            "take --pooling mean"
        )
    states = [LayerStates(m, s, **cache) for m, s in zip(models, sequences, strict=True)]
    rows = len(ids[0]) if pooling != TOKENS else sum(map(len, ids[0]))
    try:
        return [
            _pair(first, second, layer_similarity([states[first], states[second]], pooling), rows)
            for first, second in [*combinations(range(len(models)), 2)] or [(0, 0)]
        ]
    finally:
        for opened in states:
            opened.close()


def _pair(first: int, second: int, cka: npt.NDArray[np.float64], rows: int) -> dict[str, Any]:
    diagonal = cka.diagonal().tolist()
    return {
        "first": first,
        "second": second,
        "rows": rows,
        "cka": cka.tolist(),
        "same_layer": diagonal,
    }


def collapse(states: LayerStates) -> list[dict[str, float | None]]:
    """How much each layer changes its tokens, and how alike it makes the tokens of a text.

    Args:
        states: Of some texts; those of one token alone take no part in what is between tokens.

    Returns:
        For each boundary: `previous_cosine`, the mean cosine of a token's state with its state one
        layer below (None for the embeddings); `token_cosine`, the mean cosine of two tokens of a
        text; and `residual`, the mean of |H - 1 m| / |H| over texts, with m the mean of the rows of
        H and Frobenius norms: 0 where all tokens have one state (Dong et al., 2021, section 2.2).
    """
    sums = torch.zeros(3, states.layers, dtype=torch.float64)
    tokens = texts = 0
    for _, mask, layers in states:
        real = torch.ones(layers[0].shape[:2], dtype=torch.bool) if mask is None else mask
        several = real.sum(1) > 1
        tokens, texts = tokens + int(real.sum()), texts + int(several.sum())
        for layer, hidden in enumerate(layers):
            if layer:
                cosine = torch.cosine_similarity(hidden, layers[layer - 1], dim=-1)
                sums[0, layer] += cosine[real].double().sum()
            between, residual = _between_tokens(hidden.double(), real)
            sums[1, layer] += between[several].sum()
            sums[2, layer] += residual[several].sum()
    previous, between, residual = (sums / torch.tensor([[tokens], [texts], [texts]])).tolist()
    return [
        {
            "previous_cosine": previous[layer] if layer else None,
            "token_cosine": between[layer],
            "residual": residual[layer],
        }
        for layer in range(states.layers)
    ]


def _between_tokens(hidden: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cosine of two tokens, and what the mean token leaves, of each text, (B,) each."""
    hidden = hidden * real[..., None]
    count = real.sum(1).double()
    units = torch.nn.functional.normalize(hidden, dim=-1)
    lengths = units.square().sum((1, 2))  # of the tokens with themselves
    cosine = (units.sum(1).square().sum(1) - lengths) / (count * (count - 1))
    mean = hidden.sum(1, keepdim=True) / count[:, None, None]
    rest = (hidden - mean) * real[..., None]
    return cosine, rest.norm(dim=(1, 2)) / hidden.norm(dim=(1, 2))


def layers_within(model: Model, sequences: Sequences, **cache: Any) -> list[dict[str, Any]]:
    """What `collapse` measures of one encoder, each layer with its `name`."""
    states = LayerStates(model, sequences, **cache)
    try:
        names = layer_names(states.layers)
        return [{"name": name} | of for name, of in zip(names, collapse(states), strict=True)]
    finally:
        states.close()


def within_table(layers: Sequence[Mapping[str, Any]], cka: Sequence[Sequence[float]]) -> str:
    """One line for each layer of one encoder.

    Args:
        layers: The result of `layers_within`.
        cka: Layers by layers.
    """
    rows = []
    for number, layer in enumerate(layers):
        below = cka[number][number - 1] if number else None
        figures = (below, layer["previous_cosine"], layer["token_cosine"], layer["residual"])
        rows.append([layer["name"], *("" if one is None else f"{one:.3f}" for one in figures)])
    header = ["layer", "CKA, layer below", "cosine, layer below", "cosine of tokens", "residual"]
    return table(rows, header)


def group_pairs(
    pairs: Sequence[Mapping[str, Any]], groups: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Average pairs between the same groups of runs, layer by layer.

    Args:
        pairs: The result of `compare_models`.
        groups: Name of each model's group.

    Returns:
        `A – B`, or `within A`, -> for each layer that both have: mean, deviation and values.
    """
    by_name: dict[str, list[Sequence[float]]] = {}
    for pair in pairs:
        a, b = groups[pair["first"]], groups[pair["second"]]
        name = f"within {a}" if a == b else f"{a} – {b}"
        by_name.setdefault(name, []).append(pair["same_layer"])
    return {
        name: [dict(summarise(list(values))) for values in zip(*lines, strict=False)]
        for name, lines in by_name.items()
    }


def similarity_table(grouped: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One line for each layer, one column for each pair of groups: mean ± std over the pairs."""
    names = layer_names(max(map(len, grouped.values())))
    rows = []
    for layer, name in enumerate(names):
        cells = [layers[layer] if layer < len(layers) else None for layers in grouped.values()]
        rows.append([name, *("" if cell is None else _cell(cell) for cell in cells)])
    return table(rows, ["same layer, linear CKA", *grouped])


def _cell(summary: Mapping[str, Any]) -> str:
    mean = f"{summary['mean']:.3f}"
    return mean if len(summary["values"]) == 1 else f"{mean} ± {summary['std']:.3f}"
