"""What is recorded of the machine, the day and the command."""

from __future__ import annotations

import os
from datetime import datetime

from finetune.machine.circumstances import circumstances, recording_command, versions


def test_the_command_is_recorded_in_the_block_alone() -> None:
    with recording_command(["glue", "sst2", "--out", "a run"]):
        assert circumstances()["command"] == "finetune glue sst2 --out 'a run'"
    assert circumstances()["command"] is None  # called from Python


def test_the_machine_and_the_day_are_named() -> None:
    facts = circumstances()
    assert facts["machine"]["cores"] == os.cpu_count()
    assert facts["machine"]["processor"]
    assert abs((datetime.now().astimezone() - datetime.fromisoformat(facts["finished"])).days) < 1
    assert facts["versions"] == versions()
    assert {"python", "torch", "finetune"} <= facts["versions"].keys()
