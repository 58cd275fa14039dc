"""`finetune report`: the file on stdout, what is broken on stderr, one line if nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.cli.main import main
from finetune.runs.lock import held
from tests.made.inside import write_inside
from tests.made.runs import write_class_run


def test_the_page_is_written_and_damaged_runs_are_named_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class_run(tmp_path / "a", 0.9, (1, 2))
    write_class_run(tmp_path / "b", 0.6, (1, 2))
    page = tmp_path / "deep" / "page.html"
    words = ["report", tmp_path / "a", tmp_path / "b", tmp_path / "gone", "--out", page]
    options = ["--baseline", tmp_path / "a", "--title", "Ours", "--data", tmp_path]
    assert main([str(word) for word in [*words, *options]], {}) == 0
    said = capsys.readouterr()
    assert said.out == f"{page}\n"
    assert said.err == f"{tmp_path}/gone: expected a run or a folder of runs, got no such folder\n"
    text = page.read_text(encoding="utf-8")
    assert "<h1>Ours</h1>" in text
    assert 'a<span class="below done">baseline' in text


def test_without_any_run_it_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "gone"), "--out", str(page)], {}) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "expected runs to report, got none" in said.err
    assert not page.exists()


def test_a_place_to_write_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs"], {}) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--inside", "--attention"])
def test_a_file_of_inspect_that_is_none_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    write_class_run(tmp_path / "a", 0.9, (1,))
    page = tmp_path / "page.html"
    words = ["report", str(tmp_path / "a"), "--out", str(page), option, "gone.json"]
    assert main(words, {}) == 2
    assert "gone.json: cannot be read" in capsys.readouterr().err
    assert not page.exists()


def test_files_and_folders_of_inspect_become_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class_run(tmp_path / "a", 0.9, (1,))
    page = tmp_path / "page.html"
    folder = write_inside(tmp_path / "inspection", "probe", "heads")
    file = write_inside(tmp_path / "more", "attention") / "attention.json"
    words = ["report", tmp_path / "a", "--out", page, "--inside", folder, "--attention", file]
    assert main([*map(str, words), "--data", str(tmp_path)], {}) == 0, capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert [key for key in ("probes", "heads", "attention") if f'<section id="{key}"' in text] == [
        "probes",
        "heads",
        "attention",
    ]


def test_a_run_that_goes_on_is_called_running(tmp_path: Path) -> None:
    write_class_run(tmp_path / "a", 0.9, (1, 2))
    for gone in ("a/results.json", "a/seed-2/results.json"):
        (tmp_path / gone).unlink()
    page = tmp_path / "page.html"
    words = ["report", str(tmp_path / "a"), "--out", str(page), "--data", str(tmp_path)]
    with held(tmp_path / "a" / "seed-2"):
        assert main(words, {}) == 0
    text = page.read_text(encoding="utf-8")
    assert '<span class="below running">running</span>' in text
    assert "it is running: this is what it has so far" in text
    assert main(words, {}) == 0
    assert '<span class="below interrupted">interrupted</span>' in page.read_text(encoding="utf-8")
