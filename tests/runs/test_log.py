"""What a run says is shown, and added to the logs that are open."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from finetune.errors import DataError
from finetune.runs.log import logged, note, say

HEAD = r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n"


def fail_after_all(file: Path) -> None:
    with logged(file):
        say("one \x1b[2J")
        note("not on a terminal")
        warnings.warn("two\nlines", stacklevel=1)
        raise DataError("row 7")


def test_lines_warnings_and_the_error_are_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log.txt"
    with pytest.warns(UserWarning, match="two"), pytest.raises(DataError, match="row 7"):
        fail_after_all(file)
    say("later")
    expected = r"one \\u001b\[2J\nwarning: two lines\nfailed: DataError: row 7\n"
    assert re.fullmatch(HEAD + expected, file.read_text())
    assert capsys.readouterr().err == "one \\u001b[2J\nlater\n"


def test_a_session_is_added_and_a_log_within_another_is_a_part_of_it(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with logged(outer):
        say("first")
        with logged(inner):
            say("second")
    with logged(outer):
        say("third")
    assert re.fullmatch(f"{HEAD}first\nsecond\n{HEAD}third\n", outer.read_text())
    assert re.fullmatch(f"{HEAD}second\n", inner.read_text())


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logged(tmp_path), logged(Path("/dev/full")):
        say("shown all the same")
    assert capsys.readouterr().err == "shown all the same\n"
