"""Several processes do one job, however they are started, with the settings that everybody has."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.run
import yaml

from finetune.checkpoints.folder import load_checkpoint
from tasks.__main__ import main
from tests.made.commands import Outcome
from tests.made.families import Files, write_families
from tests.made.texts import sentences

if TYPE_CHECKING:
    from tests.made.commands import Call, Process, Start
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

def in_backward(rank):  # where the other process waits for this one's gradient
    begin = Checkpointer.on_before_backward
    def began(self, trainer, module, *rest):
        begin(self, trainer, module, *rest)
        if self.progress.step == 5 and trainer.global_rank == rank:
            next(module.parameters()).register_hook(lambda gradient: fail())
    Checkpointer.on_before_backward = began

def fail():
    raise DataError("row 7: expected a text, got none")

RANK = 1

def fail_early(*arguments, **more):
    if place().rank == RANK:
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
    assert_figures_of_all(run, alone)


def assert_figures_of_all(run: Path, alone: Path) -> None:
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


# Many commands, in one start of the processes: what takes their time is to import the libraries.

MANY = """
import atexit, json, os, sys
import torch.distributed
from tasks.__main__ import main

# Called last: torch's threads would abort one of a hundred processes that end without parting.
atexit.register(lambda: torch.distributed.is_initialized() and os._exit(9))

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        assert main(words) == 0, words
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A script that runs the commands in its argument one after the other."""
    script = tmp_path / "many.py"
    script.write_text(MANY)
    return script


@pytest.fixture(scope="module")
def files(world: World) -> Files:
    """Small files of each family, and settings with tracking as it is by default."""
    made = write_families(world.root / "families")
    for config in (made.config, made.span_config):
        settings = yaml.safe_load(config.read_text())
        del settings["tracking"]
        settings["length"] = {"max_epochs": 1}
        config.write_text(yaml.safe_dump(settings))
    return made


def as_json(commands: list[list[object]]) -> str:
    return json.dumps([[str(word) for word in words] for words in commands])


def own(files: Files, kind: str, suffix: str) -> list[object]:
    """The words of a fine-tuning on the user's own files."""
    train, validation = (files.own(f"{split}{suffix}") for split in ("train", "validation"))
    return [kind, "--train", train, "--validation", validation]


def texts_file(folder: Path) -> Path:
    file = folder / "texts.txt"
    file.write_text("\n".join(sentences(5, 40)) + "\n")
    return file


def assert_all_told_once(outcome: Outcome, commands: list[list[object]]) -> None:
    """Each command has printed its results once, and no library a word."""
    assert outcome.status == 0, outcome.err
    tasks = [json.loads(line).get("task") for line in outcome.out.splitlines()]
    assert len(tasks) == len(commands), outcome.out
    for line in outcome.err.splitlines():
        if not line.startswith("warning: "):  # what a run says of its data and of its scores
            assert not re.search("rank|Trace|warning|site-packages|GLOBAL", line), outcome.err
    assert outcome.err.count("training ") == outcome.err.count(" in 2 processes"), outcome.err


def assert_scored_as_by_one(run: Path, call: Call) -> None:
    """One process finds the scores and, but for a last bit, the answers that two have written."""
    before, answers = results_of(run), answers_of(run)
    assert call("evaluate", run).json["metrics"] == before["metrics"]
    assert len(answers) == before["examples"]
    assert answers_of(run) == answers
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1


def answers_of(run: Path) -> list[str]:
    (file,) = (run / "predictions").glob("*.jsonl")
    return file.read_text().splitlines()


def test_every_command_runs_in_two_processes(
    world: World, configs: dict[str, Path], files: Files, tmp_path: Path, many: Path, start: Start,
    call: Call,
) -> None:  # fmt: skip
    two, runs = ["--devices", PROCESSES], tmp_path / "runs"
    base, cache, texts = runs / "base", tmp_path / "cache", texts_file(tmp_path)
    fit: list[object] = ["--encoder", base, "--config", files.config, *two]
    spans: list[object] = ["--encoder", base, "--config", files.span_config, *two]
    data, glue = ["--data", files.data], ["--config", configs["glue"], *two]
    frozen = ["--unfreeze", "gradual", "--max-epochs", 4, "--seeds", "1,2", "--cache-dir", cache]
    trained: list[list[object]] = [
        [*world.pretrain(base, "--config", configs["pretrain"]), *two],
        ["adapt", "--encoder", base, "--corpus", world.corpus, "--max-length", 16,
         "--max-steps", 2, "--out", runs / "adapted", *two],
        [*world.glue(runs / "glue", encoder=base), *glue, *frozen],
        [*world.glue(runs / "ulmfit", encoder=base), *glue, "--adapt", "2steps"],
        ["squad", "2.0", *data, *spans, "--out", runs / "squad"],
        ["race", "middle", *data, *fit, "--out", runs / "race"],
        [*own(files, "classify", ".csv"), *fit, "--out", runs / "classify"],
        [*own(files, "answer", "-answers.jsonl"), *spans, "--out", runs / "answer"],
        [*own(files, "choose", "-choices.jsonl"), *fit, "--out", runs / "choose"],
        [*own(files, "write", "-pairs.jsonl"), *fit, "--out", runs / "write"],
    ]  # fmt: skip
    used: list[list[object]] = [
        ["evaluate", runs / "glue", *two],
        ["evaluate", runs / "squad", *two],
        ["predict", runs / "classify", "--input", texts, "--output", tmp_path / "two.jsonl",
         "--json", *two],
        [*own(files, "classify", ".csv"), *fit, "--out", runs / "rates", "--find-lr"],
    ]  # fmt: skip
    outcome = start(as_json([*trained, *used]), script=many).end(SECONDS)
    assert_all_told_once(outcome, [*trained, *used])
    for name in ("glue/seed-1", "ulmfit", "squad", "race", "classify", "answer", "choose", "write"):
        assert_scored_as_by_one(runs / name, call)
    assert call("predict", runs / "classify", "--input", texts).out.splitlines() == [
        *(tmp_path / "two.jsonl").read_text().splitlines()
    ]
    (line,) = [line for line in lines_of(runs / "ulmfit") if line["step"] == 5]
    assert line["data/examples_seen"] == 5 * BATCH  # of both
    alone = tmp_path / "cache-of-one"
    words = [*world.glue(runs / "one", encoder=base), *glue, *frozen[:-1], alone, "--devices", 1]
    assert call(*words).status == 0
    states = {file.name: file.read_bytes() for file in (cache / "hidden").glob("*.states")}
    assert len(states) > 1
    assert states == {file.name: file.read_bytes() for file in (alone / "hidden").glob("*.states")}


def torchrun(start: Start, *words: object) -> Process:
    """Two processes, as torchrun starts them."""
    options = ["--standalone", "--nproc-per-node", PROCESSES]
    script = Path(str(torch.distributed.run.__file__))
    return start(*options, *words, script=script)


def srun(start: Start, *words: object, script: Path, machines: int = 1) -> list[Process]:
    """Two processes, as srun starts them on one machine; or one on each of two, which is this."""
    nodes = "127.0.0.1,127.0.0.2" if machines > 1 else "node[01-02]"
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NODELIST": nodes}
    size = {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": str(machines)}
    ranks = [
        {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank if machines == 1 else 0)}
        for rank in range(2)
    ]
    return [start(*words, script=script, variables={**step, **size, **rank}) for rank in ranks]


def test_torchrun_says_how_many_processes_there_are(
    files: Files, world: World, tmp_path: Path, many: Path, start: Start, call: Call
) -> None:
    run, texts = tmp_path / "run", texts_file(tmp_path)
    fit = ["--encoder", world.pretrained, "--config", files.config]
    train = [*own(files, "classify", ".csv"), *fit, "--out", run]
    commands: list[list[object]] = [
        [*train, "--dry-run"],
        train,
        ["evaluate", run],
        ["predict", run, "--input", texts, "--output", tmp_path / "two.jsonl", "--json"],
    ]
    outcome = torchrun(start, many, as_json(commands)).end(SECONDS)
    said = [line for line in outcome.err.splitlines() if "OMP_NUM_THREADS" not in line]
    assert_all_told_once(Outcome(outcome.status, outcome.out, "\n".join(said)), commands)
    assert " in 2 processes" in outcome.err
    assert_scored_as_by_one(run, call)
    assert call("predict", run, "--input", texts).out == (tmp_path / "two.jsonl").read_text()


@pytest.mark.parametrize(
    ("machines", "devices"),
    [(1, 2), (2, 1), pytest.param(2, 2, marks=pytest.mark.slow)],
    ids=["two tasks", "a task a machine", "a task a machine that starts another"],
)
def test_srun_starts_the_processes_of_a_run(
    machines: int,
    devices: int,
    files: Files,
    world: World,
    tmp_path: Path,
    many: Path,
    start: Start,
    call: Call,
) -> None:
    run, each = tmp_path / "run", ["--devices", devices]
    fit = ["--encoder", world.pretrained, "--config", files.config, *each]
    # No cache: each machine fills its own, and both are this one here.
    frozen = ["--unfreeze", "gradual", "--phase-epochs", 0.25, "--no-cache"] * (machines > 1)
    commands = [
        [*own(files, "classify", ".csv"), *fit, *frozen, "--out", run],
        ["evaluate", run, *each],
    ]
    tasks = srun(start, as_json(commands), script=many, machines=machines)
    first, second = (process.end(SECONDS) for process in tasks)
    count = machines * devices
    assert f" in {count} processes" in first.err, first.err
    assert_all_told_once(replace(first, err=first.err.replace(f"in {count} ", "in 2 ")), commands)
    assert second == Outcome(0, "", "")
    assert_scored_as_by_one(run, call)


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
        ("in_backward(0)", "row 7: expected a text, got none"),
        ("in_backward(1)", "row 7: expected a text, got none"),
        ("pretraining.build_corpus = fail_early", "row 7: expected a text, got none"),
        (
            "after_step(5, lambda: os.kill(os.getpid(), signal.SIGKILL))",
            "process 2 of 2 was ended by SIGKILL; if memory ran out, lower batch_size or devices; "
            "continue with --resume",
        ),
    ],
    ids=["training", "first in backward", "second in backward", "preparing", "killed"],
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
    assert (tmp_path / "run" / "checkpoints" / "last").exists() == ("pretraining" not in change)


def test_a_run_whose_process_was_killed_goes_on(
    world: World, configs: dict[str, Path], alone: Path, tmp_path: Path, start_changed: Start,
    start: Start,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    words = pretraining(world, configs, run)
    killed = start_changed(*words, change="after_step(7, lambda: os.kill(os.getpid(), 9))")
    assert killed.end(SECONDS).status == 2
    assert_told_once(start(*words, "--resume").end(SECONDS))
    assert_close(run, alone)
    assert [line["step"] for line in lines_of(run)] == [5, 6, 10, 12]


@pytest.mark.parametrize("who", [0, 1])
def test_a_task_of_srun_that_fails_ends_all(
    who: int, world: World, configs: dict[str, Path], tmp_path: Path, start: Start
) -> None:
    script = tmp_path / "changed.py"
    change = f"pretraining.build_corpus = fail_early\nRANK = {who}"
    script.write_text(SCRIPT.format(change=change))
    tasks = srun(start, *pretraining(world, configs, tmp_path / "run"), script=script)
    outcome = tasks[who].end(SECONDS)
    failed = time.monotonic()
    other = tasks[1 - who].end(SECONDS)
    assert time.monotonic() - failed < 30
    assert (outcome.status, other.status) == (2, 2)
    assert outcome.complaint == "finetune: row 7: expected a text, got none"
    whose = "the first process" if who == 0 else "another process"
    assert other.complaint == f"finetune: {whose} of the run has ended; see its error"


@pytest.mark.slow
def test_a_process_of_torchrun_that_fails_ends_all(
    world: World, configs: dict[str, Path], tmp_path: Path, start: Start
) -> None:
    script = tmp_path / "changed.py"
    script.write_text(SCRIPT.format(change="pretraining.build_corpus = fail_early"))
    outcome = torchrun(start, script, *pretraining(world, configs, tmp_path / "run")).end(SECONDS)
    assert outcome.status == 1  # torchrun's own
    assert "finetune: row 7: expected a text, got none\n" in outcome.err
    ends = re.findall(r"exitcode +: (-?\d+)", outcome.err)
    assert ends[-1] == "2", outcome.err


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
