"""A tiny corpus, a tiny SST-2, their settings as YAML, and one run of each kind for all tests."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.__main__ import main

ROOT = Path(__file__).parent.parent.parent
WORDS = (
    "the a cat dog bird sees hears likes red blue small old house tree river and but near".split()
)
SHAPE = """\
encoder:
  hidden_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  intermediate_size: 32
  max_position_embeddings: 32
"""
PRETRAIN = f"""\
{SHAPE}vocabulary: {{vocab_size: 60}}
data: {{max_length: 16, validation_fraction: 0.1}}
loader: {{batch_size: 16}}
optimizer: {{learning_rate: 1.0e-2}}
length: {{max_steps: 12}}
trainer: {{log_every_steps: 5, validate_every_steps: 6}}
checkpoints: {{checkpoint_every_steps: 4}}
tracking: {{wandb: false}}
"""
GLUE = f"""\
{SHAPE}max_length: 16
loader: {{batch_size: 8}}
optimizer: {{learning_rate: 1.0e-2}}
length: {{max_epochs: 2}}
trainer: {{log_every_steps: 5}}
checkpoints: {{checkpoint_every_steps: 4}}
tracking: {{wandb: false}}
"""


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]


@dataclass(frozen=True)
class World:
    """Files to run on, and the runs that every test may read and none may change."""

    root: Path
    corpus: Path
    data: Path
    pretrain_config: Path
    glue_config: Path
    tokenizer: Path
    pretrained: Path
    tuned: Path

    def pretrain(self, out: Path, *more: object) -> list[str]:
        """The words of a pretraining."""
        words = ["pretrain", "--config", self.pretrain_config, "--corpus", self.corpus]
        return [str(word) for word in [*words, "--out", out, *more]]

    def glue(self, out: Path, *more: object, encoder: object = None) -> list[str]:
        """The words of a fine-tuning on SST-2."""
        words = ["glue", "sst2", "--config", self.glue_config, "--data", self.data]
        start = ["--encoder", encoder or self.pretrained]
        return [str(word) for word in [*words, *start, "--out", out, *more]]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root: Path = tmp_path_factory.mktemp("world")
    made = World(
        root=root,
        corpus=root / "corpus.txt",
        data=root / "data",
        pretrain_config=root / "pretrain.yaml",
        glue_config=root / "glue.yaml",
        tokenizer=root / "tokenizer",
        pretrained=root / "pretrained",
        tuned=root / "tuned",
    )
    made.corpus.write_text("\n\n".join(sentences(0, 300)) + "\n", encoding="utf-8")
    made.pretrain_config.write_text(PRETRAIN)
    made.glue_config.write_text(GLUE)
    folder = made.data / "glue_data" / "SST-2"
    folder.mkdir(parents=True)
    for split, seed, count in (("train", 1, 90), ("dev", 2, 30)):
        rows = [f"{text}\t{int('the' in text.split())}" for text in sentences(seed, count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    learn = ["tokenizer", "--corpus", made.corpus, "--vocab-size", 60, "--out", made.tokenizer]
    cache = ["--cache-dir", root / "cache"]
    assert main([str(word) for word in learn]) == 0
    assert main(made.pretrain(made.pretrained, "--tokenizer", made.tokenizer, *cache)) == 0
    assert main(made.glue(made.tuned, *cache)) == 0
    return made


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit status and both streams."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one line of JSON."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The last line of stderr; no command may show a traceback."""
        assert "Traceback" not in self.err
        return self.err.splitlines()[-1]


Call = Callable[..., Outcome]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line in this process."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Outcome(status, *capsys.readouterr())

    return run


Refuses = Callable[..., Outcome]


@pytest.fixture
def refuses(call: Call) -> Refuses:
    """Assert that a command ends in status 2 with one line on stderr that matches a pattern."""

    def check(pattern: str, *words: object) -> Outcome:
        outcome = call(*words)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        assert outcome.err.count("\n") == 1, outcome.err
        assert re.fullmatch(f"finetune: {pattern}\n", outcome.err), outcome.err
        return outcome

    return check


class Process:
    """A command in a process of its own; it is killed, and tells where it hung, after a time."""

    def __init__(
        self, words: list[str], folder: Path, variables: Mapping[str, str], script: Path | None
    ) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        command = ["-m", "tasks"] if script is None else [str(script)]
        self.popen = subprocess.Popen(
            [sys.executable, *command, *words],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, seconds: float = 300) -> Outcome:
        """Wait for its end."""
        try:
            out, err = self.popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.popen.send_signal(signal.SIGABRT)
            out, err = self.popen.communicate()
        return Outcome(self.popen.returncode, out, err)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command line in a process of its own, by a script that may change what happens."""
    started: list[Process] = []

    def run(
        *words: object, variables: Mapping[str, str] | None = None, script: Path | None = None
    ) -> Process:
        started.append(Process([str(word) for word in words], tmp_path, variables or {}, script))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.popen.communicate()
