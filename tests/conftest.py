"""What holds for every test: one thread, no network, no writing outside its own folder."""

from __future__ import annotations

import os

# Before torch is imported: processes that share cores stall each other with more threads than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

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
