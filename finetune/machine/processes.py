"""Which of a run's processes this is: the first one writes and speaks, the others only compute.

A run has one process, or `devices` of them on one machine. The first one starts the others; or
torchrun or srun starts all of them. What a shell happens to have in RANK, LOCAL_RANK or
SLURM_PROCID says nothing by itself: a process that nobody started as one of several is the first
and only one.
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
"""What the first process gives those that it starts: RANK/SIZE/ITS OWN PROCESS NUMBER."""


@dataclass(frozen=True)
class Place:
    """A process among those of its run."""

    rank: int = 0
    size: int = 1
    launched: bool = False
    """Whether all of them have been started; if not, the first one does it."""
    port: int | None = None
    """Where they meet on this machine; None: the first one chooses."""
    follows: bool = False
    """Whether the first process has started this one, with its own preparation done."""


def find_place(devices: int, environment: Mapping[str, str], parent: int) -> Place:
    """The place of a process in a run of several, by the variables of whoever started it.

    Args:
        devices: How many processes the run is to have.
        environment: The variables.
        parent: Number of the process that started this one.

    Returns:
        The first place where no launcher's variables are complete and agree with `devices`.
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
    """In a step of several tasks; a batch script itself has no SLURM_STEP_ID."""
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    rank, size, local, job, step = _numbers([environment.get(name, "") for name in names], 5)
    if rank != local or size < 2 or min(job, step) < 0:
        return None
    return Place(rank, size, True, 15000 + (10 * job + step) % 15000)


def _numbers(words: list[str], count: int) -> list[int]:
    """So many whole numbers; -1 for each where one of them is missing or none."""
    if len(words) == count and all(word.isascii() and word.isdigit() for word in words):
        return [int(word) for word in words]
    return [-1] * count


_place = _started_by_us(os.environ, os.getppid()) or Place()


def join(devices: int) -> Place:
    """Take this process's place at the start of a run.

    Args:
        devices: How many processes the run is to have.

    Raises:
        ConfigError: Another number of processes has been started for a run before.
    """
    global _place
    if _place.follows:
        _end_with_the_first()
    if not _place.launched:
        _place = find_place(devices, os.environ, os.getppid())
    elif devices not in (1, _place.size):
        raise ConfigError(
            f"devices {devices}: expected {_place.size}, since so many processes have been started "
            "for a run before; run this one by a command of its own"
        )
    return _place


def _end_with_the_first() -> None:
    """Let the system end this process when the one that started it ends, in whatever way."""
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _started_by_us(os.environ, os.getppid()) is None:  # it has ended already
        os._exit(1)


def others_are_started() -> None:
    """Remember that the first process has started the others."""
    global _place
    _place = replace(_place, launched=True)


def place() -> Place:
    """The place of this process in the run that it began last; the first and only one before."""
    return _place


def is_first_process() -> bool:
    """Whether this is the first of the processes that make a run together, or the only one.

    The others do all that the first one does, but write and say nothing.
    """
    return _place.rank == 0


def first_process_only(function: Callable[P, None]) -> Callable[P, None]:
    """Let a function do nothing in the other processes of a run."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if is_first_process():
            function(*args, **kwargs)

    return guarded
