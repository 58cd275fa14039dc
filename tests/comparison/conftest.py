"""Run folders of several seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.comparison import Group
from tests.made.groups import results_of, write_seed
from tests.made.texts import write_json


@pytest.fixture
def write_group(tmp_path: Path) -> Callable[[Group], Path]:
    """Writes a run folder of several seeds as the library does, under the group's name."""

    def write(group: Group) -> Path:
        folder = tmp_path / group.name
        for run in group.runs:
            write_seed(folder / f"seed-{run.seed}", run, group)
        metrics = {name: {"values": group.values(name)} for name in group.metrics}
        runs = [results_of(run, group) for run in group.runs]
        kept = {"task": group.task, "split": group.split, "seeds": list(group.seeds)}
        write_json(folder / "results.json", kept | {"metrics": metrics, "runs": runs})
        return folder

    return write
