"""Places for plots: a figure with what a script is to draw, and words for those who see none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.report.markup import Child, Html, element, script_json


def figure(
    kind: str, title: Child, words: str, spec: Mapping[str, Any], note: Child = None
) -> Html:
    """A plot; the script draws it and offers its data as a table.

    Args:
        kind: What draws it: `lines`, `dots`, `forest`, `stack`, `phases`, `layers` or `shares`.
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
