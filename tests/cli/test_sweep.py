"""`finetune sweep`: runs are trained once, the best is scored on rows that did not choose it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from finetune.errors import DataError
from finetune.jobs import fine_tuning, sweeping
from finetune.runs.folder import RunFolder
from finetune.runs.settings import FitRun
from finetune.runs.sweeps import Planned
from finetune.task.drawing import halves
from finetune.training.loop.checkpointing import Checkpointer
from tasks.glue.task import glue_task
from tests.made.texts import has_the, write_tables

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

Write = Callable[..., Path]
GRID = {"pooling": ["cls", "mean"], "learning-rate": [0.01, 0.02]}


@pytest.fixture
def sweep(world: World, tmp_path: Path) -> Write:
    """Write a sweep of fine-tunings on SST-2."""

    def write(parameters: dict[str, Any], *words: object, **keys: Any) -> Path:
        start = world.glue(tmp_path, "--max-epochs", 1, *words)
        start = start[: start.index("--out")] + start[start.index("--out") + 2 :]
        file = tmp_path / "sweep.yaml"
        content = {"command": " ".join(start), "parameters": parameters, **keys}
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return file

    return write


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders in which something is trained from now on, in order."""
    plain, folders = fine_tuning.fit_once, []

    def noted(run: Any, *rest: Any, **more: Any) -> Any:
        folders.append(Path(run.out).name)
        return plain(run, *rest, **more)

    monkeypatch.setattr(fine_tuning, "fit_once", noted)
    return folders


def mean_of(run: Path) -> float:
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    return float(metrics["accuracy"])


def rows_of(run: Path, split: str) -> list[dict[str, Any]]:
    file = run / "predictions" / f"{split}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def accuracy(rows: list[dict[str, Any]]) -> float:
    return float(np.mean([row["prediction"] == row["label"] for row in rows]))


def test_the_best_is_chosen_on_one_half_and_scored_on_the_other(
    sweep: Write, world: World, tmp_path: Path, call: Call
) -> None:
    file, out = sweep(GRID), tmp_path / "runs"
    summary = call("sweep", file, "--out", out, "--json").json
    assert summary == json.loads((out / "sweep.json").read_text())
    means = {row["name"]: mean_of(out / row["name"]) for row in summary["runs"]}
    assert list(means) == [
        f"learning_rate={rate},pooling={pooling}"
        for pooling in ("cls", "mean")
        for rate in (0.01, 0.02)
    ]
    assert means[summary["best"]] == summary["score"] == max(means.values())
    chosen, fresh = halves(glue_task("sst2", world.data).examples("validation"))
    best = out / summary["best"]
    sides = rows_of(best, "validation"), rows_of(best, "validation_fresh")
    assert [[row["id"] for row in side] for side in sides] == [
        [one.id for one in half] for half in (chosen, fresh)
    ]
    assert accuracy(sides[0]) == pytest.approx(summary["score"])
    scored = summary["fresh"]
    assert (scored["split"], scored["examples"]) == ("validation_fresh", len(fresh))
    assert scored["score"] == pytest.approx(accuracy(sides[1]))
    assert scored["flatters_by"] == pytest.approx(summary["score"] - scored["score"])
    assert scored["interval"][0] <= scored["flatters_by"] <= scored["interval"][1]
    shown = call("sweep", file, "--out", out)
    assert f"the choice flatters by {100 * scored['flatters_by']:+.2f} [95 % over" in shown.out
    assert call("report", out, "--out", tmp_path / "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    assert f"the choice flatters by {100 * scored['flatters_by']:+.2f}" in page
    assert f"best of 4: {summary['best']}" in page
    listed = call("runs", out, "--json").json["runs"]
    assert {run["name"] for run in listed} == means.keys()
    with_baselines = [
        name
        for name in means
        if len(json.loads((out / name / "results.json").read_text())["baselines"]) > 1
    ]
    assert with_baselines == [next(iter(means))]


def test_a_choice_flatters_where_the_fresh_score_is_worse_also_if_lower_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: dict[str, Any] = {"metrics": {"loss": 0.5}, "split": "validation", "examples": 9}
    fresh = ended | {"metrics": {"loss": 0.7}, "split": "validation_fresh"}
    monkeypatch.setattr(sweeping, "evaluate", lambda *_: fresh)
    monkeypatch.setattr(sweeping, "_interval", lambda *_: (-0.3, -0.1))
    best = Planned("a", {}, FitRun("none", out=str(tmp_path)))
    about = sweeping._fresh(best, ended, "loss", "fresh")
    assert about["flatters_by"] == pytest.approx(0.2)
    assert about["interval"] == [0.1, 0.3]


def test_seeds_are_trained_for_each_run_and_judged_by_the_mean(
    sweep: Write, tmp_path: Path, call: Call, trained: list[str]
) -> None:
    file, out = sweep({"pooling": ["cls", "mean"], "seed": [1, 2]}), tmp_path / "runs"
    summary = call("sweep", file, "--out", out, "--json").json
    assert trained == ["seed-1", "seed-2"] * 2
    values = {row["name"]: row["metrics"]["accuracy"]["values"] for row in summary["runs"]}
    best = out / summary["best"]
    assert summary["score"] == pytest.approx(max(map(np.mean, values.values())))
    fresh = [accuracy(rows_of(best / f"seed-{seed}", "validation_fresh")) for seed in (1, 2)]
    assert summary["fresh"]["score"] == pytest.approx(np.mean(fresh))


def test_a_stopped_sweep_continues_and_what_has_ended_is_left(
    sweep: Write, tmp_path: Path, call: Call, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sweep({"learning-rate": [0.01, 0.02]})
    out, whole = tmp_path / "runs", tmp_path / "whole"
    expected = call("sweep", file, "--out", whole, "--json").json
    names = list(trained)
    trained.clear()
    end = Checkpointer.on_train_batch_end

    def stopped(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == 9 and names[1] in str(self.folder):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "on_train_batch_end", stopped)
        outcome = call("sweep", file, "--out", out)
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.complaint.endswith("checkpoints/last; run the same command again")
    assert trained == names
    trained.clear()
    again = call("sweep", file, "--out", out, "--json").json
    assert trained == names[1:]
    for summary in (again, expected):
        for row in summary["runs"]:
            del row["minutes"]
    assert again == expected
    assert trained == names[1:]


def test_values_may_be_added_and_none_taken_away(
    sweep: Write, tmp_path: Path, call: Call, refuses: Refuses, trained: list[str]
) -> None:
    out = tmp_path / "runs"
    rates = {"learning-rate": {"min": 0.001, "max": 0.02, "scale": "log"}}
    drawn = {"method": "random", "runs": 1}
    assert call("sweep", sweep(rates, **drawn), "--out", out).status == 0
    first = list(trained)
    summary = call("sweep", sweep(rates, **drawn | {"runs": 2}), "--out", out, "--json").json
    assert [row["name"] for row in summary["runs"]] == trained
    assert trained[:1] == first
    message = rf"{out}: expected runs of this sweep, got learning_rate=\S+, which is none of its .*"
    refuses(message, "sweep", sweep({"learning-rate": [0.5]}), "--out", out)
    changed = sweep(rates, "--max-length", 12, **drawn | {"runs": 2})
    refuses(f"{out}: the sweep there has another command .*", "sweep", changed, "--out", out)
    assert len(trained) == 2


def test_a_run_that_fails_does_not_stop_the_others_and_is_tried_again(
    sweep: Write, tmp_path: Path, call: Call, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = sweep({"learning-rate": [0.01, 0.02]}), tmp_path / "runs"
    train = fine_tuning._train

    def failing(folder: Any, *rest: Any) -> Any:
        if folder.path.name.endswith("0.01"):
            raise DataError("the loss is not finite")
        return train(folder, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(fine_tuning, "_train", failing)
        outcome = call("sweep", file, "--out", out)
    assert outcome.status == 0
    assert "learning_rate=0.01: the loss is not finite" in outcome.out
    assert "best of 2: learning_rate=0.02" in outcome.out
    trained.clear()
    summary = call("sweep", file, "--out", out, "--json").json
    assert trained == ["learning_rate=0.01"]
    assert {row["state"] for row in summary["runs"]} <= {"done", "degenerate"}


def test_frozen_states_are_computed_once_for_all_runs(
    sweep: Write, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sweep({"learning-rate": [0.01, 0.02]}, "--unfreeze", "head", "--pooling", "mean")
    filled: list[str] = []
    cache = tmp_path / "cache" / "hidden"
    plain = fine_tuning.open_caches

    def noted(*arguments: Any) -> Any:
        caches = plain(*arguments)
        filled.append(
            ",".join(sorted(f"{p.name} {p.stat().st_mtime_ns}" for p in cache.rglob("*.states")))
        )
        return caches

    monkeypatch.setattr(fine_tuning, "open_caches", noted)
    assert call("sweep", file, "--out", tmp_path / "runs").status == 0
    assert len(filled) == 2
    assert filled[0] == filled[1] != ""


def test_one_job_of_an_array_trains_one_run(
    sweep: Write, tmp_path: Path, call: Call, refuses: Refuses, trained: list[str]
) -> None:
    file, out = sweep({"learning-rate": [0.01, 0.02]}), tmp_path / "runs"
    script = call("sweep", file, "--out", out, "--print", "slurm").out
    assert "#SBATCH --array=1-2\n" in script
    (line,) = [line for line in script.splitlines() if line.startswith("exec ")]
    assert line == f'exec finetune sweep {file} --out {out} --run "$SLURM_ARRAY_TASK_ID"'
    assert call("sweep", file, "--out", out, "--run", 2).status == 0
    assert trained == ["learning_rate=0.02"]
    assert not (out / "sweep.json").exists()
    refuses("--run 3: the sweep has 2 runs", "sweep", file, "--run", 3)
    summary = call("sweep", file, "--out", out, "--json").json
    assert trained == ["learning_rate=0.02", "learning_rate=0.01"]
    assert "best" in summary


def test_a_run_of_another_process_is_left_to_it(
    sweep: Write, tmp_path: Path, call: Call, trained: list[str]
) -> None:
    file, out = sweep({"learning-rate": [0.01, 0.02]}), tmp_path / "runs"
    with RunFolder(out / "learning_rate=0.01").hold():
        outcome = call("sweep", file, "--out", out)
    assert trained == ["learning_rate=0.02"]
    assert "learning_rate=0.01 is running in another process" in outcome.err
    assert outcome.out.endswith("1 run to come; the same command continues the sweep\n")


def test_a_run_that_another_process_takes_at_the_same_time_has_not_failed(
    sweep: Write, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see a run that nobody holds; the choice must not be made without it."""
    file, out = sweep({"learning-rate": [0.01, 0.02]}), tmp_path / "runs"
    fit = sweeping.fit
    with ExitStack() as other:

        def taken(run: Any) -> Any:
            if run.out.endswith("0.01"):
                other.enter_context(RunFolder(Path(run.out)).hold())
            return fit(run)

        monkeypatch.setattr(sweeping, "fit", taken)
        outcome = call("sweep", file, "--out", out)
    assert "failed" not in outcome.err + outcome.out
    assert outcome.out.endswith("1 run to come; the same command continues the sweep\n")


def test_the_process_that_ends_last_chooses(
    sweep: Write, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has passed over a run of another process, which has ended by then."""
    file, out = sweep({"learning-rate": [0.01, 0.02]}), tmp_path / "runs"
    assert call("sweep", file, "--out", out, "--run", 1).status == 0
    ended = out / "learning_rate=0.01" / "results.json"
    results, fit = ended.read_bytes(), sweeping.fit
    ended.unlink()
    with ExitStack() as other:
        other.enter_context(RunFolder(ended.parent).hold())

        def meanwhile(run: Any) -> Any:
            ended.write_bytes(results)
            other.close()
            return fit(run)

        monkeypatch.setattr(sweeping, "fit", meanwhile)
        outcome = call("sweep", file, "--out", out)
    assert "learning_rate=0.01 is running in another process" in outcome.err
    assert "best of 2: " in outcome.out


def test_a_labelled_test_file_is_the_fresh_split(world: World, tmp_path: Path, call: Call) -> None:
    words = write_tables(tmp_path, has_the)
    test = tmp_path / "test.csv"
    test.write_text("text,label\n" + "the cat,True\na dog,False\n" * 4)
    file = tmp_path / "own.yaml"
    command = ["classify", *words, "--test", test, "--encoder", world.pretrained, "--no-wandb"]
    command += ["--max-epochs", 1, "--max-length", 16]
    content = {"command": " ".join(map(str, command)), "parameters": {"pooling": ["cls", "mean"]}}
    file.write_text(yaml.safe_dump(content))
    summary = call("sweep", file, "--out", tmp_path / "runs", "--json").json
    best = tmp_path / "runs" / summary["best"]
    assert (summary["fresh"]["split"], summary["fresh"]["examples"]) == ("test", 8)
    assert len(rows_of(best, "validation")) == 16
    assert summary["fresh"]["score"] == pytest.approx(accuracy(rows_of(best, "test")))


def test_pretraining_is_swept_without_fresh_rows(world: World, tmp_path: Path, call: Call) -> None:
    words = world.pretrain(tmp_path, "--tokenizer", world.tokenizer, "--max-steps", 2)
    command = " ".join(words[: words.index("--out")] + words[words.index("--out") + 2 :])
    file = tmp_path / "masking.yaml"
    file.write_text(yaml.safe_dump({"command": command, "parameters": {"mask-rate": [0.2, 0.4]}}))
    outcome = call("sweep", file, "--out", tmp_path / "runs")
    losses = {
        rate: json.loads((tmp_path / "runs" / f"mask_rate={rate}" / "results.json").read_text())
        for rate in (0.2, 0.4)
    }
    best = min(losses, key=lambda rate: losses[rate]["metrics"]["loss"])
    assert f"best of 2: mask_rate={best}" in outcome.out
    assert "there are no fresh ones" in outcome.out


def test_each_seed_of_a_pretraining_is_a_run_and_the_mean_judges(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = world.pretrain(tmp_path, "--tokenizer", world.tokenizer, "--max-steps", 2)
    command = " ".join(words[: words.index("--out")] + words[words.index("--out") + 2 :])
    parameters = {"mask_rate": [0.2, 0.4], "seed": [1, 2]}
    file = tmp_path / "masking.yaml"
    file.write_text(yaml.safe_dump({"command": command, "parameters": parameters}))
    assert call("sweep", file, "--dry-run").out.splitlines()[-1] == "4 runs, 4 trainings"
    summary = call("sweep", file, "--out", tmp_path / "runs", "--json").json
    means = {}
    for row, rate in zip(summary["runs"], (0.2, 0.4), strict=True):
        runs = [tmp_path / "runs" / f"mask_rate={rate},seed={seed}" for seed in (1, 2)]
        losses = [json.loads((run / "results.json").read_text())["metrics"]["loss"] for run in runs]
        assert losses[0] != losses[1]
        assert row["values"] == {"mask_rate": rate}
        assert row["metrics"]["loss"]["values"] == losses
        means[f"mask_rate={rate}"] = sum(losses) / 2
    assert summary["best"] == min(means, key=lambda name: means[name])
    assert summary["score"] == pytest.approx(means[summary["best"]])


def test_the_fresh_half_is_there_for_runs_that_left_it(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    refuses("--split fresh: expected a run .*", "evaluate", world.tuned, "--split", "fresh")
    assert call(*world.glue(tmp_path / "run", "--choose-on-half")).status == 0
    assert call("evaluate", tmp_path / "run").json["metrics"]["accuracy"] == mean_of(
        tmp_path / "run"
    )
    whole = glue_task("sst2", world.data).examples("validation")
    outcome = call("evaluate", tmp_path / "run", "--split", "fresh", "--json")
    assert outcome.json["examples"] == len(halves(whole)[1])


@pytest.mark.parametrize(
    ("parameters", "words", "keys", "message"),
    [
        ({"poling": ["cls"]}, (), {}, r"unknown setting 'poling'; did you mean 'pooling'\?"),
        (
            {"pooling": ["meen"]},
            (),
            {},
            r"pooling: expected one of cls, .*, got 'meen'; did you mean 'mean'\?",
        ),
        ({"learning_rate": ["fast"]}, (), {}, "learning_rate: expected a number, got 'fast'"),
        (
            {"learning_rate": [1], "optimizer.learning_rate": [1]},
            (),
            {},
            "parameters: two of them are the same setting; leave one out",
        ),
        ({"pooling": ["cls"]}, ("--out", "x"), {}, "command: --out is not allowed; .*"),
        ({"pooling": ["cls"]}, ("--no-such", "x"), {}, "glue: unknown option --no-such; .*"),
        (
            {"pooling": ["cls"]},
            (),
            {"fresh": "validation"},
            "fresh: validation chooses the winner; name another split, or half",
        ),
        (
            {"pooling": ["cls"]},
            (),
            {"command": "evaluate x"},
            "command: expected one that trains, got 'evaluate'; choose one of .*",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    parameters: dict[str, Any],
    words: tuple[str, ...],
    keys: dict[str, Any],
    message: str,
    sweep: Write,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    file = sweep(parameters, *words, **keys)
    refuses(rf"{file}: (\S+: )?{message}", "sweep", file, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_values_that_weights_and_biases_cannot_write_are_refused(
    sweep: Write, refuses: Refuses
) -> None:
    file = sweep({"cache": [True, False]})
    refuses("parameters: cache: Weights & Biases writes .*", "sweep", file, "--print", "wandb")
