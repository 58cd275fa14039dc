"""What holds for every test: one thread, no network, no writing outside its own folder."""

from __future__ import annotations

import os

# Before torch is imported: processes that share cores stall each other with more threads than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.__main__ import main
from tests.made.commands import Call, Outcome, Process, Refuses, Start, check_advice
from tests.made.texts import learned_tokenizer
from tests.made.world import World, make_world

if TYPE_CHECKING:
    from finetune.jobs.sources import Model

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

_ASKED_FOR = {
    "slow": "slow; run pytest -m slow",
    "gpu": "needs a CUDA device; run pytest -m gpu",
    "data": "needs the official data sets; set FINETUNE_DATA and run pytest -m data",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker, reason in _ASKED_FOR.items():
            if item.get_closest_marker(marker) and not _can_run(marker, config):
                item.add_marker(pytest.mark.skip(reason=reason))


def _can_run(marker: str, config: pytest.Config) -> bool:
    if not config.option.markexpr:  # what -m asks for runs if it can
        return False
    if marker == "gpu":
        import torch

        return torch.cuda.is_available()
    return marker != "data" or "FINETUNE_DATA" in os.environ


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _denormals_as_ieee_has_them() -> None:
    """A run before flushes them for its whole thread; hypothesis refuses to draw floats then."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def connect_here_only(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test asked the network for {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here_only)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Files to run on, and runs that every test may read and none may change."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One of the words of `tests.made.texts`; some folders have one of their own texts."""
    return learned_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer) -> Model:
    """A small one with weights so large that its heads and layers differ."""
    from finetune.jobs.sources import Model
    from tests.made.nets import tiny_encoder

    return Model(Path("made-up"), tiny_encoder(), tokenizer)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line in this process."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        arguments = [str(word) for word in words]
        outcome = Outcome(main(arguments), *capsys.readouterr())
        if outcome.status and outcome.err:
            check_advice(arguments, outcome.err.splitlines()[-1])
        return outcome

    return run


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
