"""Answers marked in their passage: what was said, what is right, and where both agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from finetune.report.markup import Child, Html, element, joined

AROUND = 220
"""Characters that are shown before the first and after the last mark."""
MOST = 1_200
"""Of a text that is shown without marks, or between two of them."""
KINDS = {"gold": "right answer", "said": "answer given", "both": "right, and given"}


class Mark(NamedTuple):
    """A stretch of a text."""

    start: int
    """Its first character."""
    end: int
    """The one behind its last."""
    kind: str
    """`gold` or `said`."""


def pieces(length: int, marks: Iterable[Mark]) -> list[Mark]:
    """Cut a text where a mark begins or ends: stretches in order, unmarked ones of kind "".

    Args:
        length: Characters of the text.
        marks: May overlap; what lies outside of the text is left out.

    Returns:
        Stretches that cover the text; where a right answer is given too, of kind `both`.
    """
    inside = [mark for mark in marks if 0 <= mark.start < mark.end <= length]
    edges = sorted({0, length, *(edge for mark in inside for edge in mark[:2])})
    pieces: list[Mark] = []
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        kinds = {mark.kind for mark in inside if mark.start <= start and end <= mark.end}
        kind = "both" if len(kinds) > 1 else next(iter(kinds), "")
        if pieces and pieces[-1].kind == kind:
            pieces[-1] = Mark(pieces[-1].start, end, kind)
        else:
            pieces.append(Mark(start, end, kind))
    return pieces


def marked(text: str, marks: Sequence[Mark]) -> Html:
    """A passage with its marks; what lies far from them is cut."""
    cut = pieces(len(text), marks)
    return joined(
        _piece(text, piece, first=n == 0, last=n == len(cut) - 1) for n, piece in enumerate(cut)
    )


def _piece(text: str, piece: Mark, *, first: bool, last: bool) -> Child:
    content = text[piece.start : piece.end]
    if piece.kind:
        spoken = element("span", f" [{KINDS[piece.kind]}] ", class_="sr-only")
        return element("mark", content, spoken, class_=piece.kind, title=KINDS[piece.kind])
    if first and last:
        return shortened(content)
    if first:
        return content if len(content) <= AROUND else f"… {content[-AROUND:]}"
    if last:
        return content if len(content) <= AROUND else f"{content[:AROUND]} …"
    return content if len(content) <= 2 * AROUND else f"{content[:AROUND]} … {content[-AROUND:]}"


def shortened(text: str, most: int = MOST) -> str:
    """A text, or its beginning."""
    return text if len(text) <= most else f"{text[:most].rstrip()} …"
