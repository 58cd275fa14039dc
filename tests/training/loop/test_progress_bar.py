"""What a person sees while a run goes on: on a terminal, and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from finetune.training.loop import progress as lengths
from finetune.training.loop import progress_bar as room
from finetune.training.loop.progress import Clock, LengthConfig, RunLength
from finetune.training.loop.progress_bar import (
    ProgressDisplay,
    StepRate,
    clock_text,
    position,
    rate_text,
    seconds_left,
)


class FakeTime:
    """A clock that goes on when it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(room, "time", fake)
    monkeypatch.setattr(lengths, "time", fake)
    return fake


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def length(**limit: float) -> RunLength:
    return RunLength(LengthConfig(**limit), 40, Clock())  # type: ignore[arg-type]


def on_terminal(run: RunLength, title: str, width: int = 80) -> tuple[ProgressDisplay, Terminal]:
    screen = Terminal()
    console = Console(file=screen, width=width, _environ={"TERM": "xterm"})
    return ProgressDisplay(run, title, console), screen


def drawn(screen: Terminal) -> list[str]:
    """The states of the bar, without colours and movements of the cursor."""
    text = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    return [line.rstrip() for line in re.split("[\r\n]", text) if line.strip()]


# What is told


def test_the_position_is_told_in_what_the_length_is_given_in(time: FakeTime) -> None:
    minutes = length(max_minutes=20)
    time.now += 126
    assert position(length(max_steps=1200), 1100) == "step 1,100/1,200"
    assert position(length(max_epochs=3), 52) == "epoch 1.3/3"
    assert position(minutes, 52) == "2.1/20 min"


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = StepRate(0, 0.0)
    assert pace.steps_per_second == 0
    for second in range(1, 201):
        pace.add(10 * second if second <= 100 else 1000 + 2 * (second - 100), float(second))
    assert pace.steps_per_second == pytest.approx(2)


def test_a_resumed_run_is_no_faster_than_it_is() -> None:
    pace = StepRate(5000, 0.0)
    pace.add(5010, 5.0)
    assert pace.steps_per_second == pytest.approx(2)


def test_the_time_that_is_left_follows_the_pace_or_the_clock(time: FakeTime) -> None:
    assert seconds_left(length(max_steps=100), 40, 2.0) == pytest.approx(30)
    assert seconds_left(length(max_epochs=2), 40, 0.5) == pytest.approx(80)
    assert seconds_left(length(max_steps=100), 0, 0.0) is None
    minutes = length(max_minutes=2)
    time.now += 30
    assert seconds_left(minutes, 7, 0.0) == pytest.approx(90)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (187, "3:07"), (3723, "1:02:03")]
)
def test_a_time_is_told_as_on_a_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.05, "20 s/step"),
        (1.234, "1.23 steps/s"),
        (12.34, "12.3 steps/s"),
        (1234, "1,234 steps/s"),
    ],
)
def test_a_slow_rate_is_told_in_seconds_a_step(rate: float, text: str) -> None:
    assert rate_text(rate) == text


# On a terminal


def test_a_bar_tells_how_far_how_fast_and_how_long(time: FakeTime) -> None:
    display, screen = on_terminal(length(max_steps=100), "pretrain")
    display.start(0)
    display.keep({"train/loss": 0.5, "perf/tokens_per_second": 12345.0})
    time.now += 4
    display.show(20)
    display.stop()
    last = drawn(screen)[-1]
    assert re.fullmatch(
        "pretrain +[━╸╺ ]+ +20% step 20/100, 0:16 left, 5 steps/s, loss 0.500", last
    )
    assert len(last) == 80


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_a_bar_fits_its_terminal(width: int, time: FakeTime) -> None:
    display, screen = on_terminal(length(max_epochs=30), "adapt classify/a-long-name", width)
    display.start(0)
    display.keep({"train/loss": 10.123, "perf/tokens_per_second": 1234567.0})
    time.now += 3
    display.show(30)
    time.now += 3
    display.note(30, "validating")
    display.stop()
    lines = drawn(screen)
    assert max(map(len, lines)) <= width
    assert "epoch 0.8/30" in lines[-2] or width < 60
    assert "validating" in lines[-1]
    assert ("tokens/s" in lines[-2]) == (width == 140)


def test_a_bar_is_drawn_twice_a_second_at_most(time: FakeTime) -> None:
    display, screen = on_terminal(length(max_steps=10**6), "x")
    display.start(0)
    for step in range(1, 1001):
        time.now += 0.001
        display.show(step)
    display.stop()
    assert screen.getvalue().count("1,000 steps/s") <= 3  # the last one when it is taken away


def test_a_bar_is_taken_away_in_the_end(time: FakeTime) -> None:
    display, screen = on_terminal(length(max_steps=10), "x")
    display.start(0)
    time.now += 1
    display.show(5)
    display.stop()
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased
    shown = screen.getvalue()
    display.stop()
    display.show(6)
    assert screen.getvalue() == shown


def test_no_color_means_no_colour(time: FakeTime) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        screen = Terminal()
        console = Console(file=screen, width=80, _environ={"TERM": "xterm-256color", **environment})
        display = ProgressDisplay(length(max_steps=10), "x", console)
        display.start(0)
        time.now += 1
        display.show(5)
        display.stop()
        assert bool(re.search("\x1b\\[[0-9;]*3[0-9]", screen.getvalue())) == coloured


# Elsewhere


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_where_no_terminal_is_there_are_plain_lines_once_a_minute(
    environment: dict[str, str], time: FakeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, _environ=environment)
    display = ProgressDisplay(length(max_steps=1000), "glue/sst2", console)
    display.start(0)
    display.keep({"train/loss": 0.25})
    for step in range(1, 1001):
        time.now += 0.25
        display.show(step)
    display.stop()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0] == "glue/sst2: 24 %, step 240/1,000, 3:10 left, 4 steps/s, loss 0.250"
    assert screen.getvalue() == ""


def test_a_long_run_has_fifty_plain_lines_at_most(
    time: FakeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay(length(max_steps=1000), "x", Console(file=io.StringIO()))
    display.start(0)
    for step in range(1, 1001):
        time.now += 100
        display.show(step)
    display.stop()
    assert 40 <= len(capsys.readouterr().err.splitlines()) <= 50


def test_a_dumb_terminal_gets_lines() -> None:
    console = Console(file=Terminal(), _environ={"TERM": "dumb"})
    display = ProgressDisplay(length(max_steps=10), "x", console)
    assert display._bar is None


def test_a_display_that_was_not_started_shows_nothing(
    time: FakeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the second process of a run: the first one shows how far both are."""
    display = ProgressDisplay(length(max_steps=40), "glue/cola")
    for step in range(40):
        time.now += 60
        display.show(step)
        display.note(step, "validating")
    display.stop()
    assert capsys.readouterr().err == ""
