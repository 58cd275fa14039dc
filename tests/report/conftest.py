"""One world of made runs, and one report of it, for all tests of reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from finetune.report import Report, write_report
from finetune.report.inside import inside_parts
from finetune.runs.families import using_families
from tests.made.inside import MADE, write_inside
from tests.made.runs import FAMILIES, write_world
from tests.made.texts import write_json


@dataclass(frozen=True)
class Made:
    """A report with what it is of."""

    runs: Path
    report: Report
    text: str


@pytest.fixture(autouse=True)
def _made_families() -> Iterator[None]:
    with using_families(FAMILIES):
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root: Path = tmp_path_factory.mktemp("report")
    runs = write_world(root / "runs")
    broken = root / "broken"
    write_json(broken / "results.json", {})
    (broken / "results.json").write_text('{"task": ')
    page = root / "out" / "page.html"
    places = [runs, broken, root / "nowhere"]
    kinds = [kind for kind in MADE if kind != "attention"]  # which tests/inspection opens
    more = inside_parts([write_inside(root / "inspection", *kinds)])
    with using_families(FAMILIES):
        report = write_report(places, page, title="Made <b>runs</b>", more=more)
    return Made(runs, report, page.read_text(encoding="utf-8"))
