"""The page in a real browser: no error, plots drawn, tables sort, nothing of a row runs.

It needs Chromium and its driver (Debian: chromium, chromium-driver) and selenium.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from finetune.report import write_report
from tests.made.runs import write_class_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.conftest import Made

selenium = pytest.importorskip("selenium", reason="selenium is not installed: no browser test")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no chromium with chromedriver: no browser test"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # selenium leaves its sockets open
]
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",  # a click in the midst of a smooth scroll would miss
)
WIDE = (1300, 900)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield opened
    opened.quit()


@pytest.fixture
def page(driver: Any, made: Made) -> Any:
    driver.set_window_size(*WIDE)
    driver.get(made.report.path.resolve().as_uri())
    wait_for(lambda: drawn(driver))
    return driver


def wait_for(true: Callable[[], Any], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "the page did not get there in time"
        time.sleep(0.05)


def drawn(driver: Any) -> bool:
    """Whether every plot that is not folded away is drawn."""
    return bool(
        driver.execute_script(
            "return [...document.querySelectorAll('.plot')]"
            ".every((box) => !box.checkVisibility() || box.querySelector('svg'))"
        )
    )


def column(driver: Any, number: int) -> list[str]:
    return list(
        driver.execute_script(
            "return [...document.querySelector('#overview table.sortable').tBodies[0].rows]"
            ".map((row) => row.cells[arguments[0]].innerText.trim().split('\\n')[0])",
            number,
        )
    )


def test_the_console_has_no_error_and_every_plot_is_drawn(page: Any) -> None:
    page.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    wait_for(lambda: drawn(page))
    counts = page.execute_script(
        "return [document.querySelectorAll('figure.chart').length,"
        " document.querySelectorAll('figure.chart .plot > svg').length]"
    )
    assert counts[0] == counts[1] > 10
    for kind, shape in (("lines", "path"), ("dots", "circle"), ("forest", "circle")):
        assert page.execute_script(
            f"return [...document.querySelectorAll('figure.{kind} svg')]"
            f".every((svg) => svg.querySelector('{shape}'))"
        )
    for kind in ("phases", "stack"):
        assert page.execute_script(f"return !!document.querySelector('.{kind} svg rect')")
    assert page.get_log("browser") == []


def test_what_a_row_holds_is_shown_and_not_run(page: Any) -> None:
    assert page.title == "Made <b>runs</b>"
    page.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    shown = page.find_element("css selector", "#examples").text
    assert "</script><script>document.title='run'</script>" in shown
    assert page.execute_script("return document.images.length") == 0


def test_an_injected_script_is_refused_by_the_policy(page: Any) -> None:
    page.execute_script(
        "const one = document.createElement('script'); one.textContent = \"document.title='run'\";"
        "document.body.append(one)"
    )
    assert page.title == "Made <b>runs</b>"
    assert any("Content Security Policy" in entry["message"] for entry in page.get_log("browser"))


def test_a_click_sorts_a_table_both_ways_and_says_so(page: Any) -> None:
    names = column(page, 0)
    head = page.find_element("css selector", "#overview th:nth-child(1) button")
    head.click()
    assert column(page, 0) == sorted(names)
    head.click()
    assert column(page, 0) == sorted(names, reverse=True)
    sort = page.find_element("css selector", "#overview th:nth-child(1)").get_attribute("aria-sort")
    assert sort == "descending"
    assert "descending" in page.find_element("id", "announce").get_attribute("textContent")
    page.find_element("css selector", "#overview th:nth-child(3) button").click()
    values = [value.split(" ")[0] for value in column(page, 2)]
    numbers = [float(value) for value in values if value != "–"]
    # The loss is shown as it is and shares in percent; they are sorted by their values.
    shares = [number for number in numbers if number != 0.4]
    assert shares == sorted(shares, reverse=True)


def test_a_run_can_be_hidden_and_a_curve_read_and_zoomed_by_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    box = page.find_element("css selector", "[data-group=made-classes] .lines .plot")
    box.send_keys(Keys.ARROW_RIGHT)
    readout = page.find_element("css selector", "[data-group=made-classes] .readout")
    assert "step 10" in readout.text
    assert "fine" in readout.text
    key = page.find_element("css selector", "[data-group=made-classes] [data-run=plain]")
    before = page.execute_script("return arguments[0].querySelectorAll('path').length", box)
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    after = page.execute_script("return arguments[0].querySelectorAll('path').length", box)
    assert after < before
    reset = page.find_element("css selector", "[data-group=made-classes] .reset")
    assert not reset.is_enabled()
    box.send_keys("+")
    assert reset.is_enabled()
    box.send_keys(Keys.ESCAPE)
    assert not reset.is_enabled()


def test_a_drag_zooms_in(page: Any) -> None:
    from selenium.webdriver import ActionChains

    box = page.find_element("css selector", "[data-group=made-classes] .lines .plot")
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", box)
    ActionChains(page).move_to_element_with_offset(box, -40, 0).click_and_hold().move_by_offset(
        60, 5
    ).release().perform()
    assert page.find_element("css selector", "[data-group=made-classes] .reset").is_enabled()


def test_data_of_a_plot_are_there_as_a_table(page: Any) -> None:
    fold = page.find_element("css selector", "[data-group=made-classes] .lines details")
    page.execute_script("arguments[0].open = true", fold)
    wait_for(lambda: fold.find_elements("css selector", "tbody tr"))
    assert len(fold.find_elements("css selector", "tbody tr")) == 30
    heads = fold.find_elements("css selector", "thead th")
    assert [head.text for head in heads] == ["step", "epoch", "fine", "plain"]


def test_light_and_dark_follow_the_system_until_one_is_chosen(page: Any) -> None:
    def ground() -> str:
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def prefer(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    prefer("light")
    light = ground()
    prefer("dark")
    assert ground() != light
    button = page.find_element("css selector", ".theme")
    button.click()
    assert (button.text, ground()) == ("Theme: light", light)
    button.click()
    prefer("light")
    assert button.text == "Theme: dark"
    assert ground() != light
    button.click()
    assert (button.text, ground()) == ("Theme: auto", light)


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_nothing_is_wider_than_the_window(page: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.execute_script(
            "document.querySelectorAll('details').forEach((one) => (one.open = true))"
        )
        wait_for(lambda: drawn(page))
        widest = "return document.documentElement.scrollWidth"
        wait_for(lambda: page.execute_script(widest) <= width)
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_everything_that_can_be_used_has_a_name(page: Any) -> None:
    nameless = page.execute_script(
        "return [...document.querySelectorAll('button, a, summary, [role=region], [role=group]')]"
        ".filter((one) => !(one.textContent.trim() || one.getAttribute('aria-label')))"
        ".map((one) => one.outerHTML.slice(0, 80))"
    )
    assert nameless == []


@pytest.mark.parametrize("width", [420, 1300])
def test_long_names_of_runs_leave_their_figures_in_sight(
    driver: Any, tmp_path: Path, width: int
) -> None:
    write_class_run(tmp_path / "runs" / "scratch", 0.5, (1, 2, 3), encoder="none")
    for word in ("a", "b", "模型" * 9):
        name = f"{word}_{'learning-rate_1e-4_' * 4}end"
        write_class_run(tmp_path / "runs" / name, 0.8, (1, 2, 3))
    found = write_report([tmp_path / "runs"], tmp_path / "page.html")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        driver.get(found.path.resolve().as_uri())
        wait_for(lambda: drawn(driver))
        outside = driver.execute_script(
            "return [...document.querySelectorAll('.dots svg, .forest svg')].map((svg) => {"
            " const left = svg.getBoundingClientRect().left;"
            " const names = [...svg.querySelectorAll('[aria-label*=\"y-axis tick label\"] text')];"
            " return [names.filter((one) => one.textContent.includes('…')).length,"
            "  names.filter((one) => one.getBoundingClientRect().left < left).length]; })"
        )
        assert outside == [[3, 0], [3, 0]]
        # What a run scored stands beside its name, not beyond the edge.
        cut = driver.execute_script(
            "return [...document.querySelectorAll('#overview .sortable, #confusion .matrix')]"
            ".flatMap((table) => [...table.rows].map((row) => row.cells[1].getBoundingClientRect()"
            "  .right - table.parentElement.getBoundingClientRect().right))"
        )
        assert len(cut) > 8
        assert max(cut) <= 0
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [400, 1300])
def test_names_of_layers_do_not_run_into_each_other(page: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        names = "return document.querySelector('#probes .layers svg').textContent"
        wait_for(lambda: ("scalar mix" in page.execute_script(names)) == (width > 400))
        overlaps = page.execute_script(
            "return [...document.querySelectorAll('.layers svg, .shares svg')].flatMap((svg) => {"
            " const boxes = [...svg.querySelectorAll('[aria-label*=\"x-axis tick label\"] text')]"
            "  .map((one) => one.getBoundingClientRect());"
            " return [boxes.length > 1 ? 0 : 1,"
            "  ...boxes.slice(1).map((box, n) => Number(box.left < boxes[n].right))]; })"
        )
        assert len(overlaps) > 10
        assert sum(overlaps) == 0
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_layers_have_points_bars_and_shades_that_can_be_read(page: Any) -> None:
    counts = page.execute_script(
        "return ['#probes .layers circle', '#probes .shares rect', '#similarity .layers circle',"
        " '#frequency .layers circle', '#heads td[style]']"
        ".map((one) => document.querySelectorAll(one).length)"
    )
    assert counts == [4 + 5 + 4, 3 + 4 + 3, 4, 4, 8 * 4]
    contrasts = """
        const cells = "#heads td[style], #confusion td[style]";
        const light = (colour) => {
          const [r, g, b] = [..."rgb"].map((c) => d3.rgb(colour)[c] / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const canvas = document.createElement("canvas").getContext("2d");
        const plain = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
          const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data; return `rgb(${r},${g},${b})`; };
        return [...document.querySelectorAll(cells)].map((cell) => {
          const style = getComputedStyle(cell);
          const [a, b] = [style.color, style.backgroundColor].map((one) => light(plain(one)));
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        });"""
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        assert min(page.execute_script(contrasts)) >= 4.5  # WCAG 2, AA
