"""How tables read on the terminal."""

from __future__ import annotations

import io

import pytest

from finetune.console.tables import columns_of, painted, table


def test_a_table_has_its_numbers_at_the_right() -> None:
    assert table([["a", "1"], ["bcd", "22.5"]], ["x", "y"]).splitlines() == [
        "x       y",
        "---  ----",
        "a       1",
        "bcd  22.5",
    ]


def test_a_table_that_is_too_wide_goes_on_below() -> None:
    cells = [["a", *(str(n) * 6 for n in range(4))], ["bcd", *(str(n) * 6 for n in range(4, 8))]]
    assert table(cells, ["name", "one", "two", "three", "four"], width=22).splitlines() == [
        "name     one     two",
        "----  ------  ------",
        "a     000000  111111",
        "bcd   444444  555555",
        "",
        "name   three    four",
        "----  ------  ------",
        "a     222222  333333",
        "bcd   666666  777777",
    ]


def test_a_name_that_leaves_no_room_is_cut() -> None:
    lines = table([["a" * 100, "1.00"]], ["x", "y"]).splitlines()
    assert lines[-1] == "a" * 73 + "…  1.00"
    assert max(map(len, lines)) == 80
    assert table([["a" * 90]], ["x"]).splitlines()[-1] == "a" * 79 + "…"


def test_names_of_wide_signs_are_lined_up_by_what_they_take_on_a_terminal() -> None:
    assert table([["是", "1"], ["e\u0301", "22"]], ["class", "n"]).splitlines()[2:] == [
        "是      1",
        "e\u0301      22",
    ]
    cut = table([["文" * 60, "1.00"]], ["x", "y"]).splitlines()[-1]
    assert cut == "文" * 36 + "…   1.00"
    assert columns_of(cut) == 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert painted("done", "green", Terminal()) == "\x1b[32mdone\x1b[0m"
    assert painted("done", "green", io.StringIO()) == "done"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("done", "green", Terminal()) == "done"
    monkeypatch.setenv("NO_COLOR", "")  # as if it was not set
    assert painted("done", "green", Terminal()) != "done"
    monkeypatch.setenv("TERM", "dumb")
    assert painted("done", "green", Terminal()) == "done"
