"""How far a run is, for people: a bar on a terminal, elsewhere a plain line now and then.

Nothing here looks at a tensor, and a step costs a look at the clock: drawing is done twice a second
at most, in the training's own thread, so that no other thread takes time from it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from finetune.console.output import printable
from finetune.training.loop.progress import RunLength

REDRAW_SECONDS = 0.5
WINDOW_SECONDS = 60.0
"""The rate is that of the last minute: phases of unfreezing differ, and validations take time."""
LINE_SECONDS, LINE_FRACTION = 60.0, 0.02
"""Without a terminal a line comes after so long and so much of the run: 50 a run at most."""
TITLE_WIDTH, BAR_WIDTH = 18, 8
"""Columns that the title has at most, and the bar at least."""


class StepRate:
    """Steps a second over the last minute of the clock, validations and all."""

    def __init__(self, step: int, now: float) -> None:
        """Start at a step and a time in seconds."""
        self._marks: deque[tuple[float, int]] = deque([(now, step)])

    def add(self, step: int, now: float) -> None:
        """Note where the run is."""
        self._marks.append((now, step))
        # Two marks stay, or steps of more than a minute would have no rate.
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def steps_per_second(self) -> float:
        """Zero before there is a step."""
        (start, first), (end, last) = self._marks[0], self._marks[-1]
        return (last - first) / (end - start) if end > start else 0.0


class ProgressDisplay:
    """Shows how far a run is, how fast it goes and how long it will take."""

    def __init__(self, length: RunLength, title: str, console: Console | None = None) -> None:
        """Show nothing yet.

        Args:
            length: The run's limit: what is counted is its steps, epochs or minutes.
            title: What stands in front.
            console: Where to; stderr if none.
        """
        self.length, self.title = length, printable(title, lines=False)
        self.console = console or Console(stderr=True)
        self._bar = _bar(self.console) if _is_terminal(self.console) else None
        self._task = (
            None if self._bar is None else self._bar.add_task(_cut(self.title), total=1, status="")
        )
        self._figures: Mapping[str, float] = {}
        self._running = False

    def start(self, step: int) -> None:
        """Begin at a step, which is not 0 in a resumed run."""
        now = time.monotonic()
        self._rate, self._next = StepRate(step, now), now + REDRAW_SECONDS
        self._line_at, self._line_fraction = now, self.length.fraction(step)
        self._running = True
        if self._bar:
            self._bar.start()

    def show(self, step: int) -> None:
        """Show that so many steps are done; most calls return at once."""
        now = time.monotonic()
        if not self._running or now < self._next:
            return
        self._next = now + REDRAW_SECONDS
        self._rate.add(step, now)
        if self._bar:
            self._draw(step)
        else:
            self._write(step, now)

    def keep(self, figures: Mapping[str, float]) -> None:
        """Take the figures of a log line, to be shown from now on."""
        self._figures = figures

    def note(self, step: int, what: str) -> None:
        """Say on the bar what is being done between two steps."""
        if self._bar and self._running:
            self._draw(step, what)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar and self._running:
            self._bar.stop()
        self._running = False

    def parts(self, step: int) -> list[str]:
        """What to report, in words; what matters most comes first."""
        rate = self._rate.steps_per_second
        parts = [position(self.length, step)]
        if (left := seconds_left(self.length, step, rate)) is not None:
            parts.append(f"{clock_text(left)} left")
        if rate > 0:
            parts.append(rate_text(rate))
        if "train/loss" in self._figures:
            parts.append(f"loss {self._figures['train/loss']:.3f}")
        if "perf/tokens_per_second" in self._figures:
            parts.append(f"{self._figures['perf/tokens_per_second']:,.0f} tokens/s")
        return parts

    def _draw(self, step: int, what: str = "") -> None:
        assert self._bar is not None
        assert self._task is not None
        parts = [*([what] if what else []), *self.parts(step)]
        width = self.console.width - len(_cut(self.title)) - BAR_WIDTH - 7  # "100%" and gaps
        while len(parts) > 1 and len(", ".join(parts)) > width:
            parts.pop()
        done = min(self.length.fraction(step), 1.0)
        self._bar.update(self._task, completed=done, status=", ".join(parts), refresh=True)

    def _write(self, step: int, now: float) -> None:
        fraction = self.length.fraction(step)
        soon = now < self._line_at + LINE_SECONDS
        if soon or fraction < self._line_fraction + LINE_FRACTION or fraction >= 1:
            return
        self._line_at, self._line_fraction = now, fraction
        line = f"{self.title}: {100 * fraction:.0f} %, {', '.join(self.parts(step))}"
        print(line, file=sys.stderr, flush=True)


def position(length: RunLength, step: int) -> str:
    """How far a run is in what its length is given in: `epoch 1.3/3`, `step 40/1,200`."""
    limit = length.limit
    if length.extension is not None:
        done, end = (at / length.steps_per_epoch for at in (step, length.extension.end))
        return f"epoch {done:.1f}/{end:.1f}"
    if limit.max_epochs is not None:
        return f"epoch {step / length.steps_per_epoch:.1f}/{limit.max_epochs}"
    if limit.max_steps is not None:
        return f"step {step:,}/{limit.max_steps:,}"
    return f"{length.clock.seconds / 60:.1f}/{limit.max_minutes:g} min"


def seconds_left(length: RunLength, step: int, steps_per_second: float) -> float | None:
    """Seconds to the end at this pace; where the clock decides, by the clock; None if unknown."""
    if length.limit.max_minutes is not None and length.extension is None:
        return max(0.0, 60 * length.limit.max_minutes - length.clock.seconds)
    total = length.total_steps
    if total is None or steps_per_second <= 0:
        return None
    return max(0, total - step) / steps_per_second


def rate_text(steps_per_second: float) -> str:
    """Steps a second, or seconds a step where they are slow, with three digits."""
    if steps_per_second < 1:
        return f"{1 / steps_per_second:.3g} s/step"
    digits = f"{steps_per_second:,.0f}" if steps_per_second >= 100 else f"{steps_per_second:.3g}"
    return f"{digits} steps/s"


def clock_text(seconds: float) -> str:
    """Minutes and seconds, with hours where there are some: `3:07`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=console,
        auto_refresh=False,  # a thread that draws would stop the training each time
        transient=True,
        redirect_stdout=False,  # results go there, and not to this console
        expand=True,
    )


def _is_terminal(console: Console) -> bool:
    """Whether it is one that can draw; rich alone would believe FORCE_COLOR."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


def _cut(title: str) -> str:
    return title if len(title) <= TITLE_WIDTH else f"{title[: TITLE_WIDTH - 1]}…"
