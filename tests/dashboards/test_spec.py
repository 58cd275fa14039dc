"""The workspace and the report as they would be sent, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.dashboards import spec
from finetune.dashboards.panels import CHAPTERS, SECTIONS
from tasks.__main__ import main

LIBRARY = "wandb_workspaces"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip(LIBRARY)
    file: Path = tmp_path_factory.mktemp("spec") / "spec.json"
    assert main(["dashboard", "--entity", "me", "--project", "mine", "--spec", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def grids(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for block in content["report"]["spec"]["blocks"]:
        if block["type"] == "panel-grid":
            yield block["metadata"]


def test_workspace_has_the_sections_with_their_panels(content: dict[str, Any]) -> None:
    workspace = content["workspace"]
    assert (workspace["entity"], workspace["project"]) == ("me", "mine")
    bank = workspace["spec"]["section"]["panelBankConfig"]
    assert [section["name"] for section in bank["sections"]] == [one.title for one in SECTIONS]
    for made, section in zip(bank["sections"], SECTIONS, strict=True):
        assert len(made["panels"]) == len(section.panels)
    validation = bank["sections"][0]["panels"]
    assert validation[1]["config"]["metrics"] == ["val/loss"]
    assert validation[1]["config"]["xAxis"] == "step"
    assert bank["settings"]["autoOrganizePrefix"] == 1  # what is not placed falls into its section


def test_bands_are_areas_and_rates_are_found_by_their_section(content: dict[str, Any]) -> None:
    bank = content["workspace"]["spec"]["section"]["panelBankConfig"]
    panels = {section["name"]: section["panels"] for section in bank["sections"]}
    assert panels["Unfreezing"][0]["config"]["plotType"] == "stacked-area"
    assert panels["Unfreezing"][0]["config"]["metrics"] == ["frozen/boundary"]
    assert panels["Learning rates"][0]["config"]["metricRegex"] == "^lr/"


def test_report_has_the_chapters_and_each_its_runs(content: dict[str, Any]) -> None:
    blocks = content["report"]["spec"]["blocks"]
    headings = [b["children"][0]["text"] for b in blocks if b["type"] == "heading"]
    assert headings == [chapter.title for chapter in CHAPTERS]
    for grid, chapter in zip(grids(content), CHAPTERS, strict=True):
        (runs,) = grid["runSets"]
        (kind,) = runs["filters"]["filters"]
        assert (kind["key"]["name"], kind["value"]) == ("jobType", list(chapter.jobs))
        assert len(runs["grouping"]) == len(chapter.group)
        assert set(runs["runFeed"]["columnPinned"]) == set(chapter.columns)
        assert len(grid["panelBankSectionConfig"]["panels"]) == len(chapter.panels)


def test_panels_of_the_report_do_not_cover_each_other(content: dict[str, Any]) -> None:
    for grid in grids(content):
        places = [panel["layout"] for panel in grid["panelBankSectionConfig"]["panels"]]
        covered = {
            (x, y)
            for place in places
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert len(covered) == sum(place["w"] * place["h"] for place in places)


def test_seeds_are_shown_as_mean_and_deviation(content: dict[str, Any]) -> None:
    seeds = [*grids(content)][2]["panelBankSectionConfig"]["panels"][0]["config"]
    assert (seeds["groupBy"], seeds["groupAgg"], seeds["groupArea"]) == ("group", "mean", "stddev")


def test_spec_is_the_same_each_time(content: dict[str, Any], tmp_path: Path) -> None:
    spec.write_spec("me", "mine", tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text(encoding="utf-8")) == content


def test_patterns_have_no_look_ahead() -> None:
    panels = [panel for part in (*SECTIONS, *CHAPTERS) for panel in part.panels]
    assert not [panel for panel in panels if "(?" in (panel.pattern or "")]


def test_without_a_login_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(LIBRARY)
    monkeypatch.setattr(spec, "logged_in", lambda: False)
    assert main(["dashboard", "--entity", "me"]) == 2
    said = capsys.readouterr().err
    assert "no login to Weights & Biases: run `wandb login` or set WANDB_API_KEY" in said
    assert said.count("\n") == 1


def test_server_that_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(entity: str, project: str) -> None:
        raise RuntimeError("no\nsuch entity")

    pytest.importorskip(LIBRARY)
    monkeypatch.setattr(spec, "logged_in", lambda: True)
    monkeypatch.setattr(spec, "_workspace", refuse)
    assert main(["dashboard", "--entity", "me"]) == 2
    said = capsys.readouterr().err
    assert "me/finetune: Weights & Biases did not take the dashboard: no such entity;" in said
    assert said.count("\n") == 1


def test_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(spec, "is_installed", lambda name: False)
    words = ["dashboard", "--entity", "me", "--spec", str(tmp_path / "spec.json")]
    assert main(words) == 2
    assert "pip install 'finetune[dashboard]'" in capsys.readouterr().err
    assert not (tmp_path / "spec.json").exists()


def test_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(LIBRARY)
    (tmp_path / "file").write_text("in the way")
    file = tmp_path / "file" / "spec.json"
    assert main(["dashboard", "--entity", "me", "--spec", str(file)]) == 2
    assert f"--spec {file}: Not a directory; name another file" in capsys.readouterr().err
