"""Several processes train together: `--devices 2` with the settings that everybody has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from finetune.checkpoints.folder import load_checkpoint
from tasks.__main__ import main

if TYPE_CHECKING:
    from tests.made.commands import Call, Outcome, Process, Start
    from tests.made.world import World

SECONDS = 300
"""Two processes that take longer hang."""
PROCESSES, BATCH = 2, 8

# What a process does when it runs as `finetune` does, with a change in what happens there.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from finetune.jobs import session
from finetune.errors import DataError
from finetune.machine.processes import place
from finetune.jobs import pretraining
from finetune.training.loop.checkpointing import Checkpointer
from tasks.__main__ import main

end, build = Checkpointer.on_train_batch_end, pretraining.build_corpus

def after_step(number, do):
    def ended(self, trainer, *rest):
        end(self, trainer, *rest)
        if self.progress.step == number and trainer.global_rank == 1:
            do()
    Checkpointer.on_train_batch_end = ended

def fail():
    raise DataError("row 7: expected a text, got none")

def fail_early(*arguments, **more):
    if place().rank == 1:
        fail()
    return build(*arguments, **more)

{change}
if __name__ == "__main__":
    sys.exit(main())
"""
KEEP_WEIGHTS = """
fit = session.Session._fit

def fit_and_save(self, *arguments):
    import torch
    fit(self, *arguments)
    torch.save(self.module.state_dict(), self.folder.path / f"rank-{place().rank}.pt")

session.Session._fit = fit_and_save
"""


@pytest.fixture
def start_changed(start: Start, tmp_path: Path) -> Start:
    """Start a command line in two processes that something happens to."""

    def run(*words: object, change: str) -> Process:
        script = tmp_path / "changed.py"
        script.write_text(SCRIPT.format(change=change))
        return start(*words, script=script)

    return run


@pytest.fixture(scope="module")
def configs(world: World) -> dict[str, Path]:
    """The settings of the tests with tracking as it is by default (offline W&B); no dropout.

    Without it two processes do what one does, and Adam's epsilon hides rounding.
    """
    made = {"pretrain": world.pretrain_config, "glue": world.glue_config}
    for name, path in made.items():
        settings = yaml.safe_load(path.read_text())
        del settings["tracking"]
        settings["encoder"] |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
        settings["optimizer"]["adam_epsilon"] = 1e-3
        settings["loader"]["batch_size"] = BATCH  # an even number of batches in an epoch
        made[name] = world.root / f"{name}-tracked.yaml"
        made[name].write_text(yaml.safe_dump(settings))
    return made


@pytest.fixture(scope="module")
def alone(world: World, configs: dict[str, Path]) -> Path:
    """One process that computes what two processes share."""
    run = world.root / "alone"
    words = ["--config", configs["pretrain"], "--tokenizer", world.tokenizer, "--no-wandb"]
    more = ["--validate-every-steps", 6]
    assert main(world.pretrain(run, *words, *more, "--cache-dir", world.root / "cache")) == 0
    return run


def pretraining(world: World, configs: dict[str, Path], run: Path, *more: object) -> list[str]:
    words = ["--config", configs["pretrain"], "--tokenizer", world.tokenizer]
    return world.pretrain(run, *words, "--devices", PROCESSES, *more)


def results_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


def lines_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_told_once(outcome: Outcome) -> None:
    """Results on stdout and every line on stderr stand there once; nothing of the libraries'."""
    assert outcome.status == 0, outcome.err
    assert list(outcome.json) == ["task", "split", "metrics"]
    for line in outcome.err.splitlines():
        if line.startswith("warning: below the baseline"):
            continue  # the elementary baselines know the made texts better
        assert not re.search("rank|Trace|warning|site-packages|GLOBAL", line), outcome.err
    assert outcome.err.count("training ") == outcome.err.count(" in 2 processes"), outcome.err


def assert_close(left: Path, right: Path) -> None:
    ours, theirs = (
        load_checkpoint(run / "checkpoints" / "last").weights() for run in (left, right)
    )
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-5, rtol=1e-4)


def test_two_processes_pretrain_as_one_with_their_batches(
    world: World, configs: dict[str, Path], alone: Path, tmp_path: Path, start_changed: Start
) -> None:
    run = tmp_path / "run"
    process = start_changed(*pretraining(world, configs, run), change=KEEP_WEIGHTS)
    outcome = process.end(SECONDS)
    assert_told_once(outcome)
    assert outcome.json["metrics"] == results_of(run)["metrics"]
    first, second = (torch.load(run / f"rank-{rank}.pt") for rank in range(PROCESSES))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert_close(run, alone)
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1
    assert not (run / "running.lock").exists()


def test_figures_are_those_of_all_processes(
    world: World, configs: dict[str, Path], alone: Path, tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    assert_told_once(start(*pretraining(world, configs, run)).end(SECONDS))
    ours, theirs = lines_of(run), lines_of(alone)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [5, 6, 10, 12]
    same = ("train/loss", "train/gradient_norm", "val/loss", "data/", "perf/padding", "epoch")
    for mine, other in zip(ours, theirs, strict=True):
        for name in mine:
            if name.startswith(same):
                assert mine[name] == pytest.approx(other[name], rel=1e-4), name
    assert ours[0]["data/examples_seen"] == 5 * BATCH
    for line in (ours[0], ours[2]):
        length = line["perf/tokens_per_second"] / line["perf/examples_per_second"]
        assert length == pytest.approx(16)
    results, expected = results_of(run), results_of(alone)
    seen = [one["examples_per_second"] * one["train_seconds"] for one in (results, expected)]
    assert seen[0] == pytest.approx(seen[1])
    assert results["examples"] == expected["examples"]
    assert 0.1 < results["peak_gib"] < 2
    assert results["peak_gib"] >= ours[2]["perf/peak_gib"]


@pytest.mark.parametrize(
    "more",
    [(), ("--unfreeze", "gradual", "--max-epochs", 4), ("--seeds", "1,2"), ("--adapt", 1)],
    ids=["all", "gradual", "seeds", "adapt"],
)
def test_two_processes_fine_tune(
    more: tuple[object, ...],
    world: World,
    configs: dict[str, Path],
    tmp_path: Path,
    start: Start,
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--config", configs["glue"], "--devices", PROCESSES, *more)
    outcome = start(*words).end(SECONDS)
    assert_told_once(outcome)
    assert outcome.json["metrics"] == results_of(run)["metrics"]
    parts = [run / "seed-1", run / "seed-2"] if "--seeds" in more else [run]
    for part in parts:
        rows = (part / "predictions" / "validation.jsonl").read_text().splitlines()
        assert len(rows) == results_of(part)["examples"] == 30
        lines = [line for line in lines_of(part) if "train/loss" in line]
        assert lines[0]["data/examples_seen"] == lines[0]["step"] * BATCH  # of both
        assert len(list((part / "wandb").glob("offline-run-*"))) == 1
    assert (tmp_path / "run-adapt" / "results.json").exists() == ("--adapt" in more)


# One of the processes ends early


def test_a_stop_of_one_process_stops_both_and_the_run_goes_on(
    world: World, configs: dict[str, Path], alone: Path, tmp_path: Path, start_changed: Start,
    start: Start,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    words = pretraining(world, configs, run)
    change = "after_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM))"
    outcome = start_changed(*words, change=change).end(SECONDS)
    assert outcome.status == 143, outcome.err
    assert outcome.out == ""
    assert outcome.complaint == (
        f"finetune: stopped; checkpoint saved to {run}/checkpoints/last; continue with --resume"
    )
    assert_told_once(start(*words, "--resume").end(SECONDS))
    assert_close(run, alone)
    assert [line["step"] for line in lines_of(run)] == [5, 6, 10, 12]
    seen = [line["data/examples_seen"] for line in lines_of(run) if "train/loss" in line]
    assert seen == [line["data/examples_seen"] for line in lines_of(alone) if "train/loss" in line]
    ended = [
        one["examples_per_second"] * one["train_seconds"] for one in map(results_of, (run, alone))
    ]
    assert ended[0] == pytest.approx(ended[1])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("after_step(5, fail)", "row 7: expected a text, got none"),
        ("pretraining.build_corpus = fail_early", "row 7: expected a text, got none"),
        (
            "after_step(5, lambda: os.kill(os.getpid(), signal.SIGKILL))",
            "process 2 of 2 was ended by SIGKILL; if memory ran out, lower batch_size or devices; "
            "continue from the last checkpoint with --resume",
        ),
    ],
    ids=["training", "preparing", "killed"],
)
def test_a_process_that_fails_ends_all_with_its_error(
    change: str,
    complaint: str,
    world: World,
    configs: dict[str, Path],
    tmp_path: Path,
    start_changed: Start,
) -> None:
    words = pretraining(world, configs, tmp_path / "run", "--log-every-steps", 1)
    process = start_changed(*words, change=change)
    outcome = process.end(SECONDS)
    assert outcome.status == 2, outcome.err
    assert outcome.out == ""
    assert outcome.complaint == f"finetune: {complaint}"
    assert outcome.err.count("finetune: ") == 1
    assert others_of(process) == []
    assert (tmp_path / "run" / "checkpoints" / "last").exists() == ("after_step" in change)


def others_of(process: Process) -> list[str]:
    """Processes that a first one has started and left."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = file.read_bytes().split(b"\0")
        except OSError:
            continue
        mark = f"/{process.popen.pid}/".encode()
        found += [
            file.parent.name for one in variables if b"FINETUNE_PROCESS=" in one and mark in one
        ]
    return found


def test_a_bad_setting_is_told_once(
    world: World, configs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    words = pretraining(world, configs, tmp_path / "run", "--overwrite")
    for setting, complaint in (
        (["--precision", 15], "precision '15'"),
        (["--batch-size", 1], "batch_size 1: expected at least 2, an example for each of devices"),
    ):
        outcome = call(*words, *setting)
        assert outcome.status == 2
        assert outcome.out == ""
        assert complaint in outcome.complaint
        assert outcome.err.count("finetune: ") == 1


def test_learning_rates_are_tried_in_one_process(
    world: World, configs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    outcome = call(*pretraining(world, configs, tmp_path / "run", "--find-lr"))
    assert outcome.status == 0
    assert outcome.json["suggestion"]
