"""`finetune check`: the facts of data, a baseline, and all that a run would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.__main__ import main

GOOD = "text,label\ngood film,pos\nbad film,neg\ngood  film,neg\n,pos\n"


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Write the files and check them; returns the status and what was printed."""

    def check(*words: str, **files: str) -> tuple[int, str]:
        for name, content in files.items():
            (tmp_path / f"{name}.csv").write_text(content)
        status = main(["check", *(word.replace("DIR", str(tmp_path)) for word in words)])
        return status, capsys.readouterr().out

    return check


def test_facts_and_baseline_of_a_table(check: Any) -> None:
    status, out = check("DIR/train.csv", train=GOOD)
    assert status == 0
    assert out.splitlines()[0] == (
        "train (train.csv): 4 examples, 0 to 2 words, median 2, empty texts: 1, duplicate texts: "
        "1, conflicting labels: 1"
    )
    assert "labels: 2 classes: neg 2, pos 2" in out
    assert "trivial baseline (always pos) on train: accuracy (%) 50.00, macro_f1 (%) 33.33" in out
    assert "a run needs --validation FILE, or --holdout 0.2" in out


def test_texts_in_both_splits_are_counted(check: Any) -> None:
    validation = "text,label\nbad film,neg\nnew,pos\n"
    words = ("DIR/train.csv", "--validation", "DIR/held.csv", "--json")
    status, out = check(*words, train=GOOD, held=validation)
    page = json.loads(out)
    assert (status, page["refused"]) == (0, [])
    assert page["shared_texts"] == {"train/validation": 1}
    assert page["splits"]["validation"]["classes"] == {"neg": 1, "pos": 1}
    baseline = page["trivial"]
    assert (baseline["split"], baseline["answer"]) == ("validation", "pos")
    assert baseline["metrics"]["accuracy"] == baseline["metrics"]["auc"] == 0.5
    assert baseline["metrics"]["macro_f1"] == pytest.approx(1 / 3)
    assert "warning: 1 example of validation have" in check(*words[:-1])[1].replace("has", "have")


def test_all_that_a_run_would_refuse_is_listed(check: Any) -> None:
    words = ("DIR/train.csv", "--validation", "DIR/held.csv", "--test", "DIR/test.csv")
    held, test = "text,label\na,new\n", "text,label\na,pos,1\nb\n"
    status, out = check(*words, train=GOOD, held=held, test=test)
    assert status == 2
    assert "got 'new'; --unknown-label drop leaves such rows out" in out
    assert "got 2 of 2 that cannot be used" in out
    assert out.count("refused: ") == 2


def test_rows_held_out_are_a_split(check: Any) -> None:
    rows = "".join(f"t{n},{'ab'[n % 2]}\n" for n in range(20))
    out = check("DIR/train.csv", "--holdout", "0.2", train=f"text,label\n{rows}")[1]
    assert "train (train.csv): 16 examples" in out
    assert "validation (train.csv): 4 examples" in out


def test_official_task_is_checked_too(check: Any, data: Path) -> None:
    status, out = check("--task", "glue/rte", "--data", str(data))
    assert status == 0
    assert out.startswith("train (train.tsv): 2 examples")
    assert "trivial baseline (always not_entailment) on validation: accuracy (%) 0.00" in out


def test_nothing_to_check_is_an_error(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "check: name a FILE, or an official task by --task glue/rte" in capsys.readouterr().err
