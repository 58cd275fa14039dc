"""Tables as spreadsheets and public sets write them, from the command line to a score."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pytest
import torch

from finetune.task.interface import Example
from tasks.own.text import ClassifyTask
from tests.made.texts import sentences

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def table(path: Path, labels: Sequence[str], *, start: str = "", end: str = "\n") -> Path:
    """A table as German Excel writes it, with a text for each label."""
    rows = [f'"{text}; 1,5";{label}' for text, label in zip(sentences(3, 99), labels, strict=False)]
    lines = [*start.splitlines(), "text;label", *rows]
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode("utf-8-sig"))
    return path


def words(world: World, folder: Path, train: Path, validation: Path, *more: object) -> list[Any]:
    start = ["classify", "--train", train, "--validation", validation, "--encoder", "none"]
    tokens = ["--tokenizer", world.tokenizer, "--config", world.glue_config]
    return [*start, *tokens, "--out", folder / "run", *more]


def test_numbers_with_decimal_commas_are_learnt_evaluated_and_answered(
    world: World, call: Call, tmp_path: Path
) -> None:
    rng = random.Random(0)
    column = [f"{rng.randrange(50) / 10}".replace(".", ",") for _ in range(24)]
    train = table(tmp_path / "train.csv", column, start="sep=;", end="\r\n")
    held_out = table(tmp_path / "held-out.csv", column[:12])
    done = call(*words(world, tmp_path, train, held_out, "--test", held_out))
    assert done.status == 0, done.err
    assert "columns: text = text, label = label\n" in done.err
    assert "labels: numbers from " in done.err
    assert "(regression, with the comma as decimal sign)" in done.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    again = call("evaluate", tmp_path / "run", "--file", held_out).json
    assert again["metrics"] == results["test"]["metrics"] == pytest.approx(results["metrics"])
    answers = tmp_path / "answers.jsonl"
    asked = ["predict", tmp_path / "run", "--input", train, "--output", answers]
    assert call(*asked).status == 0
    assert len(answers.read_text().splitlines()) == 24


def test_rows_without_a_label_are_counted_wherever_they_are_left_out(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    train = table(tmp_path / "train.csv", ["0.0", "1.0", "2.0", "", "-1"] * 4)
    held_out = table(tmp_path / "held-out.csv", ["0", "1", "2", "-1"] * 3)
    asked = words(world, tmp_path, train, held_out)
    refuses(
        r".*train.csv:5: expected a label, got an empty cell \(in 8 of 20 rows: lines 5, 6, "
        r"10, 11, 15, …\); --missing drop leaves such rows out",
        *asked,
    )
    done = call(*asked, "--missing", "drop", "--test", held_out)
    assert done.status == 0, done.err
    assert ", unlabeled rows skipped: 8\n" in done.err
    assert "labels: 3 classes: 0 4, 1 4, 2 4\n" in done.err
    assert "warning: labels are whole numbers with decimals, such as 0.0, and are" in done.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["data"]["train"]["skipped"] == {"unlabeled_rows": 8}
    assert results["data"]["validation"]["skipped"] == {"unlabeled_rows": 3}
    assert results["test"]["skipped"] == {"unlabeled_rows": 3}
    again = call("evaluate", tmp_path / "run", "--json")
    assert (again.json["examples"], again.json["skipped"]) == (9, {"unlabeled_rows": 3})
    assert "validation: unlabeled rows skipped: 3\n" in again.err
    repeated = call("classify", "--config", tmp_path / "run" / "config.yaml", "--dry-run")
    assert "labels: 3 classes: 0 4, 1 4, 2 4\n" in repeated.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,label\na,x\nb,y\ntext,label\n", ":4: .* got the header once more .*"),
        ("t.csv", "text,label,\na,x,\nb,y,more\n", ":3: expected nothing behind the last named .*"),
        ("t.csv", b"text,label\na,x\ncaf\xe9,y\n", ":3: expected UTF-8, .* iconv -f WINDOWS-.*"),
        ("t.csv", b"PK\x03\x04\x14\0\x06\0", ":1: expected text, got a ZIP archive, as Excel.*"),
        ("t.csv", 'text,label\na,"1,5"\nb,2\n', ":2: .*'1,5'; say --kind regression if .*"),
        (
            "t.csv",
            "text,label\na,\"['x', 'y']\"\nb,y\n",
            ":3: expected a list of classes such as .*",
        ),
    ],
)
def test_what_would_be_misread_is_refused(
    world: World, refuses: Refuses, tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    refuses(f".*{name}{message}", *words(world, tmp_path, path, path))
    assert not (tmp_path / "run").exists()


def test_warning_is_one_line(world: World, call: Call, tmp_path: Path) -> None:
    train = table(tmp_path / "train.csv", ["a", "b", "c", "a", "b"])
    done = call(*words(world, tmp_path, train, train, "--dry-run"))
    assert (done.status, done.err.count("\nwarning: class 'c' has one example\n")) == (0, 1)


def test_rows_are_held_out_and_a_named_metric_chooses_the_checkpoint(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    train = table(tmp_path / "train.csv", ["yes", "no"] * 20)
    asked = words(world, tmp_path, train, train, "--holdout", "0.25")
    del asked[3:5]  # --validation
    refuses("--monitor must be one of accuracy, .*, loss, got 'f1'.*", *asked, "--monitor", "f1")
    done = call(*asked, "--monitor", "loss")
    assert done.status == 0, done.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["examples"] == 10
    assert set(results["metrics"]) >= {"accuracy", "auc", "macro_precision"}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = {row["step"]: row["val/loss"] for row in map(json.loads, lines) if "val/loss" in row}
    state = torch.load(tmp_path / "run" / "checkpoints" / "last" / "trainer.pt", weights_only=True)
    assert state["best"] == pytest.approx(min(losses.values()))
    assert "other examples" not in call("evaluate", tmp_path / "run").err
    train.write_text(train.read_text() + "the new row;yes\n")
    assert "warning: validation: other examples than" in call("evaluate", tmp_path / "run").err
    for split in ("train", "validation"):  # no row of another file is held out
        outcome = call("evaluate", tmp_path / "run", "--split", split, "--file", train, "--json")
        assert outcome.json["examples"] == 41


def test_regression_starts_at_the_mean_of_the_labels(
    world: World, call: Call, tmp_path: Path
) -> None:
    train = table(tmp_path / "train.csv", [f"{1000 + n},5" for n in range(24)])
    rate = ["--learning-rate", "1e-9", "--kind", "regression"]
    assert call(*words(world, tmp_path, train, train, *rate)).status == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["metrics"]["mean_absolute_error"] < 10


def test_whole_numbers_of_another_packages_task_are_learnt(
    world: World, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ClassifyTask.examples

    def whole(task: ClassifyTask, split: str) -> list[Example]:
        return [
            dataclasses.replace(one, label=int(str(one.label)[:4])) for one in read(task, split)
        ]

    monkeypatch.setattr(ClassifyTask, "examples", whole)
    train = table(tmp_path / "train.csv", [f"{1000 + n},5" for n in range(24)])
    rate = ["--learning-rate", "1e-9", "--kind", "regression"]
    done = call(*words(world, tmp_path, train, train, *rate))
    assert done.status == 0, done.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["metrics"]["mean_absolute_error"] < 10
    assert results["data"]["train"]["numbers"]["max"] == 1023


def test_sheets_of_a_workbook_are_the_splits(
    world: World, call: Call, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = openpyxl.Workbook()
    for split in ("train", "held out"):
        sheet = book.create_sheet(split)
        sheet.append(["text", "label"])
        for number, text in enumerate(sentences(3, 24)):
            sheet.append([text, number % 2])
    book["train"].append(["no label", None])
    book.save(tmp_path / "reviews.xlsx")
    monkeypatch.chdir(tmp_path)
    train, validation = "reviews.xlsx#train", "reviews.xlsx#held out"
    asked = words(world, tmp_path, Path(train), Path(validation))
    refuses(
        "reviews.xlsx: expected one sheet with rows, got train, held out; name one.*",
        *["reviews.xlsx" if word == Path(train) else word for word in asked],
    )
    refuses(
        "reviews.xlsx#train: row 26: expected a label, got an empty cell .*--missing drop.*", *asked
    )
    done = call(*asked, "--missing", "drop")
    assert done.status == 0, done.err
    assert "labels: 2 classes: 0 12, 1 12\n" in done.err
    assert call("check", train, "--missing", "drop").status == 0
    monkeypatch.chdir("/")  # config.yaml has whole paths
    again = call("evaluate", tmp_path / "run", "--json").json
    assert (again["task"], again["examples"]) == ("classify/reviews", 24)
    output = tmp_path / "answers.csv"
    source = f"{tmp_path}/{validation}"
    assert call("predict", tmp_path / "run", "--input", source, "--output", output).status == 0
    assert len(output.read_text().splitlines()) == 25


def test_limit_cuts_every_split_the_same_way_and_says_so(
    world: World, call: Call, tmp_path: Path
) -> None:
    train = table(tmp_path / "train.csv", ["yes", "no"] * 20)
    asked = words(world, tmp_path, train, train, "--limit", "10", "--test", train)
    done = call(*asked)
    assert done.status == 0, done.err
    assert "limit 10: a test of the setup; its scores are of a part of each split\n" in done.err
    assert "warning: validation is read from the training file itself; its scores" in done.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["data"]["train"]["examples"] == results["examples"] == 10
    assert results["test"]["examples"] == 10
    again = call("evaluate", tmp_path / "run", "--json").json
    assert (again["examples"], again["metrics"]) == (10, pytest.approx(results["metrics"]))
    assert call("evaluate", tmp_path / "run", "--file", train, "--json").json["examples"] == 40


def test_texts_in_both_splits_are_warned_of(world: World, call: Call, tmp_path: Path) -> None:
    train = table(tmp_path / "train.csv", ["yes", "no"] * 10)
    lines = train.read_text().splitlines()
    held_out = tmp_path / "held-out.csv"
    held_out.write_text("\n".join([lines[0], lines[3], '"something else";no', lines[5], ""]))
    done = call(*words(world, tmp_path, train, held_out, "--dry-run"))
    assert (
        "warning: 2 of 3 examples of validation have the texts of a training example; their "
        "scores say little\n"
    ) in done.err


def test_each_table_has_a_folder_of_its_own(
    world: World, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = ["--encoder", "none", "--tokenizer", world.tokenizer, "--config", world.glue_config]
    for name in ("reviews", "mails"):
        train = table(tmp_path / f"{name}_train.csv", ["a", "b"] * 8)
        done = call("classify", "--train", train, "--validation", train, *start)
        assert done.status == 0, done.err
    assert {path.name for path in Path("runs").iterdir()} == {"classify-reviews", "classify-mails"}
    resumed = ["classify", "--resume"]
    assert "contains no run to resume; name the run's folder by --out" in call(*resumed).err
    assert call(*resumed, "--train", tmp_path / "reviews_train.csv").status == 0
    more = ["--out", "runs/classify-reviews", "--name", "others", "--no-baselines"]
    done = call(*resumed, *more)
    assert done.status == 0, done.err
    assert "its data keep the name with which the run began, reviews\n" in done.err
    assert done.json["task"] == "classify/reviews"
