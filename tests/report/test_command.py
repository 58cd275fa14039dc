"""`finetune report`: the file on stdout, what is broken on stderr, one line if nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.cli.main import main
from tests.report.made import FAMILIES, write_class_run


def test_the_page_is_written_and_damaged_runs_are_named_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class_run(tmp_path / "a", 0.9, (1, 2))
    write_class_run(tmp_path / "b", 0.6, (1, 2))
    page = tmp_path / "deep" / "page.html"
    words = ["report", tmp_path / "a", tmp_path / "b", tmp_path / "gone", "--out", page]
    options = ["--baseline", tmp_path / "a", "--title", "Ours", "--data", tmp_path]
    assert main([str(word) for word in [*words, *options]], FAMILIES) == 0
    said = capsys.readouterr()
    assert said.out == f"{page}\n"
    assert (
        said.err == f"{tmp_path}/gone: expected a run or a folder of runs, found no such folder\n"
    )
    text = page.read_text(encoding="utf-8")
    assert "<h1>Ours</h1>" in text
    assert 'a<span class="below done">baseline' in text


def test_without_any_run_it_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "gone"), "--out", str(page)], FAMILIES) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "expected runs to report, found none" in said.err
    assert not page.exists()


def test_a_place_to_write_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs"], FAMILIES) == 2
    assert "--out" in capsys.readouterr().err


def test_an_attention_map_that_is_none_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class_run(tmp_path / "a", 0.9, (1,))
    page = tmp_path / "page.html"
    words = ["report", str(tmp_path / "a"), "--out", str(page), "--attention", "gone.json"]
    assert main(words, FAMILIES) == 2
    assert "gone.json: cannot be read" in capsys.readouterr().err
    assert not page.exists()
