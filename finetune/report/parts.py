"""A part of the page, with a heading and a line in the table of contents, and the plots in it.

Other packages add parts (`write_report(…, more=[…])`): a body built by
`finetune.report.markup`, data in `script_json`, and a script that finds both by its part's id. Such
a script is a plain one; it may use `d3`, `Plot` and what `page/charts.js` puts on `report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune.report.markup import Child, Html, element, script_json


@dataclass(frozen=True)
class Part:
    """A part of the page."""

    key: str
    """Its id in the page: lower-case letters, digits and dashes."""
    title: str
    """Its heading."""
    body: Html
    """What it shows."""
    lead: Child = None
    """A sentence below the heading."""
    script: str | None = None
    """JavaScript that the part needs, run once when the page is there."""
    style: str | None = None
    """CSS that the part needs; its selectors begin with the part's id."""


def section(part: Part) -> Html:
    """A part as a section."""
    lead = element("p", part.lead, class_="lead") if part.lead is not None else None
    head = element("h2", part.title, id=f"{part.key}-title")
    return element(
        "section", head, lead, part.body, id=part.key, aria_labelledby=f"{part.key}-title"
    )


def figure(
    kind: str, title: Child, words: str, spec: Mapping[str, Any], note: Child = None
) -> Html:
    """A plot; the script draws it and offers its data as a table.

    Args:
        kind: What draws it: `lines`, `dots`, `forest`, `scatter`, `trust`, `stack`, `phases`,
            `layers` or `shares`.
        title: Its heading.
        words: What it shows, for those who do not see it.
        spec: What is drawn, as JSON knows it.
        note: A remark below it.
    """
    heading = element("figcaption", element("span", title, class_="figure-title"))
    return element(
        "figure",
        heading,
        element("p", words, class_="sr-only"),
        element("div", class_="plot", role="group", aria_label=f"Plot: {words}"),
        element("p", note, class_="note") if note is not None else None,
        element("script", script_json(spec), type="application/json", class_="spec"),
        class_=f"chart {kind}",
        data_kind=kind,
    )


def swatch(colour: str, *, hollow: bool = False) -> Html:
    """The colour of a run beside its name, as a dot or a ring."""
    kind = "swatch hollow" if hollow else "swatch"
    return element("span", class_=kind, style=f"--colour:{colour}", aria_hidden="true")
