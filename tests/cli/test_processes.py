"""Several processes train together: `--devices 2` with the settings that everybody has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, Start, World

SECONDS = 60
"""After so long two processes hang."""


@pytest.fixture(scope="module")
def configs(world: World) -> dict[str, Path]:
    """The settings of the tests, but with tracking as it is by default: offline W&B."""
    made = {"pretrain": world.pretrain_config, "glue": world.glue_config}
    for name, path in made.items():
        settings = yaml.safe_load(path.read_text())
        del settings["tracking"]
        made[name] = world.root / f"{name}-tracked.yaml"
        made[name].write_text(yaml.safe_dump(settings))
    return made


def test_two_processes_pretrain(
    world: World, configs: dict[str, Path], tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    words = world.pretrain(run, "--config", configs["pretrain"], "--tokenizer", world.tokenizer)
    assert_good(start(*words, "--devices", 2).end(SECONDS), run)


def test_two_processes_fine_tune(
    world: World, configs: dict[str, Path], tmp_path: Path, start: Start
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--config", configs["glue"])
    assert_good(start(*words, "--devices", 2).end(SECONDS), run)


def assert_good(outcome: Outcome, run: Path) -> None:
    assert outcome.status == 0, outcome.err
    assert json.loads((run / "results.json").read_text())["metrics"]
