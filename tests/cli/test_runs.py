"""The table of `finetune runs` fits a terminal of 80 columns, whatever stands in it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from finetune.cli.runs import _table
from finetune.console.tables import WIDTH, columns_of, terminal_width
from finetune.runs.listing import ListedRun


def listed(name: str, **more: object) -> ListedRun:
    about: dict[str, object] = {"task": "glue/rte", "state": "done", "date": None}
    return ListedRun(Path(name), name, **(about | more))  # type: ignore[arg-type]


SHORT = listed("rte", metric="accuracy", score=0.6, encoder="runs/tiny")
WIDE = listed(
    "domain/中文/second-try",
    task="classify/reviews-sentiment",
    metric="accuracy",
    score=0.9581,
    deviation=0.0144,
    encoder="sentence-transformers/all-MiniLM-L6-v2",
    state="interrupted",
    date="2020-02-29T12:00:00+00:00",
    planned=10,
)


@pytest.mark.parametrize("runs", [[SHORT], [SHORT, WIDE], [WIDE, SHORT, WIDE]])
def test_a_run_is_one_line_that_fits(runs: list[ListedRun]) -> None:
    lines = _table(runs, WIDTH).splitlines()
    assert len(lines) == 2 + len(runs)
    assert max(map(columns_of, lines)) <= WIDTH
    assert [line.split()[-1] for line in lines[2:]] == [run.state for run in runs]


def test_the_encoder_is_left_out_before_the_date() -> None:
    assert _table([SHORT], WIDTH).split()[:7] == "run task encoder score seeds date state".split()
    assert "encoder" not in _table([SHORT, WIDE], WIDTH).splitlines()[0]


def test_the_best_baseline_is_shown_where_there_is_space() -> None:
    scores: dict[str, object] = {"metric": "accuracy", "score": 0.6, "elementary_score": 0.59}
    names = {"encoder": "runs/tiny", "elementary": "word_overlap"}
    run = listed("rte-at-a-low-rate", date="2020-02-29T12:00:00+00:00", **scores, **names)
    everything = "run task encoder score elementary seeds date state".split()
    assert _table([run], 120).splitlines()[0].split() == everything
    narrow = [name for name in everything if name != "elementary"]
    assert _table([run], WIDTH).splitlines()[0].split() == narrow


def test_a_wide_terminal_is_used_and_a_pipe_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    assert terminal_width(stream) == WIDTH
    monkeypatch.setattr(stream, "isatty", lambda: True)
    for columns, expected in (("132", 132), ("40", WIDTH)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width(stream) == expected
