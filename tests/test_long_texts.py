"""Long texts by the front door: training, evaluation and prediction read them alike."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finetune
from finetune.runs.families import make_task
from finetune.runs.fits import find_task
from finetune.runs.folder import RunFolder
from finetune.runs.settings import fit_settings
from finetune.task.answers.classes import softmax
from finetune.text.features.long_texts import LongConfig
from finetune.training.answering import batches_of, predict
from finetune.training.loop.checkpointing import Checkpointer
from tasks.glue.table import GLUE
from tasks.glue.task import GlueTask
from tests.made.commands import Call, Refuses, Start
from tests.made.texts import write_csv
from tests.made.world import World

SHORT = ("--max-length", 8, "--no-baselines")
WINDOWS = (*SHORT, "--long", "windows", "--stride", 2)


def metrics(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())["metrics"]


def answers(run: Path) -> list[dict[str, Any]]:
    return RunFolder(run).read_predictions("validation") or []


def test_texts_that_fit_are_learned_in_windows_as_if_they_were_cut(
    world: World, call: Call, tmp_path: Path
) -> None:
    cut, windows = tmp_path / "cut", tmp_path / "windows"
    rows = [("the cat" if number % 3 else "a dog", str(number % 3 > 0)) for number in range(24)]
    table = write_csv(tmp_path / "table.csv", ["text", "label"], rows)
    words = ["classify", "--train", table, "--validation", table, "--encoder", world.pretrained]
    words += ["--max-length", 16, "--max-epochs", 2, "--batch-size", 8, "--no-baselines"]
    assert call(*words, "--out", cut).status == 0
    assert call(*words, "--out", windows, "--long", "windows", "--stride", 2).status == 0
    assert answers(cut) == answers(windows)
    losses = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (cut, windows)
    ]
    assert [row.get("train/loss") for row in losses[0]] == [
        row.get("train/loss") for row in losses[1]
    ]


def test_an_answer_is_the_average_of_the_windows_everywhere(
    world: World, call: Call, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ran = call(*world.glue(run, *WINDOWS))
    assert ran.status == 0
    assert "read in several windows of 8 tokens" in ran.err
    model = finetune.load(run)
    assert isinstance(model, finetune.Predictor)
    examples = model.task.examples("validation")
    features = model.task.features(examples, model.tokenizer, 8, training=False)
    owners = np.array([feature.example for feature in features])
    assert len(features) > len(examples)
    batches = batches_of(model.task, features, model.tokenizer)
    outputs = predict(model.module, [batches[np.arange(len(features))]])
    means = np.array([softmax(outputs)[owners == n].mean(axis=0) for n in range(len(examples))])
    logits = np.log(means) / model.module.decision.get("temperature", 1.0)
    expected = softmax(logits)
    written = [list(row["probabilities"].values()) for row in answers(run)]
    assert np.array(written) == pytest.approx(expected, rel=1e-5)
    again = call("evaluate", run)
    assert json.loads(again.out)["metrics"] == metrics(run)
    texts = [example.texts[0] for example in examples]
    predicted = [list(row["probabilities"].values()) for row in model.predict(texts)]
    assert np.array(predicted) == pytest.approx(np.array(written), rel=1e-5)
    results = json.loads((run / "results.json").read_text())
    epochs = results["examples_per_second"] * results["train_seconds"]
    assert epochs == pytest.approx(2 * results["data"]["train"]["examples"])  # texts, not windows
    likelihoods = [row["probabilities"][row["label"]] for row in answers(run)]
    told = results["calibration"]["validation"]["nll"]["after"]
    assert told == pytest.approx(-np.log(likelihoods).mean(), rel=1e-4)
    probed = call("inspect", "probe", run, "--seeds", 1, "--out", tmp_path / "probe")
    assert probed.status == 0, probed.err  # which reads the beginning of each text
    about = results["data"]["validation"]
    assert about["in_windows"] == np.mean(np.bincount(owners) > 1)


def test_both_ends_are_stored_in_the_run(world: World, call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ran = call(*world.glue(run, *SHORT, "--long", "head-tail"))
    assert ran.status == 0
    assert "cut to 8 tokens from both ends" in ran.err
    model = finetune.load(run)
    assert isinstance(model, finetune.Predictor)
    assert model.task.long.long == "head-tail"
    assert json.loads(call("evaluate", run).out)["metrics"] == metrics(run)


def test_windows_that_overlap_too_far_are_refused_in_one_line(
    world: World, refuses: Refuses, tmp_path: Path
) -> None:
    words = world.glue(tmp_path / "run", *SHORT, "--long", "windows", "--stride", 6)
    refuses(r"stride \(6\) must be less than the tokens .*: 6 with max_length 8; .*", *words)
    assert not (tmp_path / "run").exists()


def test_each_way_of_reading_has_cached_features_of_its_own(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "table.csv", ["text", "label"], [("a cat", "x"), ("a dog", "y")])
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "who?", "options": ["a cat", "a dog"], "answer": "A"}\n' * 2)
    ways = [LongConfig(), LongConfig("head-tail"), LongConfig("windows")]
    ways += [LongConfig("windows", stride=3), LongConfig("windows", max_windows=3)]
    for task in (
        find_task("classify", train=table, validation=table),
        find_task("choose", train=questions, validation=questions),
        GlueTask(GLUE["sst2"]),
    ):
        read = [dataclasses.replace(task, long=way) for way in ways]  # type: ignore[type-var]
        assert len({one.feature_settings for one in read}) == len(ways)
        assert read[0].feature_settings == task.feature_settings


@pytest.mark.parametrize(
    ("name", "data"),
    [("glue/sst2", "folder"), ("race/middle", "folder"), ("classify/imdb", "folder"),
     ("classify", "files"), ("choose", "files")],
)  # fmt: skip
def test_every_family_takes_the_way_of_reading(name: str, data: str, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "table.csv", ["text", "label"], [("a cat", "x"), ("a dog", "y")])
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "who?", "options": ["a cat", "a dog"], "answer": "A"}\n' * 2)
    file = str(questions if name == "choose" else table)
    given = {"data": str(tmp_path)} if data == "folder" else {"train": file, "validation": file}
    way = LongConfig("windows", stride=5)
    run = fit_settings(name)(encoder_from="none", task=name, long_texts=way, **given)  # type: ignore[call-arg]
    assert make_task(run).long == way


DOCUMENT = (*WINDOWS, "--window-labels", "document", "--pooling", "mean")


def one_loss_a_text(run: Path) -> None:
    """Each answer is that of all windows of a text, read together."""
    model = finetune.load(run)
    assert isinstance(model, finetune.Predictor)
    texts = [example.texts[0] for example in model.task.examples("validation")]
    alone = [list(model.predict(text)[0]["probabilities"].values()) for text in texts[:4]]
    written = [list(row["probabilities"].values()) for row in answers(run)]
    assert np.array(alone) == pytest.approx(np.array(written[:4]), rel=1e-4)


@pytest.mark.parametrize("levels", [1, 2])
def test_documents_are_learned_whole_and_answered_alike(
    world: World, call: Call, tmp_path: Path, levels: int
) -> None:
    run = tmp_path / "run"
    assert call(*world.glue(run, *DOCUMENT, "--levels", levels)).status == 0
    about = json.loads((run / "results.json").read_text())["data"]["train"]
    assert about["examples"] < about["sequences"]
    one_loss_a_text(run)
    assert json.loads(call("evaluate", run).out)["metrics"] == metrics(run)


def test_windows_are_pooled_from_the_cache_as_without_it(
    world: World, call: Call, tmp_path: Path
) -> None:
    cached, computed = tmp_path / "cached", tmp_path / "computed"
    words = (*DOCUMENT, "--unfreeze", "head")
    assert call(*world.glue(cached, *words)).status == 0
    assert list((tmp_path / "cache" / "hidden").glob("*.states"))
    assert call(*world.glue(computed, *words, "--no-cache")).status == 0
    assert answers(cached) == answers(computed)


def test_a_resumed_run_of_documents_is_as_one_that_was_not_interrupted(
    world: World, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert call(*world.glue(whole, *DOCUMENT)).status == 0

    end = Checkpointer.on_train_batch_end

    def stopped(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "on_train_batch_end", stopped)
        assert call(*world.glue(parts, *DOCUMENT)).status == 130
    assert call("glue", "sst2", "--out", parts, "--resume").status == 0
    assert answers(parts) == answers(whole)


def test_two_processes_learn_documents_as_one_does(
    world: World, call: Call, start: Start, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = (*DOCUMENT, "--dropout", 0, "--head-dropout", 0, "--batch-size", 10, "--max-epochs", 1)
    assert start(*world.glue(two, *words, "--devices", 2)).end().status == 0
    assert call(*world.glue(one, *words)).status == 0
    probabilities = [
        [list(row["probabilities"].values()) for row in answers(run)] for run in (one, two)
    ]
    assert np.array(probabilities[0]) == pytest.approx(np.array(probabilities[1]), abs=2e-3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--long", "window"), "--long: expected one of cut, .*, got 'window'; did you mean .*"),
        (("--levels", 2), "levels 2 reads the windows of a text together: expected --long .*"),
        (("--window-labels", "document"), "window_labels document: expected --long windows, .*"),
        ((*DOCUMENT, "--pooling", "concat", "--levels", 2), "levels 2: expected a pooling of .*"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    world: World, refuses: Refuses, tmp_path: Path, flags: Any, message: str
) -> None:
    refuses(message, *world.glue(tmp_path / "run", *flags))
    assert not (tmp_path / "run").exists()
