"""Runs that are killed, stopped and started again: by torchrun, in parts, by other numbers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from finetune.checkpoints.folder import load_checkpoint
from finetune.files.sharded import PARTS
from finetune.jobs import fine_tuning, sweeping
from finetune.jobs import pretraining as pretraining_job
from finetune.machine.restarts import requeue
from finetune.training.loop.checkpointing import Checkpointer
from tests.made.commands import ROOT, Process

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

SECONDS = 500
"""Two processes that take longer hang."""
SETTINGS = """
{encoder: {hidden_dropout_prob: 0, attention_probs_dropout_prob: 0},
 optimizer: {adam_epsilon: 1.0e-3}, checkpoints: {checkpoint_every_steps: 2}}
"""

# Kills one of the processes in each of the first attempts; the last one is left alone.
SCRIPT = """
import os, random, signal, sys
import safetensors.torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from finetune.files import writing
from finetune.machine.processes import place
from finetune.training.loop.checkpointing import Checkpointer
from tasks.__main__ import main

KILLS = {kills}
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
chance = random.Random(attempt)  # the same in all processes
steps = (Checkpointer, "on_train_batch_start"), (Checkpointer, "on_before_backward")
files = (safetensors.torch, "save_file"), (writing, "_swap"), (writing, "_flush")
if "fsdp" in sys.argv:
    steps += (FileSystemWriter, "write_data"),
owner, name = chance.choice(steps + files if attempt else steps)
victim = chance.randrange(2) if (owner, name) in steps else 0  # the first one writes
calls_left = chance.randint(1, 3) if attempt else 6
plain = getattr(owner, name)

def dying(*arguments, **more):
    global calls_left
    calls_left -= 1
    if calls_left == 0 and place().rank == victim:
        print("killed in", name, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **more)

if __name__ == "__main__":
    if attempt < KILLS:
        setattr(owner, name, dying)
    sys.exit(main())
"""
STOPPED = """
import os, signal, sys
from finetune.training.loop.checkpointing import Checkpointer
from tasks.__main__ import main

end = Checkpointer.on_train_batch_end

def asked(self, trainer, *rest):
    end(self, trainer, *rest)
    if self.progress.step == 7 and trainer.global_rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    Checkpointer.on_train_batch_end = asked
    sys.exit(main())
"""


def pretraining(world: World, run: Path, *more: object) -> list[str]:
    settings = yaml.safe_load(world.pretrain_config.read_text())
    for section, values in yaml.safe_load(SETTINGS).items():
        settings[section] = settings.get(section, {}) | values
    config = world.root / "elastic.yaml"
    config.write_text(yaml.safe_dump(settings))
    words = ["--config", config, "--tokenizer", world.tokenizer, "--devices", 2, *more]
    return world.pretrain(run, *words, "--cache-dir", world.root / "cache")


def weights_of(run: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "checkpoints" / which).weights()


def largest_difference(left: Path, right: Path, which: str = "last") -> float:
    ours, theirs = weights_of(left, which), weights_of(right, which)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.fixture(scope="module")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing happens to."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = Process(pretraining(world, run), run.parent, {}, None).end(SECONDS)
    assert outcome.status == 0, outcome.err
    return run


@pytest.mark.parametrize(
    ("kills", "strategy"),
    [
        (1, "ddp"),
        pytest.param(10, "ddp", marks=pytest.mark.slow),
        pytest.param(10, "fsdp", marks=pytest.mark.slow),
    ],
)
def test_torchrun_starts_a_killed_run_again_to_the_same_bits(
    kills: int, strategy: str, world: World, undisturbed: Path, tmp_path: Path
) -> None:
    script, run = tmp_path / "dying.py", tmp_path / "run"
    script.write_text(SCRIPT.format(kills=kills))
    launcher = ["--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", str(kills)]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launcher, str(script)]
        + pretraining(world, run, "--strategy", strategy),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS * kills,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("killed in ") >= 0.8 * kills  # it may end before the last one comes
    for which in ("last", "best"):
        assert largest_difference(run, undisturbed, which) <= 1e-5 * (strategy == "fsdp"), which
    ours, theirs = (
        json.loads((each / "results.json").read_text())["metrics"] for each in (run, undisturbed)
    )
    assert ours == (theirs if strategy == "ddp" else pytest.approx(theirs, rel=1e-4))
    assert not any(run.rglob(".finetune-*"))


def test_a_run_in_parts_is_stopped_and_goes_on_in_parts_or_whole(
    world: World, undisturbed: Path, tmp_path: Path, call: Call
) -> None:
    run, script = tmp_path / "run", tmp_path / "stopped.py"
    words = pretraining(world, run, "--strategy", "fsdp")
    script.write_text(STOPPED)
    outcome = Process(words, tmp_path, {}, script).end(SECONDS)
    assert outcome.status == 143, outcome.err
    last = run / "checkpoints" / "last"
    files = sorted(file.name for file in (last / PARTS).iterdir())
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert not (last / "model.safetensors").exists()
    assert weights_of(run).keys() == weights_of(undisturbed).keys()
    alone = tmp_path / "alone"
    shutil.copytree(run, alone)
    one = pretraining(world, alone, "--devices", 1, "--micro-batches", 3, "--resume")
    assert call(*one).status == 0
    assert largest_difference(alone, undisturbed) < 1e-5
    outcome = Process([*words, "--resume"], tmp_path, {}, None).end(SECONDS)
    assert outcome.status == 0, outcome.err
    assert (last / "model.safetensors").is_file()
    assert largest_difference(run, undisturbed) < 1e-5
    assert largest_difference(run, undisturbed, "best") < 1e-5


@pytest.mark.slow
def test_what_rows_remember_of_their_streams_goes_on_in_one_process(
    world: World, tmp_path: Path, call: Call
) -> None:
    memory = ["--causal", "--position", "relative", "--memory", 20, "--no-baselines"]
    run, whole, script = tmp_path / "run", tmp_path / "whole", tmp_path / "stopped.py"
    script.write_text(STOPPED)
    outcome = Process(pretraining(world, run, *memory), tmp_path, {}, script).end(SECONDS)
    assert outcome.status == 143, outcome.err
    assert call(*pretraining(world, run, *memory, "--devices", 1, "--resume")).status == 0
    assert call(*pretraining(world, whole, *memory, "--devices", 1)).status == 0
    assert largest_difference(run, whole) < 1e-5


def test_fine_tuning_in_parts_is_that_of_one_process(
    world: World, tmp_path: Path, call: Call
) -> None:
    same = ["--dropout", 0, "--adam-epsilon", 1e-3]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert call(*world.glue(whole, *same)).status == 0
    words = world.glue(parts, *same, "--devices", 2, "--strategy", "fsdp")
    outcome = Process(words, tmp_path, {}, None).end(SECONDS)
    assert outcome.status == 0, outcome.err
    assert largest_difference(parts, whole) < 1e-5
    assert largest_difference(parts, whole, "best") < 1e-5
    ours, theirs = (json.loads((run / "results.json").read_text()) for run in (parts, whole))
    assert ours["metrics"] == theirs["metrics"]
    assert ours["parameters"] == theirs["parameters"]


def test_what_needs_whole_weights_is_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = world.glue(tmp_path / "run", "--devices", 2, "--strategy", "fsdp")
    refuses(".* without mixout and l2_sp, got mixout; remove it, .*", *words, "--mixout", 0.1)
    refuses(".*, got unfreeze; remove it, .*", *words, "--unfreeze", "gradual")


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name, which writes down what it was asked."""
    program, asked = tmp_path / "bin" / "scontrol", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    return asked


def test_a_job_is_requeued_if_asked_and_continues_by_itself(
    world: World, tmp_path: Path, call: Call, scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer, "--requeue")
    end = Checkpointer.on_train_batch_end

    def warned(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == 7:
            os.kill(os.getpid(), signal.SIGUSR1)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "on_train_batch_end", warned)
        outcome = call(*words)
    assert outcome.status == 128 + signal.SIGUSR1
    assert "SLURM job 77 is requeued; it continues from the last checkpoint" in outcome.err
    assert scontrol.read_text() == "requeue 77\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert call(*words).status == 0
    assert largest_difference(tmp_path / "run", world.pretrained) == 0
    assert call(*world.pretrain(tmp_path / "new", "--tokenizer", world.tokenizer)).status == 0


# Name -> what is called when the signal comes, the how many-th call of it, and the command.
OUTSIDE_OF_TRAINING: dict[str, tuple[Any, str, int]] = {
    "before the folder is open": (pretraining_job, "build_corpus", 1),
    "between seeds": (fine_tuning, "prepare", 3),
    "between runs of a sweep": (sweeping, "_train_one", 2),
}


@pytest.mark.parametrize("when", OUTSIDE_OF_TRAINING)
def test_a_signal_outside_of_training_requeues_too(
    when: str, world: World, tmp_path: Path, call: Call, scontrol: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    words = world.glue(run, "--seeds", "1,2", "--max-steps", 2, "--requeue")
    if when == "before the folder is open":
        settings = yaml.safe_load(world.pretrain_config.read_text())
        settings["checkpoints"]["requeue"] = True  # in a file this time
        (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
        config = ["--config", tmp_path / "settings.yaml", "--max-steps", 2]
        words = world.pretrain(run, "--tokenizer", world.tokenizer, *config)
    if when == "between runs of a sweep":
        command = shlex.join(world.glue(run, "--max-steps", 2, "--requeue"))
        (tmp_path / "sweep.yaml").write_text(
            yaml.safe_dump(
                {
                    "command": command.replace(f" --out {run}", ""),
                    "method": "grid",
                    "parameters": {"learning_rate": [1e-3, 1e-2]},
                }
            )
        )
        words = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(run)]
    owner, name, number = OUTSIDE_OF_TRAINING[when]
    plain, calls = getattr(owner, name), []

    def warned(*arguments: Any, **more: Any) -> Any:
        calls.append(name)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGUSR1)
        return plain(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, warned)
        outcome = call(*words)
    assert outcome.status == 128 + signal.SIGUSR1
    assert outcome.complaint == "finetune: stopped; no file was left half written"
    assert outcome.err.count("SLURM job 77 is requeued; it continues") == 1
    assert scontrol.read_text() == "requeue 77\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    outcome = call(*words)
    assert outcome.status == 0, outcome.err


def test_who_did_not_ask_is_not_requeued(
    world: World, tmp_path: Path, call: Call, scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched = (pretraining_job, "build_corpus")
    monkeypatch.setattr(*patched, lambda *_, **__: os.kill(os.getpid(), signal.SIGUSR1))
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer)
    assert call(*words).status == 128 + signal.SIGUSR1
    monkeypatch.setattr(*patched, lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert call(*words, "--requeue").status == 128 + signal.SIGTERM
    assert not scontrol.exists()


def test_a_job_that_cannot_be_requeued_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert requeue("78") == (
        "SLURM job 78 could not be requeued ([Errno 2] No such file or directory: 'scontrol'); "
        "continue with --resume"
    )
