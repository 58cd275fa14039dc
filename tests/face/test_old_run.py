"""A run folder of an earlier version, with its checkpoint and its settings, can still be used.

`old_run/run` was written by version 0.1.0, in a folder with the two tables beside it:

    finetune tokenizer --corpus corpus.txt --vocab-size 60 --out tokenizer
    finetune classify --train train.csv --validation validation.csv --encoder none \\
        --tokenizer tokenizer --hidden-size 8 --num-hidden-layers 1 --num-attention-heads 2 \\
        --intermediate-size 16 --max-position-embeddings 16 --max-length 16 --max-steps 2 \\
        --log-every-steps 1 --no-wandb --out run

It is never written again: names of keys may change, and this one keeps the old ones.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import finetune

if TYPE_CHECKING:
    from tests.made.commands import Call

OLD = Path(__file__).parent / "old_run"
RENAMED = pytest.mark.filterwarnings("ignore:.* is now .*; please rename it:FutureWarning")


@pytest.fixture(autouse=True)
def _in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _same_probabilities(rows: list[dict[str, Any]]) -> None:
    """Whether these are the answers that the old run gave."""
    before = _rows(OLD / "run" / "predictions" / "validation.jsonl")
    assert len(rows) == len(before)
    for row, old in zip(rows, before, strict=True):
        assert row["probabilities"] == pytest.approx(old["probabilities"], abs=1e-4)


def test_evaluate_scores_it(call: Call) -> None:
    outcome = call("evaluate", "run")
    assert outcome.status == 0, outcome.err
    results = json.loads((OLD / "run" / "results.json").read_text())
    assert outcome.json["metrics"].keys() >= results["metrics"].keys()  # later versions add some
    _same_probabilities(_rows(Path("run/predictions/validation.jsonl")))


def test_predict_answers_with_it(call: Call) -> None:
    outcome = call("predict", "run", "--input", "validation.csv", "--output", "answers.jsonl")
    assert outcome.status == 0, outcome.err
    _same_probabilities(_rows(Path("answers.jsonl")))


def test_load_reads_it() -> None:
    lines = Path("validation.csv").read_text().splitlines()[1:]
    texts = [line.rpartition(",")[0] for line in lines]
    _same_probabilities(finetune.load("run").predict(texts))


def test_runs_lists_it(call: Call) -> None:
    (run,) = call("runs", ".", "--json").json["runs"]
    assert (run["name"], run["task"]) == ("run", "classify/own")
    assert run["score"] == json.loads(Path("run/results.json").read_text())["metrics"]["accuracy"]


def test_report_shows_it(call: Call) -> None:
    outcome = call("report", "run", "--out", "page.html", "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.json["runs"] == ["run"]


@RENAMED
def test_another_run_begins_with_its_settings_and_its_checkpoint(call: Call) -> None:
    words = ["--config", "run/config.yaml", "--encoder", "run", "--out", "again"]
    with pytest.warns(FutureWarning, match="is now .*; please rename it"):
        outcome = call("classify", *words, "--overwrite")
    assert outcome.status == 0, outcome.err


@RENAMED
def test_it_goes_on_from_its_last_checkpoint(call: Call) -> None:
    Path("run/results.json").unlink()
    with pytest.warns(FutureWarning, match="is now .*; please rename it"):
        outcome = call("classify", "--config", "run/config.yaml", "--resume")
    assert outcome.status == 0, outcome.err
    assert Path("run/results.json").is_file()
