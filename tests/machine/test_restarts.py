"""Whether a command was started again, and by what name SLURM knows its job."""

from __future__ import annotations

import pytest

from finetune.machine.restarts import is_restart, slurm_job


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "10"}, True),
        ({"SLURM_RESTART_COUNT": "1"}, True),
        ({"SLURM_RESTART_COUNT": "what"}, False),
    ],
)
def test_a_restart_is_known_by_its_count(variables: dict[str, str], expected: bool) -> None:
    assert is_restart(variables) is expected


def test_a_task_of_an_array_has_a_name_of_its_own() -> None:
    variables = {"SLURM_JOB_ID": "77"}
    assert slurm_job({}) is None
    assert slurm_job(variables) == "77"
    assert slurm_job(variables | {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "7"}) == "70_7"
