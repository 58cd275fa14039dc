"""What `finetune inspect` found inside a net, as parts of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.report.markup import Html, element, joined
from finetune.report.parts import Part

FIELDS = ("tokens", "segments", "weights")


def attention_part(files: Sequence[Path]) -> Part | None:
    """Attention maps to look into: heads by layers, and who looks at whom.

    Args:
        files: What `finetune inspect attention` wrote (attention.json).

    Returns:
        The part; None without files.

    Raises:
        DataError: A file is missing, or holds no map.
    """
    if not files:
        return None
    from finetune.inspection import attention_part as drawn
    from finetune.inspection.attention_page import CAVEAT

    maps = [(file, _read(file)) for file in files]
    pieces = [drawn(_map(content, file)) for file, content in maps]
    body = [
        joined([element("h3", _name(content, file)), Html(piece.html)])
        for (file, content), piece in zip(maps, pieces, strict=True)
    ]
    style, script = pieces[0].css, pieces[0].js
    return Part("attention", "Attention maps", joined(body), CAVEAT, script, style)


def _name(content: Mapping[str, Any], file: Path) -> str:
    """The last two parts of the run's path: what tells it from others."""
    return "/".join(Path(str(content.get("run") or file)).parts[-2:])


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{file}: expected JSON, found {error}") from None
    if not isinstance(content, dict) or not content.keys() >= set(FIELDS):
        raise DataError(
            f"{file}: expected a map with {', '.join(FIELDS)}, found none; name an attention.json "
            "that `finetune inspect attention` wrote"
        )
    return content


def _map(content: Mapping[str, Any], file: Path) -> Any:
    import numpy as np

    from finetune.inspection import AttentionMap

    tokens, segments = tuple(map(str, content["tokens"])), tuple(content["segments"])
    try:
        weights = np.asarray(content["weights"], np.float32)
    except (TypeError, ValueError):
        weights = np.zeros(0, np.float32)
    if weights.ndim != 4 or weights.shape[2:] != (len(tokens), len(tokens)):
        raise DataError(
            f"{file}: expected weights by layer, head and {len(tokens)} tokens twice, found shape "
            f"{weights.shape}; inspect the run again"
        )
    return AttentionMap(tokens, segments, weights)
