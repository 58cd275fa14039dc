"""`finetune runs`: a table of the runs below a folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import printable, put
from finetune.errors import ConfigError
from finetune.metrics.semantics import goodness, shown
from finetune.settings.renames import warn_of_rename

if TYPE_CHECKING:
    from finetune.runs.listing import ListedRun

COLOURS = {
    "running": "cyan",
    "done": "green",
    "interrupted": "yellow",
    "failed": "red",
    "rate-search": "cyan",
    "degenerate": "red",
    "damaged": "red",
}
"""State -> colour on a terminal."""
LEAST_NAME, MOST_TASK, MOST_ENCODER, MOST_METRIC = 12, 14, 10, 8
"""Columns that a run's name has at least; its task, its encoder and its metric's name at most."""
MORE = """\
elementary is the best score of a baseline that reads words and nothing else.

states:
  running      a process is writing to the folder
  done         finished
  interrupted  stopped before its end; continue it with --resume
  failed       ended by an error, the last line of its log.txt
  rate-search  learning rates were tried (--find-lr), and nothing was trained
  degenerate   finished, but a seed predicts the same for every example
  damaged      a file cannot be read; the line below the table says which"""


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("runs", "List the runs in a folder, with scores and states.", MORE)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="folder to search (default: runs)",
    )
    parser.add_argument(
        "--sort", choices=SORTS, default="date", help="order of rows (default: newest first)"
    )
    parser.add_argument(
        "--state",
        type=_state,
        choices=COLOURS,
        metavar="STATE",
        help="show only runs in this state, one of those below",
    )
    add_json(parser, "print the runs, and folders that cannot be read, as JSON on stdout")
    return parser


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    space = _parser().parse_args(arguments)
    if not space.folder.is_dir():
        what = "a file" if space.folder.exists() else "no such folder"
        raise ConfigError(f"{space.folder}: expected a folder of runs, got {what}")
    from finetune.console.tables import terminal_width
    from finetune.runs.listing import list_runs

    listing = list_runs(space.folder)
    runs = sorted(listing.runs, key=SORTS[space.sort])
    if space.sort == "date":
        runs.reverse()
    runs = [run for run in runs if space.state in (None, run.state)]
    if space.json:
        problems = [{"folder": str(place), "problem": what} for place, what in listing.problems]
        content = {"runs": [run.as_json() for run in runs], "problems": problems}
        put(json.dumps(content, ensure_ascii=False, allow_nan=False))
    else:
        print(
            _table(runs, terminal_width(sys.stdout))
            if runs
            else f"{printable(str(space.folder))}: no runs"
        )
    for place, what in listing.problems:
        print(printable(f"{place}: {what}"), file=sys.stderr)
    return 0


def _state(name: str) -> str:
    if name != "collapsed":
        return name
    warn_of_rename("--state collapsed", "--state degenerate")
    return "degenerate"


def _by_score(run: ListedRun) -> tuple[Any, ...]:
    """The best of each task first."""
    worse = float("inf") if run.score is None else -goodness(str(run.metric), run.score)
    return (run.task, worse, run.name)


SORTS: dict[str, Callable[[ListedRun], tuple[Any, ...]]] = {
    "date": lambda run: (_moment(run), run.name),
    "task": lambda run: (run.task, run.name),
    "name": lambda run: (run.name,),
    "score": _by_score,
    "minutes": lambda run: (-(run.minutes or 0.0), run.name),
    "state": lambda run: (list(COLOURS).index(run.state), run.task, run.name),
}


COLUMNS: dict[str, Callable[[ListedRun], str]] = {
    "run": lambda run: printable(run.name, lines=False),
    "task": lambda run: _end(printable(run.task, lines=False), MOST_TASK),
    "encoder": lambda run: _end(printable(Path(run.encoder or "").name, lines=False), MOST_ENCODER),
    "score": lambda run: _score(run),
    "elementary": lambda run: _elementary(run),
    "seeds": lambda run: _seeds(run),
    "date": lambda run: _day(run),
    "state": lambda run: run.state,
}
LEFT_OUT = ("elementary", "encoder", "date")
"""Columns that are left out, in this order, where a table is too wide; --json has them."""


def _table(runs: list[ListedRun], width: int) -> str:
    from finetune.console.tables import painted, table

    columns = {name: [value(run) for run in runs] for name, value in COLUMNS.items()}
    if not any(columns["elementary"]):
        del columns["elementary"]
    for name in LEFT_OUT:
        if name in columns and _least_width(columns) > width:
            del columns[name]
    available = width - _width(columns, but="run")
    columns["run"] = [_end(name, max(LEAST_NAME, available)) for name in columns["run"]]
    first, rule, *lines = table(
        zip(*columns.values(), strict=True), list(columns), width
    ).splitlines()
    for number, run in enumerate(runs):  # after the layout: colours have no width
        line = lines[number].removesuffix(run.state)
        lines[number] = line + painted(run.state, COLOURS[run.state], sys.stdout)
    return "\n".join([first, rule, *lines])


def _width(columns: Mapping[str, Sequence[str]], *, but: str) -> int:
    """How wide the columns are, each with the gap before or after it, without one of them."""
    from finetune.console.tables import GAP, columns_of

    return sum(
        len(GAP) + max(map(columns_of, (name, *cells)))
        for name, cells in columns.items()
        if name != but
    )


def _least_width(columns: Mapping[str, Sequence[str]]) -> int:
    """How wide the table is with its names cut as far as may be."""
    from finetune.console.tables import columns_of

    longest = max(map(columns_of, columns["run"]), default=0)
    return min(LEAST_NAME, longest) + _width(columns, but="run")


def _seeds(run: ListedRun) -> str:
    ended = len(run.seeds)
    return f"{ended}/{run.planned}" if ended < run.planned else f"{run.planned}"


def _moment(run: ListedRun) -> float:
    return datetime.fromisoformat(run.date).timestamp() if run.date else 0.0


def _day(run: ListedRun) -> str:
    """The time of a day, or the day of another one."""
    if run.date is None:
        return ""
    moment = datetime.fromisoformat(run.date).astimezone()
    return f"{moment:%H:%M}" if moment.date() == datetime.now().date() else f"{moment:%Y-%m-%d}"


def _score(run: ListedRun) -> str:
    if run.score is None:
        return "" if run.step is None else f"step {run.step:,}"
    metric = str(run.metric)
    values = [value for value in (run.score, run.deviation) if value is not None]
    return f"{_short(metric)} {' ± '.join(shown(metric, value, short=True) for value in values)}"


def _elementary(run: ListedRun) -> str:
    """The score of the best elementary baseline; which one it is, --json says."""
    value = run.elementary_score
    return "" if value is None else shown(str(run.metric), value, short=True)


def _short(metric: str) -> str:
    """A metric's name, or the first of its words."""
    return metric if len(metric) <= MOST_METRIC else metric.split("_")[0][:MOST_METRIC]


def _end(name: str, width: int) -> str:
    """A name's end: of a path it is that which differs."""
    from finetune.console.tables import columns_of

    if columns_of(name) <= width:
        return name
    while columns_of(name) >= width:
        name = name[1:]
    return f"…{name}"
