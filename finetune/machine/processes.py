"""The rank of this process in its run: only the first process writes files and messages.

A run has one process, or `devices` of them on one machine. The first one starts the others; or
torchrun or srun starts all of them. RANK, LOCAL_RANK or SLURM_PROCID alone do not count, as a shell
may have them by accident: a process that was not started as one of several is the first and only
one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ParamSpec

from finetune.errors import ConfigError

P = ParamSpec("P")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h

MARK = "FINETUNE_PROCESS"
"""Variable that the first process sets for those that it starts: RANK/SIZE/ITS PROCESS ID/PORT."""


@dataclass(frozen=True)
class Place:
    """A process among those of its run."""

    rank: int = 0
    size: int = 1
    launched: bool = False
    """Whether all processes have been started; if not, the first one starts them."""
    port: int | None = None
    """Port at which they connect on this machine; None: the first process chooses."""
    follows: bool = False
    """Whether the first process started this one, after its preparation."""


def find_place(devices: int, environment: Mapping[str, str], parent: int) -> Place:
    """The place of a process in a run of several, by the variables of its launcher.

    Args:
        devices: Number of processes of the run.
        environment: The environment variables.
        parent: Id of the parent process.

    Returns:
        The first place if no launcher's variables are complete and agree with `devices`.
    """
    by_us = _started_by_us(environment, parent)
    if by_us is not None:
        return by_us
    if devices > 1:
        for read in (_started_by_torchrun, _started_by_srun):
            place = read(environment)
            if place is not None and place.size == devices and 0 <= place.rank < devices:
                return place
    return Place(size=devices)


def _started_by_us(environment: Mapping[str, str], parent: int) -> Place | None:
    rank, size, first, port = _numbers(environment.get(MARK, "").split("/"), 4)
    return Place(rank, size, True, port, follows=True) if first == parent else None


def _started_by_torchrun(environment: Mapping[str, str]) -> Place | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    rank, size, local, here, port = _numbers([environment.get(name, "") for name in names], 5)
    return Place(rank, size, True, port) if rank == local and size == here > 1 else None


def _started_by_srun(environment: Mapping[str, str]) -> Place | None:
    """The place in a job step of several tasks; a batch script itself has no SLURM_STEP_ID."""
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    rank, size, local, job, step = _numbers([environment.get(name, "") for name in names], 5)
    if rank != local or size < 2 or min(job, step) < 0:
        return None
    # All tasks must choose the same port without a connection; jobs on one machine another one.
    return Place(rank, size, True, 15000 + (10 * job + step) % 15000)


def _numbers(texts: list[str], count: int) -> list[int]:
    """The texts as integers; all -1 if one of them is missing or not a number."""
    if len(texts) == count and all(text.isascii() and text.isdigit() for text in texts):
        return [int(text) for text in texts]
    return [-1] * count


_place = _started_by_us(os.environ, os.getppid()) or Place()


def join(devices: int) -> Place:
    """Take this process's place at the start of a run.

    Args:
        devices: Number of processes of the run.

    Raises:
        ConfigError: An earlier run started another number of processes.
    """
    global _place
    if _place.follows:
        _end_with_the_first()
    if not _place.launched:
        _place = find_place(devices, os.environ, os.getppid())
    elif devices not in (1, _place.size):
        raise ConfigError(
            f"devices {devices}: expected {_place.size}, as an earlier run started this number of "
            "processes; start this run by another command"
        )
    return _place


def _end_with_the_first() -> None:
    """Let the system kill this process when the first one ends, even by a kill."""
    with contextlib.suppress(OSError, AttributeError):  # other systems than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _started_by_us(os.environ, os.getppid()) is None:  # it has ended already
        os._exit(1)


def others_are_started() -> None:
    """Note that the first process has started the others."""
    global _place
    _place = replace(_place, launched=True)


def place() -> Place:
    """The place of this process in its latest run; before any run, the first and only one."""
    return _place


def is_first_process() -> bool:
    """Whether this is the first process of a run, or the only one.

    The others compute the same, but write no files and no messages.
    """
    return _place.rank == 0


def first_process_only(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function do nothing in the other processes of a run."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if is_first_process():
            function(*args, **kwargs)

    return guarded
