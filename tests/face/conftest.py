"""Recorded texts to compare with, and the option that records them again."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"
RECORD = "--record-face"
MEANT = f"""
What a user sees or what a file holds has changed. If that is intended, record it with
    pytest tests/face {RECORD}
look at `git diff tests/face`, and add a line to CHANGELOG.md.
"""

Compare = Callable[[str, Mapping[str, str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        RECORD, action="store_true", help="record the user-visible face instead of comparing it"
    )


@pytest.fixture(scope="session")
def compare_with_recorded(request: pytest.FixtureRequest) -> Compare:
    """Compare texts, by name, with the files of a folder of `recorded/`, or write them there."""

    def compare(part: str, texts: Mapping[str, str]) -> None:
        folder = RECORDED / part
        if request.config.getoption(RECORD, default=False):
            _record(folder, texts)
        differences = "\n".join(_differences(folder, texts))
        if differences:
            pytest.fail(f"{differences}\n{MEANT}", pytrace=False)

    return compare


def _record(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _differences(folder: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """A unified diff of each text that is not as recorded, of new and of missing ones too."""
    recorded = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    for name in sorted(recorded.keys() | texts.keys()):
        before, now = (each.get(name, "").splitlines() for each in (recorded, texts))
        path = f"{folder.name}/{name}.txt"
        yield from difflib.unified_diff(before, now, f"recorded {path}", f"now {path}", lineterm="")
