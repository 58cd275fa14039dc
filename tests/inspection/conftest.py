"""Two small tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made.official import GLUE, write_files
from tests.made.texts import has_the, write_sst2


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SST-2 whose label says whether `the` is among the words, and an STS-B."""
    root = write_sst2(tmp_path_factory.mktemp("data"), has_the, train=400, dev=100)
    stsb = {name: text for name, text in GLUE.items() if name.startswith("STS-B/")}
    return write_files(root, stsb)
