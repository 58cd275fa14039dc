"""The rank of this process in its run: only the first process writes files and messages.

A run has one process, or several on one machine or more. The first one starts the others; or
torchrun or srun starts all of them; or srun starts one on each machine, and that one the others
there. RANK, LOCAL_RANK or SLURM_PROCID alone do not count, as a shell may have them by accident: a
process that was not started as one of several is the first and only one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec

from finetune.errors import ConfigError

P = ParamSpec("P")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_HERE = "127.0.0.1"
_FIRST_RESERVED_STEP = 0xFFFFFFF0
"""SLURM's numbers of steps from here on are no steps of srun: the batch script, a terminal."""

MARK = "FINETUNE_PROCESS"
"""Variable that the first process sets for those that it starts:
RANK/SIZE/ITS PROCESS ID/PORT/MACHINES/ADDRESS."""


@dataclass(frozen=True)
class Place:
    """A process among those of its run."""

    rank: int = 0
    size: int = 1
    launched: bool = False
    """Whether all processes have been started; if not, the first one starts them."""
    port: int | None = None
    """Port at which they connect; None: the first process chooses."""
    follows: bool = False
    """Whether the first process started this one, after its preparation."""
    machines: int = 1
    address: str = _HERE
    """The machine of the first process."""
    by_torchrun: bool = False
    """Whether torchrun is running and has started all processes, which are then of one run."""
    leads: bool = False
    """Whether srun has started one process on each machine, this one and its like, which start the
    others there."""

    @property
    def here(self) -> int:
        """Processes on each machine."""
        return self.size // self.machines

    @property
    def machine(self) -> int:
        """Number of this process's machine."""
        return self.rank // self.here

    @property
    def local_rank(self) -> int:
        """Number of this process on its machine."""
        return self.rank % self.here

    @property
    def by_launcher(self) -> int:
        """Processes that a launcher has started, where it has."""
        return self.machines if self.leads else self.size

    def mark(self, number: int) -> str:
        """What MARK is for the process that this one starts as the `number`-th on its machine."""
        rank = self.rank + number
        return f"{rank}/{self.size}/{os.getpid()}/{self.port}/{self.machines}/{self.address}"


def find_place(devices: int, environment: Mapping[str, str], parent: int) -> Place:
    """The place of a process in a run of several, by the variables of its launcher.

    Args:
        devices: Number of processes of the run on each machine.
        environment: The environment variables.
        parent: Id of the parent process.

    Returns:
        The first place if no launcher's variables are complete and agree with `devices`.

    Raises:
        ConfigError: torchrun has started another number of processes.
    """
    by_us = _started_by_us(environment, parent)
    if by_us is not None:
        return by_us
    place = _started_by_torchrun(environment)
    if place is not None and _is_child_of_torchrun(environment, place, parent):
        if devices not in (1, place.here):
            raise ConfigError(
                f"devices {devices}: expected {place.here}, the number of processes that torchrun "
                "has started on this machine; leave --devices out"
            )
        return replace(place, by_torchrun=True)
    if devices > 1 and place is not None and place.here == devices:
        return place
    return _place_in_step(devices, _started_by_srun(environment)) or Place(size=devices)


def _place_in_step(devices: int, place: Place | None) -> Place | None:
    """The place in a run that all tasks of srun have in common; None for a run of its own.

    Tasks on one machine that want one process each are runs of their own, which share its devices.
    """
    if place is None:
        return None
    if place.here == devices and (devices > 1 or place.machines > 1):
        return place
    if place.machines > 1 and place.here == 1:
        first, size = place.rank * devices, place.size * devices
        return replace(place, rank=first, size=size, launched=False, leads=True)
    return None


def _started_by_us(environment: Mapping[str, str], parent: int) -> Place | None:
    *texts, address = environment.get(MARK, "").split("/")
    rank, size, first, port, machines = _numbers(texts, 5)
    if first != parent:
        return None
    return Place(rank, size, True, port, follows=True, machines=machines, address=address)


def _started_by_torchrun(environment: Mapping[str, str]) -> Place | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    rank, size, local, here, port = _numbers([environment.get(name, "") for name in names], 5)
    address = environment.get("MASTER_ADDR", _HERE)
    return _checked(rank, size, local, here, port, address)


def _started_by_srun(environment: Mapping[str, str]) -> Place | None:
    """The place in a job step of several tasks; a batch script itself has no SLURM_STEP_ID.

    Nor is a terminal in an allocation such a task: its step has one, whatever SLURM_NTASKS says.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES", "1")
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    texts = [tasks, nodes, *(environment.get(name, "") for name in names)]
    size, machines, rank, local, job, step = _numbers(texts, 6)
    if machines < 1 or not 0 <= step < _FIRST_RESERVED_STEP:
        return None
    address = _HERE
    if machines > 1:
        listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
        address = _first_host(listed)
    # All tasks must choose the same port without a connection; jobs on one machine another one.
    port = 10000 + (10 * job + step) % 10000
    return _checked(rank, size, local, size // machines, port, address)


def _checked(rank: int, size: int, local: int, here: int, port: int, address: str) -> Place | None:
    """A place among several, if the numbers fit together: as many processes on each machine."""
    if size < 2 or here < 1 or size % here or not 0 <= rank < size or rank % here != local:
        return None
    return Place(rank, size, True, port, machines=size // here, address=address)


def _is_child_of_torchrun(environment: Mapping[str, str], place: Place, parent: int) -> bool:
    """Whether torchrun is still there, and has started this very process and no parent of it."""
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or place.port is None:
        return False
    try:
        variables = Path(f"/proc/{parent}/environ").read_bytes().split(b"\0")
        if any(one.startswith(b"TORCHELASTIC_RUN_ID=") for one in variables):
            return False
        socket.create_connection((place.address, place.port), timeout=5).close()
    except OSError:
        return False
    return True


def _first_host(nodes: str) -> str:
    """The first machine of a list as SLURM writes it: `node[03-05,07],other` -> `node03`."""
    match = re.match(r"([^\[,\s]+)(?:\[([^,\-\]]+))?", nodes)
    return "" if match is None else match[1] + (match[2] or "")


def _numbers(texts: list[str], count: int) -> list[int]:
    """The texts as integers; all -1 if one of them is missing or not a number."""
    if len(texts) == count and all(text.isascii() and text.isdigit() for text in texts):
        return [int(text) for text in texts]
    return [-1] * count


_place = _started_by_us(os.environ, os.getppid()) or Place()
_works_alone = hasattr(sys, "ps1")  # a notebook or an interactive Python, wherever it was started


@contextlib.contextmanager
def working_alone() -> Iterator[None]:
    """Let runs of one process in the block be runs of their own, not of all tasks of srun."""
    global _works_alone
    before, _works_alone = _works_alone, True
    try:
        yield
    finally:
        _works_alone = before


def join(devices: int) -> Place:
    """Take this process's place at the start of a run.

    Args:
        devices: Number of processes of the run on each machine.

    Raises:
        ConfigError: An earlier run, or torchrun, started another number of processes.
    """
    global _place
    if _place.follows:
        _end_with_the_first()
    if not _place.launched:
        hidden = "SLURM_" if _works_alone and devices == 1 else "\0"
        environment = {key: os.environ[key] for key in os.environ if not key.startswith(hidden)}
        _place = find_place(devices, environment, os.getppid())
    elif devices not in (1, _place.here):
        raise ConfigError(
            f"devices {devices}: expected {_place.here}, as an earlier run started this number of "
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


def is_first_task() -> bool:
    """Whether this is the first process, also before a run has begun.

    Until then no task of srun knows how many there are.
    """
    return is_first_process() and os.environ.get("SLURM_PROCID", "0") == "0"


def first_process_only(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function do nothing in the other processes of a run."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if is_first_process():
            function(*args, **kwargs)

    return guarded
