"""Which process of a run this is: what launchers say counts, what a shell has left does not."""

from __future__ import annotations

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


def test_the_first_process_marks_those_that_it_starts() -> None:
    mark = {MARK: "1/2/4711/29500", "LOCAL_RANK": "1"}
    assert find_place(2, mark, parent=4711) == Place(1, 2, True, 29500, follows=True)
    assert find_place(2, mark, parent=4712) == Place(size=2)  # one that such a process started
    assert find_place(2, {MARK: "none"}, parent=4711) == Place(size=2)


def test_another_number_of_processes_needs_another_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_place", Place(0, 2, launched=True))
    assert processes.join(1) == processes.join(2) == Place(0, 2, launched=True)
    with pytest.raises(ConfigError, match="devices 4: expected 2, as an earlier run started"):
        processes.join(4)
