"""A server that forks commands, with a small world to run them on; one for all tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cases import World
from tests.faults.harness import Faults


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Files, an encoder and a server."""
    if shutil.which("cc") is None:
        pytest.skip("the faults are made by a library that needs a C compiler (cc)")
    scratch = tmp_path_factory.mktemp("faults")
    place: Path = scratch / "place"
    place.mkdir()
    with Faults(scratch) as faults:
        yield World.make(faults, place)
