"""The commands that are attacked, and what has to be there in the end."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.faults.harness import Call, Fault, Faults, Outcome, kill
from tests.made.texts import has_the, write_corpus, write_tables

PRETRAIN = """\
encoder:
  {hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32,
   max_position_embeddings: 32}
vocabulary: {vocab_size: 60}
data: {max_length: 16, validation_fraction: 0.1}
loader: {batch_size: 8}
optimizer: {learning_rate: 1.0e-2}
length: {max_steps: 5}
trainer: {log_every_steps: 2, validate_every_steps: 3}
checkpoints: {checkpoint_every_steps: 2}
tracking: {wandb: false}
"""
FIT = """\
max_length: 16
loader: {batch_size: 8}
optimizer: {learning_rate: 1.0e-2}
trainer: {log_every_steps: 2}
checkpoints: {checkpoint_every_steps: 2}
tracking: {wandb: false}
"""
CLOCKS = ("train_seconds", "examples_per_second", "peak_gib", "finished", "command")
"""What results.json holds that no two runs have alike."""
NOTHING_THERE = "contains no run to resume; start one without --resume"


@dataclass(frozen=True)
class World:
    """A corpus, a table and a pretrained encoder, and a server that runs commands on them."""

    faults: Faults
    place: Path

    @classmethod
    def make(cls, faults: Faults, place: Path) -> World:
        """Write the files, pretrain the encoder, and let the server import what is needed."""
        world = cls(faults, place)
        write_corpus(place / "corpus.txt", 120)
        write_tables(place, lambda text: "yn"[has_the(text)], train=24, validation=12)
        (place / "pretrain.yaml").write_text(PRETRAIN)
        (place / "fit.yaml").write_text(FIT)
        where = ["--out", place / "encoder", "--cache-dir", place / "cache"]
        done = faults.learn(*world.words("pretrain")[:-4], *where)
        assert done.status == 0, done.err
        done = faults.learn(*world.words("gradual"))
        assert done.status == 0, done.err
        for command in COMMANDS:
            faults.warm_up(*world.words(command))
        faults.clear()
        return world

    def words(self, command: str) -> list[object]:
        """The words of a command; the last four name its folder and its cache."""
        fit = ["classify", "--config", self.place / "fit.yaml", "--encoder", self.place / "encoder"]
        fit += ["--train", self.place / "train.csv", "--validation", self.place / "validation.csv"]
        pretrain = ["pretrain", "--config", self.place / "pretrain.yaml"]
        words: list[object] = {
            "pretrain": [*pretrain, "--corpus", self.place / "corpus.txt"],
            "gradual": [*fit, "--unfreeze", "gradual", "--max-epochs", 4],
            "seeds": [*fit, "--seeds", "1,2", "--max-epochs", 1],
            "adapt": [*fit, "--adapt", "2steps", "--max-epochs", 1],
        }[command]
        root = self.faults.root
        return [*words, "--out", root / "run", "--cache-dir", root / "cache"]


COMMANDS = ("pretrain", "gradual", "seeds", "adapt")


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run of a command: its calls, and all that it leaves."""

    world: World
    command: str
    calls: Sequence[Call]
    left: dict[str, Any]

    @classmethod
    def of(cls, world: World, command: str) -> Reference:
        """Run it."""
        world.faults.clear()
        done = world.faults.run(*world.words(command), trace=True)
        assert done.status == 0, done.err
        return cls(world, command, world.faults.calls(), contents(world.faults.root))

    def points(self, *, taking_space: bool = False) -> list[int]:
        """The calls at which a fault can happen, from 1."""
        calls = enumerate(self.calls, start=1)
        return [number for number, call in calls if call.takes_space or not taking_space]

    def points_of_overwriting(self) -> list[int]:
        """The calls of the command that replaces a finished run, up to its first checkpoint."""
        self.world.faults.clear()
        self.start()
        self.start(None, "--overwrite", trace=True)
        calls = [call.path for call in self.world.faults.calls()]
        first = next(
            n
            for n, path in enumerate(calls)
            if "/.finetune-tmp-" in path and "/checkpoints/" in path
        )
        return list(range(1, first + 1))

    def points_after(self, first: int) -> list[int]:
        """The calls of the command that goes on after it was killed at one."""
        self.world.faults.clear()
        self.start(kill(first))
        self.go_on(trace=True)
        return list(range(1, len(self.world.faults.calls()) + 1))

    def start(self, fault: Fault | None = None, *more: object, trace: bool = False) -> Outcome:
        """Run the command, with a fault."""
        words = self.world.words(self.command)
        return self.world.faults.run(*words, *more, fault=fault, trace=trace)

    def go_on(self, fault: Fault | None = None, *, trace: bool = False) -> Outcome:
        """Resume the run as a user does: where nothing had been written, the same command again."""
        done = self.start(fault, "--resume", trace=trace)
        return self.start(fault, trace=trace) if NOTHING_THERE in done.err else done

    def finished(self) -> str:
        """Go on to the end; says what is wrong then, or nothing."""
        done = self.go_on()
        if done.status != 0:
            return f"going on ends with {done.status}: {done.err.strip()[-300:]}"
        return "; ".join(differences(self.left, contents(self.world.faults.root)))


def survives_kill(reference: Reference, point: int) -> str:
    """Kill a command before a call and go on; says what is wrong in the end, or nothing."""
    reference.world.faults.clear()
    torn = reference.calls[point - 1].name == "write"
    done = reference.start(kill(point, torn=torn))
    if done.status != -9:
        return f"not killed but {done.status}: {done.err.strip()[-300:]}"
    return reference.finished()


def survives_kill_as_it_overwrites(reference: Reference, point: int, how: str) -> str:
    """Kill a command that replaces a finished run.

    Args:
        reference: The command.
        point: The call before which it is killed.
        how: What is said afterwards: `--resume` or `--overwrite`.
    """
    reference.world.faults.clear()
    reference.start()
    done = reference.start(kill(point), "--overwrite")
    if done.status != -9:
        return f"not killed but {done.status}: {done.err.strip()[-300:]}"
    if how == "--resume":
        return reference.finished()
    done = reference.start(None, how)
    if done.status != 0:
        return f"{how} ends with {done.status}: {done.err.strip()[-300:]}"
    return "; ".join(differences(reference.left, contents(reference.world.faults.root)))


def survives_kill_as_it_goes_on(reference: Reference, first: int, second: int) -> str:
    """Kill a command, and the one that goes on too, which may end before that."""
    reference.world.faults.clear()
    reference.start(kill(first))
    done = reference.go_on(kill(second))
    if done.status not in (0, -9):
        return f"going on ends with {done.status}: {done.err.strip()[-300:]}"
    return reference.finished()


def survives_error(reference: Reference, point: int, number: int) -> str:
    """Let a call fail and go on; says what is wrong at once or in the end, or nothing."""
    reference.world.faults.clear()
    done = reference.start(Fault(point, error=number))
    return complaint(done, reference.world.faults.root) or reference.finished()


def complaint(done: Outcome, root: Path) -> str:
    """What is wrong with how an error was told: a line with a file and status 2, or no harm."""
    if "Traceback" in done.err:
        return f"a traceback: {done.err.strip()[-600:]}"
    if done.status not in (0, 2):
        return f"status {done.status}: {done.err.strip()[-300:]}"
    lines = [line for line in done.err.splitlines() if line.startswith("finetune: ")]
    errors = [line for line in lines if not line.startswith("finetune: warning: ")]
    if len(errors) != (done.status == 2):
        return f"told in {len(errors)} lines: {errors}"
    return "".join(f"names no file: {line}" for line in errors if str(root) not in line)


def spread(points: Sequence[int], count: int) -> list[int]:
    """Some of the points, evenly, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    return [points[round(n * (len(points) - 1) / (count - 1))] for n in range(count)]


def contents(root: Path) -> dict[str, Any]:
    """All files and empty folders below one, but for what no two runs have alike."""
    found = (
        path
        for path in root.rglob("*")
        # A part of a corpus that a later session has opened says so, with that day's inode.
        if not (path.is_dir() and any(path.iterdir())) and path.name != "checked.json"
    )
    return {path.relative_to(root).as_posix(): _content(path) for path in found}


def _content(path: Path) -> Any:
    if path.is_dir():
        return "a folder"
    content = path.read_bytes()
    if path.name in _PLAIN:
        return _PLAIN[path.name](content)
    return hashlib.sha256(content).hexdigest()


def _results(content: bytes) -> Any:
    found = json.loads(content)
    for results in [found, *found.get("runs", [])]:
        for name in CLOCKS:
            results.pop(name, None)
    return found


def _metrics(content: bytes) -> Any:
    lines = [json.loads(line) for line in content.decode().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in lines]


def _trainer_state(content: bytes) -> Any:
    state = torch.load(io.BytesIO(content), weights_only=True)
    kept = [_plain(state[name]) for name in ("standing", "optimizer", "best", "finished")]
    return hashlib.sha256(repr(kept).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Without what differs between two files of the same values, such as who shares a string."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.shape, value.tolist())
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _checksums(content: bytes) -> Any:
    """Without that of trainer.pt, which holds the seconds that the run took."""
    return re.sub(rb'"trainer\.pt": "[^"]*"', b"", content)


_PLAIN: dict[str, Callable[[bytes], Any]] = {
    "results.json": _results,
    "metrics.jsonl": _metrics,
    "trainer.pt": _trainer_state,
    "checksums.json": _checksums,
    "log.txt": lambda content: "a log, with clocks and one part for each session",
}


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What of one set of files is missing, left over or different in another."""
    lines = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{name} is left over" for name in sorted(found.keys() - expected.keys())]
    both = sorted(expected.keys() & found.keys())
    return lines + [
        f"{name} is {found[name]!r:.300} in place of {expected[name]!r:.300}"
        for name in both
        if expected[name] != found[name]
    ]
