"""Which process of a run this is: what launchers say counts, what a shell has left does not."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.errors import ConfigError
from finetune.machine import processes
from finetune.machine.processes import MARK, Place, find_place

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "7041",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "2",
}
BATCH_SCRIPT = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
del BATCH_SCRIPT["SLURM_STEP_ID"]


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN])
def test_a_launchers_process_has_its_place(variables: dict[str, str]) -> None:
    place = find_place(2, variables, parent=1)
    assert (place.rank, place.size, place.launched) == (1, 2, True)
    assert place.port is not None
    assert not place.follows
    first = {**variables, "RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert find_place(2, first, parent=1) == Place(0, 2, True, place.port)


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN, BATCH_SCRIPT, {"RANK": "1"}])
def test_who_wants_one_process_is_the_only_one(variables: dict[str, str]) -> None:
    assert find_place(1, variables, parent=1) == Place()


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN])
def test_variables_that_are_not_complete_or_disagree_mean_nothing(
    variables: dict[str, str],
) -> None:
    for name in variables:
        if name != "MASTER_ADDR":
            rest = {key: value for key, value in variables.items() if key != name}
            assert find_place(2, rest, parent=1) == Place(size=2), name
    assert find_place(4, variables, parent=1) == Place(size=4)
    assert find_place(2, {**variables, "LOCAL_RANK": "0", "SLURM_LOCALID": "0"}, 1) == Place(size=2)
    assert find_place(2, {**variables, "RANK": "-1", "SLURM_PROCID": "x"}, 1) == Place(size=2)


def test_a_batch_script_itself_is_no_task_of_several() -> None:
    assert find_place(2, BATCH_SCRIPT, parent=1) == Place(size=2)


@pytest.mark.parametrize("step", [str(0xFFFFFFFA), "0"])
def test_a_terminal_in_an_allocation_is_no_task_of_several(step: str) -> None:
    # salloc gives its shell the allocation's number of tasks, and a step of one.
    shell = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    shell |= {"SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "1"}
    for devices in (1, 8):
        assert find_place(devices, shell, parent=1) == Place(size=devices)
    # Without the number of its tasks the number of the step says it.
    del shell["SLURM_STEP_NUM_TASKS"]
    assert find_place(8, shell, parent=1).launched == (step == "0")


def test_processes_on_several_machines_meet_on_the_first() -> None:
    names = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04,7],login"}
    srun = {**SRUN, **names, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
    torchrun = {**TORCHRUN, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03"}
    for variables in (srun, torchrun):
        place = find_place(2, variables, parent=1)
        assert (place.rank, place.size, place.machines, place.address) == (3, 4, 2, "gpu03")
        assert (place.machine, place.local_rank, place.here) == (1, 1, 2)
        # Dealt out in turns, the processes of a machine are not those that follow one another.
        assert find_place(2, {**variables, "RANK": "2", "SLURM_PROCID": "2"}, 1) == Place(size=2)


def test_one_task_on_each_machine_starts_the_others_there() -> None:
    names = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    srun = {**SRUN, **names, "SLURM_LOCALID": "0"}
    alone = find_place(1, srun, parent=1)
    assert (alone.rank, alone.size, alone.machines, alone.launched) == (1, 2, 2, True)
    place = find_place(4, srun, parent=1)
    assert (place.rank, place.size, place.leads, place.launched) == (4, 8, True, False)
    assert (place.machine, place.local_rank, place.here, place.by_launcher) == (1, 0, 4, 2)
    other = find_place(4, {**srun, MARK: place.mark(3)}, parent=os.getpid())
    assert (other.rank, other.size, other.follows, other.machine, other.local_rank) == (
        *(7, 8, True),
        *(1, 3),
    )
    assert (other.port, other.address) == (place.port, "gpu03")


def test_a_notebook_and_a_sweep_in_an_allocation_are_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    for name, value in {**SRUN, **names, "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_place", Place())
    assert processes.join(1).size == 2
    for devices in (1, 2):
        monkeypatch.setattr(processes, "_place", Place())
        with processes.working_alone():
            assert processes.join(devices).size == (1 if devices == 1 else 4)


@pytest.fixture
def agent() -> Iterator[dict[str, str]]:
    """The variables that torchrun sets while it is running."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        yield {**TORCHRUN, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_torchrun_decides_how_many_processes_there_are(agent: dict[str, str]) -> None:
    for devices in (1, 2):
        place = find_place(devices, agent, os.getpid())
        assert (place.rank, place.size, place.launched, place.by_torchrun) == (1, 2, True, True)
    with pytest.raises(ConfigError, match="devices 4: expected 2, the number of .* that torchrun"):
        find_place(4, agent, os.getpid())


def test_what_a_process_of_torchrun_starts_is_none_of_its_processes(
    agent: dict[str, str],
) -> None:
    process = subprocess.Popen(["sleep", "60"], env=agent)
    try:
        while b"TORCHELASTIC_RUN_ID" not in Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.01)  # it is still a copy of this one
        assert find_place(1, agent, process.pid) == Place()
    finally:
        process.kill()
        process.wait()


def test_torchrun_that_has_ended_has_started_nobody(agent: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    assert find_place(1, {**agent, "MASTER_PORT": port}, os.getpid()) == Place()


def test_the_first_process_marks_those_that_it_starts() -> None:
    mark = {MARK: "1/2/4711/29500/1/127.0.0.1", "LOCAL_RANK": "1"}
    assert find_place(2, mark, parent=4711) == Place(1, 2, True, 29500, follows=True)
    assert find_place(2, mark, parent=4712) == Place(size=2)  # one that such a process started
    for wrong in ("none", "1/2/4711/29500", ""):
        assert find_place(2, {MARK: wrong}, parent=4711) == Place(size=2)


def test_another_number_of_processes_needs_another_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_place", Place(0, 2, launched=True))
    assert processes.join(1) == processes.join(2) == Place(0, 2, launched=True)
    with pytest.raises(ConfigError, match="devices 4: expected 2, as an earlier run started"):
        processes.join(4)
