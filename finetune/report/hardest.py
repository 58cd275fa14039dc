"""The hardest examples of a run with their texts: what the net is surest of and wrong about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from finetune.comparison import Answer
from finetune.comparison.answers import form_of, is_right
from finetune.report.answers import Judged, judged
from finetune.report.markup import Child, Html, element, joined
from finetune.task.interface import Example

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


SHOWN = 8
"""Examples of a run."""
BEST = 5
"""Of the answers that a span head ranks."""


def hardest(seeds: Sequence[Sequence[Answer]], count: int = SHOWN) -> list[Judged]:
    """The most wrong examples over all seeds, the worst first; right ones are left out."""
    wrong = [one for one in judged(seeds) if not all(map(is_right, one.rows)) and one.wrong > 0]
    return sorted(wrong, key=lambda one: -one.wrong)[:count]


def examples_list(hard: Sequence[Judged], texts: Mapping[int | str, Example] | None) -> Html:
    """The examples as a list; without texts, their ids and answers alone."""
    items = [_item(one, (texts or {}).get(one.id)) for one in hard]
    return element("ol", *items, class_="examples")


def _item(one: Judged, example: Example | None) -> Html:
    form = form_of(one.first)
    if form == "span":
        body = _span(one.first, example)
    elif _is_choice(one, example):
        body = _choice(one, example)
    else:
        texts = element("div", _texts(example))
        body = element("div", texts, element("div", _said(one)), class_="beside")
    group = f" · {example.group}" if example is not None and example.group else ""
    head = element("p", f"id {one.id}{group}", class_="id")
    return element("li", head, body)


def _texts(example: Example | None) -> Html | None:
    if example is None:
        return None
    several = len(example.texts) > 1
    parts = [
        element("p", shortened(text), class_="text", dir="auto", data_number=n if several else None)
        for n, text in enumerate(example.texts, start=1)
    ]
    return joined(parts)


def _said(one: Judged) -> Html:
    """What was said beside the right answer: probabilities where there are some, means of seeds."""
    bars = _bars(_mean_shares(one.rows), one.label, one.first["prediction"])
    if bars is not None:
        return bars
    given = [_label(row["prediction"]) for row in one.rows]
    if form_of(one.first) != "number":
        given = list(dict.fromkeys(given))
    pairs = [_pair("right", _label(one.label)), _pair("given", ", ".join(given))]
    return element("dl", *pairs, class_="given")


def _pair(term: str, value: Child) -> Html:
    return joined([element("dt", term, class_=term), element("dd", value)])


def _label(label: Any) -> str:
    if isinstance(label, list | tuple):
        return ", ".join(map(str, label)) or "none"
    return f"{label:.2f}" if isinstance(label, float) else str(label)


def _mean_shares(rows: Sequence[Answer]) -> dict[str, float]:
    names = rows[0].get("probabilities") or {}
    return {
        name: sum(float(row["probabilities"].get(name, 0)) for row in rows) / len(rows)
        for name in names
    }


def _bars(shares: Mapping[str, float], label: Any, prediction: Any, most: int = 6) -> Html | None:
    """Probabilities as bars, the highest first; the right one is always among them."""
    if not shares:
        return None
    right = set(label) if isinstance(label, list | tuple) else {label}
    order = sorted(shares, key=lambda name: -shares[name])
    kept = [name for rank, name in enumerate(order) if rank < most or name in right]
    said = set(prediction) if isinstance(prediction, list) else {prediction}
    return element(
        "ul",
        *(_bar(name, shares[name], name in right, name in said) for name in kept),
        class_="bars",
    )


def _bar(name: Child, share: float, right: bool, said: bool) -> Html:
    words = " ".join(filter(None, ["✓ right" if right else "", "given" if said else ""]))
    kind = "gold" if right else "said" if said else None
    return element(
        "li",
        element("span", name, class_="name"),
        element("span", class_="bar", style=f"--share:{share:.3f}", aria_hidden="true"),
        element("span", f"{100 * share:.1f} %", class_="share"),
        element("span", words, class_="word"),
        class_=kind,
    )


def _is_choice(one: Judged, example: Example | None) -> bool:
    """Whether the classes are options that the example itself brings."""
    options = len(one.first.get("probabilities") or ())
    return example is not None and 2 <= options == len(example.texts) - 2


def _choice(one: Judged, example: Example | None) -> Html:
    assert example is not None
    passage, question, *options = example.texts
    shares = _mean_shares(one.rows)
    rows = [
        _bar(
            joined(
                [element("b", letter), " ", element("span", shortened(option, 300), dir="auto")]
            ),
            share,
            letter == one.label,
            letter == one.first["prediction"],
        )
        for (letter, share), option in zip(shares.items(), options, strict=True)
    ]
    return joined(
        [
            element("p", question, class_="question", dir="auto"),
            element("ul", *rows, class_="bars wide"),
            element("p", shortened(passage), class_="passage", dir="auto") if passage else None,
        ]
    )


def _span(row: Answer, example: Example | None) -> Html:
    golds = row.get("answers") or []
    right = dict.fromkeys(gold["text"] for gold in golds)
    said = element(
        "dl",
        _pair("right", " · ".join(right) or element("em", "no answer in the passage")),
        _pair("given", row["prediction"] or element("em", "no answer")),
        class_="given",
    )
    if example is None:
        return joined([said, _best(row, None)])
    question, passage = example.texts[:2]
    marks = [Mark(gold["start"], gold["start"] + len(gold["text"]), "gold") for gold in golds]
    if row.get("start") is not None:
        marks.append(Mark(row["start"], row["end"], "said"))
    return joined(
        [
            element("p", question, class_="question", dir="auto"),
            element("p", marked(passage, marks), class_="passage", dir="auto"),
            said,
            _best(row, right),
        ]
    )


def _best(row: Answer, right: Mapping[str, None] | None) -> Html | None:
    """The answers that the head ranks highest, with the odds of none."""
    ranked = (row.get("nbest") or [])[:BEST]
    if not ranked:
        return None
    golds = right if right is not None else {gold["text"] for gold in row.get("answers") or ()}
    bars = [
        _bar(
            shortened(one["text"], 120) or element("em", "no answer"),
            float(one["probability"]),
            one["text"] in golds or not (one["text"] or golds),
            one["text"] == row["prediction"],
        )
        for one in ranked
    ]
    odds = row.get("null_odds")
    note = None
    if isinstance(odds, int | float) and any(not one["text"] for one in row["nbest"]):
        note = element(
            "p",
            f"score of no answer less that of the best span: {odds:.2f}".replace("-", "−"),
            class_="note",
        )
    return joined([element("ul", *bars, class_="bars wide"), note])
