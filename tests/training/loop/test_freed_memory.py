"""Freed memory: kept while there is room, given back where the machine runs short."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune.training.loop import freed_memory
from finetune.training.loop.freed_memory import FreedMemory, available_fraction

MEMORY = """MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    300 kB
HugePages_Total:       0
"""
HELD = """
import sys
import torch
from finetune.training.loop.freed_memory import give_back_freed_memory, keep_freed_memory

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

told = keep_freed_memory()
before = resident()
tensors = [torch.ones(2**20 * size) for size in range(1, 9)]  # 144 MiB
del tensors
kept = resident() - before
told = give_back_freed_memory() and told
left = resident() - before
print(told, kept > 100, left < 50)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in which a system tells of its memory, in place of this one's."""
    monkeypatch.setattr(freed_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(freed_memory, "CGROUP", tmp_path)
    return tmp_path


def test_share_is_that_of_the_machine(machine: Path) -> None:
    (machine / "meminfo").write_text(MEMORY)
    assert available_fraction() == 0.3


@pytest.mark.parametrize(
    ("limit", "used", "cached", "share"),
    [
        ("1000\n", "900\n", 0, 0.1),
        ("1000\n", "900\n", 150, 0.25),
        ("1000", "100", 0, 0.3),
        ("max\n", "900\n", 0, 0.3),
        ("100", "120", 0, 0.0),
    ],
)
def test_share_is_that_of_a_container_where_it_is_less(
    machine: Path, limit: str, used: str, cached: int, share: float
) -> None:
    """Files that the system may forget are not taken."""
    (machine / "meminfo").write_text(MEMORY)
    (machine / "memory.max").write_text(limit)
    (machine / "memory.current").write_text(used)
    (machine / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")
    assert available_fraction() == pytest.approx(share)


@pytest.mark.parametrize("content", [None, "", "MemTotal: 1000 kB", "nonsense", "MemTotal:\n"])
def test_system_that_does_not_tell_has_no_share(machine: Path, content: str | None) -> None:
    if content is not None:
        (machine / "meminfo").write_text(content)
    assert available_fraction() is None


def given_back(shares: Sequence[float | None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which memory is given back, for the shares that are left at each."""
    steps: list[int] = []
    left = iter(shares)
    callback = FreedMemory(lambda: next(left))

    def give_back() -> bool:
        steps.append(step)
        return True

    monkeypatch.setattr(freed_memory, "give_back_freed_memory", give_back)
    for step in range(len(shares)):
        callback.on_train_batch_end(None, None, None, None, step)
    return steps


def test_it_is_given_back_once_when_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"19% of the memory is left: freed memory is returned to the system .same numbers"
    with pytest.warns(UserWarning, match=message):
        assert given_back([0.5, 0.21, 0.19, 0.1], monkeypatch) == [2]


def test_it_is_kept_where_there_is_room_or_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given_back([0.5, 0.2, None, 0.9], monkeypatch) == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux and glibc")
def test_what_is_kept_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True True\n", "")


def test_every_run_looks_after_it() -> None:
    from finetune.training.config import TrainerConfig
    from finetune.training.loop.progress import LengthConfig
    from finetune.training.loop.trainer import build_trainer

    config, length = TrainerConfig(accelerator="cpu"), LengthConfig(max_steps=1)
    made: Any = build_trainer(config, length, callbacks=[], loggers=[])
    assert any(isinstance(one, FreedMemory) for one in made.callbacks)
