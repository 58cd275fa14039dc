"""The demo: its table holds what its runs reached, and the pretrained encoder wins for real."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from finetune.run_folder import read_results
from finetune.task import majority
from finetune.training.progress import LengthConfig
from tasks import demo
from tasks.__main__ import main
from tasks.glue import glue_task


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with two steps a run and two tasks."""
    for name in ("pretraining", "fine_tuning"):
        whole = getattr(demo, name)

        def short(*arguments: Any, whole: Any = whole) -> Any:
            return dataclasses.replace(whole(*arguments), length=LengthConfig(max_steps=2))

        monkeypatch.setattr(demo, name, short)
    monkeypatch.setattr(demo, "TASKS", ("sst2", "stsb"))


@pytest.mark.usefixtures("_short")
def test_the_table_holds_what_the_runs_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    printed = capsys.readouterr()
    assert "minutes on two cores" in printed.err
    for name in ("sst2", "stsb"):
        task = glue_task(name, tmp_path / "demo" / "sample")
        scores = [next(iter(majority(task, "validation").values()))]
        for start in ("scratch", "pretrained"):
            results = read_results(tmp_path / "demo" / f"{name}-{start}")
            scores.append(next(iter(results["metrics"].values())))
        (row,) = (line for line in printed.out.splitlines() if line.startswith(name))
        assert row.split()[-3:] == [f"{100 * score:.1f}" for score in scores]


@pytest.mark.usefixtures("_short")
def test_a_second_demo_replaces_the_first_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for _ in range(2):
        assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
        tables.append(capsys.readouterr().out.splitlines()[:-1])
    assert tables[0] == tables[1]


def test_both_starts_are_fine_tuned_under_the_same_settings(tmp_path: Path) -> None:
    runs = [
        dataclasses.asdict(demo.fine_tuning("rte", start, tmp_path, tmp_path, 1))
        for start in ("none", str(tmp_path / "pretrained"))
    ]
    differing = {key for key in runs[0] if runs[0][key] != runs[1][key]}
    assert differing == {"encoder_from", "tokenizer", "out"}
    json.dumps(runs)


@pytest.mark.slow
def test_the_pretrained_encoder_wins(tmp_path: Path) -> None:
    scores = demo.run_demo(tmp_path / "demo", seed=1)
    for name, (baseline, scratch, pretrained) in scores.items():
        assert pretrained > scratch + 0.1, name
        assert pretrained > baseline + 0.1, name
