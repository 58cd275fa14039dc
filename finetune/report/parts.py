"""A part of the page: what has a heading and a line in the table of contents.

Other packages add parts (`write_report(…, more=[…])`): a body built by
`finetune.report.markup`, data in `script_json`, and a script that finds both by its part's id. Such
a script is a plain one; it may use `d3`, `Plot` and what `page/charts.js` puts on `report`.
"""

from __future__ import annotations

from dataclasses import dataclass

from finetune.report.markup import Child, Html, element


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
