"""A run folder is held by the process that writes there, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from finetune.errors import ConfigError
from finetune.runs.lock import LOCK, held, is_running

ROOT = Path(__file__).parents[2]
HOLDER = """\
import os, sys, time
from pathlib import Path
from finetune.runs.lock import held
with held(Path(sys.argv[1])):
    child = os.fork()  # as a process that loads batches
    if child == 0:
        print(os.getpid(), flush=True)  # by the child: now it has closed its copies of the lock
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds a folder, and its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_folder_is_held_as_long_as_the_block_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert not is_running(folder)
    with held(folder):
        assert is_running(folder)
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"
    assert not is_running(folder)
    assert list(folder.iterdir()) == []


def test_an_error_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), held(tmp_path):
        raise ValueError("stop")
    assert not is_running(tmp_path)


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    message = f"{tmp_path}: expected a folder that no running process uses, got .*"
    with held(tmp_path):
        with pytest.raises(ConfigError, match=message), held(tmp_path):
            pass
        assert is_running(tmp_path)


def test_a_killed_process_holds_nothing_even_if_its_children_live_on(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, child):
        assert is_running(tmp_path)
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        assert not is_running(tmp_path)
        assert (tmp_path / LOCK).is_file()
        with held(tmp_path):
            assert is_running(tmp_path)


def test_one_who_looks_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    looking = subprocess.Popen(
        [sys.executable, "-c", f"{LOOK}", str(tmp_path / LOCK)], stdout=subprocess.PIPE, text=True
    )
    assert looking.stdout is not None
    looking.stdout.readline()
    with held(tmp_path):
        assert is_running(tmp_path)
    looking.communicate()


LOOK = """\
import fcntl, sys, time
with open(sys.argv[1], "rb") as file:
    fcntl.flock(file, fcntl.LOCK_SH)
    print("looking", flush=True)
    time.sleep(0.2)
"""
