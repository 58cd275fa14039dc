"""An interactive attention map: a complete HTML page, or a part of a larger one.

Everything is in the page: it needs no network and no library, and a text cannot inject code, since
tokens reach the page as JSON and are written by `textContent`.
"""

from __future__ import annotations

import base64
import json
from html import escape
from importlib import resources
from typing import NamedTuple

import numpy as np

from finetune.console.output import are, counted
from finetune.inspection.attention import AttentionMap

CAVEAT = (
    "A weight is how much of a token’s value is mixed in, not how much the token matters: other "
    "weights can give the same answer (Jain & Wallace 2019; but see Wiegreffe & Pinter 2019), a "
    "large weight on a short value changes little, as for [SEP] (Kobayashi et al. 2020), and above "
    "the first layer a position is a mixture of tokens."
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
html {{ background: #fff; color: #1b1f27; }}
@media (prefers-color-scheme: dark) {{ html {{ background: #14171d; color: #e7eaf0; }} }}
body {{ margin: 1.5rem auto; max-width: 90rem; padding: 0 1rem; }}
h1 {{ font: 600 1.25rem system-ui, sans-serif; }}
{css}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{html}
</main>
<script>
{js}</script>
</body>
</html>
"""


class Part(NamedTuple):
    """A piece of a page."""

    html: str
    """For the body; a page may have several maps."""
    css: str
    """For a `<style>`, once in each page."""
    js: str
    """For a `<script>` after all maps, once in each page."""


def attention_part(shown: AttentionMap, layer: int = -1, head: int = -1) -> Part:
    """A map as a part of a page: an overview of heads, lines between tokens, and the matrix.

    Args:
        shown: The map; it takes L · H · T² · 4/3 bytes.
        layer: The layer that is shown first, from 0; -1 for the mean over layers.
        head: The head that is shown first, from 0; -1 for the mean over heads.
    """
    content = {
        "tokens": list(shown.tokens),
        "segments": list(shown.segments),
        "layers": shown.layers,
        "heads": shown.heads,
        "layer": layer,
        "head": head,
        "weights": _packed(shown),
    }
    html = (
        '<section class="attn" aria-label="Attention map">\n'
        f'<script type="application/json">{_script_safe(content)}</script>\n'
        "<noscript>This map is drawn by JavaScript, which is off here.</noscript>\n"
        f"</section>\n"
    )
    return Part(html, _asset("attention.css"), _asset("attention.js"))


def attention_page(shown: AttentionMap, title: str, layer: int = -1, head: int = -1) -> str:
    """A map as an HTML file that works without a server; arguments as in `attention_part`."""
    part = attention_part(shown, layer, head)
    note = f'<p class="attn-note">{escape(CAVEAT)}</p>'
    if shown.trimmed:
        trimmed = counted(shown.trimmed, "token")
        remark = f"The last {trimmed} of the text did not fit and {are(shown.trimmed)} not shown."
        note = f'<p class="attn-note">{remark}</p>\n{note}'
    html = f'{part.html}<div class="attn">{note}</div>'
    return _PAGE.format(title=escape(title), css=part.css, js=part.js, html=html)


def _packed(shown: AttentionMap) -> str:
    """One byte for each weight, its square root: the error is 0.0004 at 0.01 and 0.004 at 1."""
    roots = np.sqrt(shown.weights.clip(0, 1)) * 255
    return base64.b64encode(np.rint(roots).astype(np.uint8).tobytes()).decode()


def _script_safe(content: object) -> str:
    """JSON that cannot end the script element around it."""
    return json.dumps(content, ensure_ascii=True).replace("<", "\\u003c").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("finetune.inspection").joinpath(name).read_text(encoding="utf-8")
