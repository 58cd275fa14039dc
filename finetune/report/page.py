"""The page: one file that needs no other, and that runs no script but its own.

The plots are drawn by Observable Plot on D3 (ISC licence, in `vendor/` with their texts): vector
graphics from marks and scales, small enough to be embedded, kept up by their authors, and free of
code made from strings, so that the page can forbid it. A content security policy allows the very
scripts written here, by their hashes, and no connection of any kind.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.resources import files

from finetune.report.markup import Html, element, joined
from finetune.report.parts import Part, section

LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
OWN = ("page/charts.js", "page/curves.js", "page/inside.js", "page/page.js")
LICENCES = ("vendor/d3.LICENSE", "vendor/plot.LICENSE")


def page(title: str, subtitle: str, parts: Sequence[Part]) -> str:
    """A whole HTML document.

    Args:
        title: Its heading.
        subtitle: A line below it.
        parts: In order.
    """
    scripts = [*_scripts(), *(part.script for part in parts if part.script)]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html("\n".join(_styles(parts)))),
    )
    running = [element("script", Html(script)) for script in scripts]
    body = element("body", *_frame(title, subtitle, parts), *running)
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _frame(title: str, subtitle: str, parts: Sequence[Part]) -> Iterator[Html]:
    yield element("a", "Skip to the content", href="#content", class_="skip")
    theme = element("button", "Theme: auto", type="button", class_="theme", hidden=True)
    heading = element("div", element("h1", title), element("p", subtitle))
    links = [element("li", element("a", part.title, href=f"#{part.key}")) for part in parts]
    yield element(
        "div",
        element("header", heading, theme, class_="top"),
        element("nav", element("ol", *links), aria_label="Contents"),
        element(
            "main",
            element("noscript", element("p", "Plots and sorting need JavaScript.")),
            *map(section, parts),
            id="content",
        ),
        element("footer", _about()),
        class_="frame",
    )
    yield element("div", class_="sr-only", id="announce", role="status", aria_live="polite")


def _about() -> Html:
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    plots = "Plots: D3 (© Mike Bostock) and Observable Plot (© Observable, Inc.), ISC licence."
    return joined([f"Written by finetune on {made}. {plots}"])


def _scripts() -> Iterator[str]:
    licences = "\n".join(_read(name) for name in LICENCES).replace("*/", "* /")
    first = True
    for name in (*LIBRARIES, *OWN):
        notice = f"/*\n{licences}*/\n" if first else ""
        first = False
        yield f"{notice}{_read(name)}"


def _styles(parts: Sequence[Part]) -> Iterator[str]:
    yield _read("page/style.css")
    yield from (part.style for part in parts if part.style)


def _policy(scripts: Sequence[str]) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (files("finetune.report") / name).read_text(encoding="utf-8")
