"""One world of made runs, and one report of it, for all tests of reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from finetune.report import Report, write_report
from tests.report.made import FAMILIES, write_json, write_world


@dataclass(frozen=True)
class Made:
    """A report with what it is of."""

    runs: Path
    report: Report
    text: str


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root: Path = tmp_path_factory.mktemp("report")
    runs = write_world(root / "runs")
    broken = root / "broken"
    write_json(broken / "results.json", {})
    (broken / "results.json").write_text('{"task": ')
    page = root / "out" / "page.html"
    places = [runs, broken, root / "nowhere"]
    report = write_report(places, page, families=FAMILIES, title="Made <b>runs</b>")
    return Made(runs, report, page.read_text(encoding="utf-8"))
