"""Attention maps to look into: heads by layers, and who looks at whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.report.inside.files import Found
from finetune.report.markup import Html, element, joined
from finetune.report.parts import Part


def attention_part(found: Sequence[Found]) -> Part:
    """What `finetune inspect attention` found.

    Raises:
        DataError: A file holds no map.
    """
    from finetune.inspection import attention_part as drawn
    from finetune.inspection.attention_page import CAVEAT

    pieces = [one.draw(lambda found: drawn(_map(found.content))) for one in found]
    body = [
        joined([element("h3", one.name), Html(piece.html)])
        for one, piece in zip(found, pieces, strict=True)
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
