from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.inspection import AttentionMap, attention_page, attention_part
from finetune.inspection.attention_page import CAVEAT

EVIL = "</script><script>document.title = 'run'</script>"


@pytest.fixture
def shown() -> AttentionMap:
    weights = np.random.default_rng(0).dirichlet(np.full(4, 0.3), (2, 3, 4)).astype(np.float32)
    return AttentionMap(("[CLS]", EVIL, "b&amp;", "[SEP]"), (0, 0, 1, 1), weights)


class Scripts(HTMLParser):
    """Collects what scripts a page has, as a browser cuts them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.inside: dict[str, str | None] | None = None
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = dict(attrs) if tag == "script" else None
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.found.append((self.inside, data))

    def handle_endtag(self, tag: str) -> None:
        self.inside = None


def test_page_holds_the_weights_and_gives_them_back(shown: AttentionMap) -> None:
    (kind, content), (code, _) = Scripts(attention_page(shown, "title", 1, 2)).found
    assert (kind, code) == ({"type": "application/json"}, {})
    data = json.loads(content)
    assert data["tokens"] == list(shown.tokens)
    assert (data["layers"], data["heads"], data["layer"], data["head"]) == (2, 3, 1, 2)
    roots = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(2, 3, 4, 4) / 255
    np.testing.assert_allclose(roots**2, shown.weights, atol=0.004)


def test_page_asks_no_network_and_runs_no_text(shown: AttentionMap) -> None:
    page = attention_page(shown, EVIL)
    parsed = Scripts(page)
    assert len(parsed.found) == 2
    assert parsed.links == []
    addresses = set(re.findall(r"https?://[^\"' ]*", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert EVIL not in page
    assert CAVEAT.split("(")[0] in page


def test_tokens_that_are_not_shown_are_told_of(shown: AttentionMap) -> None:
    cut = AttentionMap(shown.tokens, shown.segments, shown.weights, trimmed=7)
    assert "last 7 tokens" in attention_page(cut, "title")
    assert "did not fit" not in attention_page(shown, "title")


@pytest.fixture
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def test_browser_draws_it_and_keys_and_pointer_choose(
    shown: AttentionMap, browser: Any, tmp_path: Path
) -> None:
    part = attention_part(shown)  # twice in a page, as a report may have it
    page = f"<style>{part.css}</style>{part.html}{part.html}<script>{part.js}</script>"
    (tmp_path / "page.html").write_text(f"<!doctype html><title>safe</title>{page}", "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.title == "safe"
    maps = browser.find_elements("css selector", "section.attn")
    assert len(maps) == 2
    section = maps[0]

    def find(selector: str) -> list[Any]:
        return list(section.find_elements("css selector", selector))

    assert len(find(".attn-grid button")) == 6
    assert [one.text for one in find(".attn-token text")] == [
        *("[CLS]", EVIL[:25] + "…", "b&amp;", "[SEP]") * 2
    ]
    assert len(find(".attn-links line")) > 4
    painted = "return [...arguments[0].getContext('2d').getImageData(0, 0, 4, 4).data]"
    pixels = browser.execute_script(painted, find("canvas")[4])
    np.testing.assert_allclose(
        np.array(pixels[3::4]) / 255, np.sqrt(shown.weights[1, 1]).reshape(-1), atol=0.01
    )

    find(".attn-grid button")[0].send_keys("\ue015\ue014")  # down, right: layer 2, head 2
    pressed = [one.get_attribute("aria-label") for one in find("button[aria-pressed=true]")]
    assert pressed == ["Layer 2, head 2"]
    assert [one.get_attribute("value") for one in find("select")] == ["1", "1"]

    browser.execute_script("arguments[0].focus()", find(".attn-token")[0])
    browser.switch_to.active_element.send_keys("\ue015")  # down: the second token
    row = shown.weights[1, 1, 1]
    best = int(row.argmax())
    told = find(".attn-readout")[0].text
    assert told.startswith(f"{EVIL} looks at {shown.tokens[best]} "), told
    share = float(told.removeprefix(f"{EVIL} looks at {shown.tokens[best]} ").split(" %")[0])
    assert share == pytest.approx(100 * row[best], abs=1)
    assert len(find(".attn-links line")) == int((row >= 0.005).sum())
    browser.switch_to.active_element.send_keys("\ue014")  # right: the other side
    assert f"{EVIL} is looked at by" in find(".attn-readout")[0].text
    browser.switch_to.active_element.send_keys("\ue00c")  # escape
    assert "Point at a token" in find(".attn-readout")[0].text
    assert browser.get_log("browser") == []
