"""Markup that is safe by default: text is escaped unless a function here made it.

What comes from data (texts, names of files and classes, messages) may hold anything; it reaches the
page only through `element` and `script_json`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VOID = frozenset({"meta", "input", "br", "col"})
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # controls, lone surrogates


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = Html | str | int | float | None
"""What an element may hold: markup, text to be escaped, or nothing."""


def plain(value: object) -> str:
    """Text with what no page can show replaced by U+FFFD."""
    return _UNSEEN.sub("�", str(value))


def escape(value: object) -> Html:
    """Text as markup; markup as it is."""
    return value if isinstance(value, Html) else Html(html.escape(plain(value), quote=True))


def joined(children: Iterable[Child], between: str = "") -> Html:
    """Children in a row, without those that are None."""
    return Html(between.join(escape(child) for child in children if child is not None))


def element(tag: str, *children: Child, **attributes: object) -> Html:
    """An element with its children.

    Args:
        tag: Its name.
        children: Text is escaped, `Html` is not, None is left out.
        attributes: `class_` is written `class`, `aria_sort` is `aria-sort`; None and False leave
            one out, True gives it no value.
    """
    words = [tag, *_attributes(attributes)]
    opened = Html(f"<{' '.join(words)}>")
    return opened if tag in VOID else Html(f"{opened}{joined(children)}</{tag}>")


def _attributes(attributes: Mapping[str, object]) -> Iterable[str]:
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            yield name
        elif value is not None and value is not False:
            yield f'{name}="{escape(str(value))}"'


def script_json(value: object) -> Html:
    """JSON that may stand in a script element: nothing in it can close that, or open a comment.

    Raises:
        ValueError: It holds NaN or infinity.
    """
    text = json.dumps(_cleaned(value), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(text)


def _cleaned(value: object) -> object:
    """The same with the strings made plain."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    content: Child
    """What is shown; None is a dash."""
    value: float | str | None = None
    """What it is sorted by; None: by the text, or last where there is none."""
    class_: str | None = None
    """A class for the style."""


Row = list[Cell | Child]
"""Cells of a row; bare content is a cell that is sorted by its text."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    """Its heading."""
    number: bool = False
    """Whether it holds numbers, which stand to the right."""
    about: str | None = None
    """What it means, shown when one points at it."""


def data_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell | Child]],
    *,
    sortable: bool = True,
    class_: str = "",
    hide_caption: bool = False,
) -> Html:
    """A table that a screen reader can read: caption, scopes, row headers; sortable by a script.

    Args:
        caption: What it shows.
        columns: Its columns; the first one heads the rows.
        rows: Cells, as many as columns.
        sortable: Whether its headings are buttons that sort it.
        class_: Further classes.
        hide_caption: Whether the caption is for screen readers alone.
    """
    heads = [_heading(column, sortable) for column in columns]
    lines = [
        element("tr", *(_cell(cell, column, n == 0) for n, (cell, column) in enumerate(pairs)))
        for pairs in (zip(row, columns, strict=True) for row in rows)
    ]
    title = element("caption", caption, class_="sr-only" if hide_caption else None)
    head, body = element("thead", element("tr", *heads)), element("tbody", *lines)
    kind = " ".join(filter(None, ["data", "sortable" if sortable else "", class_]))
    table = element("table", title, head, body, class_=kind)
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _heading(column: Column, sortable: bool) -> Html:
    title: Child = column.title
    if sortable:
        title = element("button", title, type="button")
    kind = "number" if column.number else None
    return element("th", title, scope="col", class_=kind, title=column.about)


def _cell(cell: Cell | Child, column: Column, first: bool) -> Html:
    if not isinstance(cell, Cell):
        cell = Cell(cell)
    kind = " ".join(filter(None, ["number" if column.number else "", cell.class_ or ""])) or None
    shown = cell.content if cell.content is not None else element("span", "–", class_="none")
    value = cell.value
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    tag, more = ("th", {"scope": "row"}) if first else ("td", {})
    return element(tag, shown, class_=kind, data_value=value, **more)


def details(summary: Child, *body: Child, open_: bool = False, **more: Any) -> Html:
    """A part that is folded until one opens it."""
    return element("details", element("summary", summary), *body, open=open_, **more)
