"""The runs below a folder: where they lie, what is known of each, and a row for each in a list.

Small files alone are read (results.json; config.yaml of a run that has not ended; the last line of
metrics.jsonl), so that a folder of hundreds of runs is listed at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from finetune.errors import FinetuneError
from finetune.metrics.semantics import headline
from finetune.runs.folder import RunFolder
from finetune.runs.results import best_elementary, summarise

if TYPE_CHECKING:
    from finetune.comparison import Run

T = TypeVar("T")
State = Literal["running", "done", "interrupted", "failed", "rate-search", "degenerate", "damaged"]
DEEPEST = 6
"""So many folders below the one that is named are looked into."""
TAIL_BYTES = 64 * 1024
"""More than a line of metrics.jsonl has."""
UNEXPECTED = (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError)
"""What files of an unexpected form make of code that reads them."""


@dataclass(frozen=True)
class ListedRun:
    """A run folder, with all its seeds."""

    folder: Path
    """Where it lies."""
    name: str
    """Its path from the folder that was listed; `.` for that folder itself."""
    task: str
    """Such as `glue/cola` or `pretrain`; `?` where no file says it."""
    state: State
    """running: a process holds the folder; degenerate: it ended with one answer for every example,
    for a seed at least; interrupted: it was stopped before its end; failed: an error ended it;
    rate-search: learning rates were tried, and nothing else; damaged: a file cannot be read."""
    seeds: tuple[int, ...] = ()
    """Those that have ended."""
    planned: int = 1
    """How many seeds the run is to have."""
    degenerate: tuple[int, ...] = ()
    """Those of its seeds that ended with one answer for every example."""
    metric: str | None = None
    """The headline of the results."""
    score: float | None = None
    """Its mean over the seeds that have ended; a fraction, or a loss."""
    deviation: float | None = None
    """Its standard deviation (n - 1); None for one seed."""
    elementary: str | None = None
    """The elementary baseline that is best by the same metric, such as `bag_of_words`."""
    elementary_score: float | None = None
    """What it scores."""
    minutes: float | None = None
    """Minutes of training, of all ended seeds together."""
    step: int | None = None
    """The last optimizer step that was logged, where the run has not ended."""
    encoder: str | None = None
    """What a fine-tuning started from; `none` for random weights, None where it is not recorded."""
    date: str | None = None
    """When it ended, or was last written to: date and time with the offset from UTC."""
    error: str | None = None
    """What ended it, where it failed; what is wrong with its files, where it is damaged."""

    def as_json(self) -> dict[str, Any]:
        """All of it, with plain values."""
        return {**vars(self), "folder": str(self.folder)}


@dataclass
class Listing:
    """What was found below a folder."""

    runs: list[ListedRun] = field(default_factory=list)
    """By task and name."""
    problems: list[tuple[Path, str]] = field(default_factory=list)
    """Damaged folders: where, and what is wrong in half a sentence."""

    def attempt(self, folder: Path, read: Callable[[], T]) -> T | None:
        """Read files of a folder; name what is wrong with them, and return None."""
        try:
            return read()
        except FinetuneError as error:
            self.problems.append((folder, " ".join(str(error).split())))
        except UNEXPECTED as error:
            detail = " ".join(f"{type(error).__name__} {error}".split())[:120]
            self.problems.append((folder, f"a file does not have the format of a run: {detail}"))
        return None


@dataclass(frozen=True)
class Seed:
    """One training, whether it has ended or not."""

    folder: RunFolder
    """Where it lies."""
    run: Run | None = None
    """What came out; None before its end."""

    @property
    def results(self) -> Mapping[str, Any]:
        """What came out, as results.json has it; empty before its end."""
        return self.run.results if self.run else {}

    @property
    def seed(self) -> int | None:
        """Its seed, where known."""
        return self.results.get("seed")


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of itself: the one account that every list and report is made of."""

    folder: RunFolder
    """The run's."""
    seeds: tuple[Seed, ...]
    """At least one: those that its results name, else those whose folders are there."""
    is_whole: bool
    """Whether no more seeds than these are to come."""
    problem: str | None = None
    """What is wrong with its results, where they cannot be read."""

    @cached_property
    def ended(self) -> tuple[Run, ...]:
        """The runs of its seeds that have ended."""
        return tuple(seed.run for seed in self.seeds if seed.run is not None)

    @property
    def has_ended(self) -> bool:
        """Whether it has the results of all its seeds."""
        return self.is_whole and len(self.ended) == len(self.seeds)

    @cached_property
    def state(self) -> State:
        """How it stands."""
        if self.folder.is_running:
            return "running"
        if self.problem is not None:
            return "damaged"
        if not self.has_ended:
            if self.folder.rate_curve_file.is_file() and not self.folder.has_started:
                return "rate-search"
            return "interrupted" if self.folder.read_error() is None else "failed"
        return "degenerate" if any(run.degenerate for run in self.ended) else "done"


def read_record(folder: RunFolder, listing: Listing) -> RunRecord:
    """Read what a run folder says of its seeds.

    Args:
        folder: One of `run_folders`.
        listing: Collects what cannot be read.
    """
    known = len(listing.problems)
    runs = listing.attempt(folder.path, partial(_ended, folder))
    if runs:
        return RunRecord(folder, tuple(Seed(_folder_of(run), run) for run in runs), True)
    seeds = [Seed(part, _only(part, listing)) for part in folder.seeds] or [Seed(folder)]
    problem = listing.problems[known][1] if len(listing.problems) > known else None
    return RunRecord(folder, tuple(seeds), folder.has_only_seeds, problem)


def _ended(folder: RunFolder) -> list[Run]:
    return folder.read_ended() if folder.results_file.is_file() else []


def _folder_of(run: Run) -> RunFolder:
    return RunFolder(run.folder or Path())


def _only(seed: RunFolder, listing: Listing) -> Run | None:
    runs = listing.attempt(seed.path, partial(_ended, seed))
    return runs[0] if runs else None


def list_runs(place: str | Path) -> Listing:
    """List the runs below a folder; a run's seeds are one run.

    >>> import finetune
    >>> from finetune.runs.listing import list_runs
    >>> [(run.name, run.state) for run in list_runs("runs").runs if run.name == "pretrained"]
    [('pretrained', 'done')]

    Args:
        place: The folder.

    Returns:
        The runs by task and name, and what could not be read.
    """
    place = Path(place)
    listing = Listing()
    for folder in run_folders(place, listing):
        known, name = len(listing.problems), str(folder.path.relative_to(place))
        run = listing.attempt(folder.path, partial(_listed, folder, listing))
        run = run or ListedRun(folder.path, name, "?", "damaged")
        if len(listing.problems) > known and run.state != "running":
            run = replace(run, state="damaged", error=listing.problems[known][1])
        listing.runs.append(replace(run, name=name))
    listing.runs.sort(key=lambda run: (run.task, run.name))
    return listing


def run_folders(place: Path, listing: Listing) -> Iterator[RunFolder]:
    """Run folders below a folder, each once and by name; what lies in one belongs to it.

    Args:
        place: The folder, which may be a run itself.
        listing: Collects folders that cannot be read.
    """
    seen: set[Path] = set()
    waiting = [(place, DEEPEST)]
    while waiting:
        folder, depth = waiting.pop()
        real = folder.resolve()
        if real in seen:  # by a link
            continue
        seen.add(real)
        is_run = listing.attempt(folder, partial(getattr, RunFolder(folder), "is_run"))
        if is_run:
            yield RunFolder(folder)
        elif depth > 0 and is_run is not None:
            below = listing.attempt(folder, partial(_folders_in, folder)) or []
            waiting += [(each, depth - 1) for each in reversed(below)]


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    return [folder / name for name in sorted(names)]


def _listed(folder: RunFolder, listing: Listing) -> ListedRun:
    record = read_record(folder, listing)
    has_ended = bool(record.ended) and record.has_ended
    config = {} if record.is_whole and record.ended else _config(record, listing)
    run = ListedRun(
        folder.path,
        folder.path.name,
        str(record.ended[0].results["task"]) if record.ended else _task(config),
        record.state,
        tuple(run.seed for run in record.ended),
        len(record.seeds if record.is_whole else config.get("seeds") or [0]),
        tuple(run.seed for run in record.ended if run.degenerate),
        step=None if has_ended and record.state != "running" else _last_step(folder),
        encoder=_encoder(dict(record.ended[0].results) if record.ended else config),
        date=_date(record),
        error=folder.read_error() if record.state == "failed" else None,
    )
    return _with_score(run, record.ended)


def _with_score(listed: ListedRun, runs: Sequence[Run]) -> ListedRun:
    seconds = [run.results.get("train_seconds") for run in runs]
    if any(one is not None for one in seconds):
        listed = replace(listed, minutes=sum(one or 0.0 for one in seconds) / 60)
    metric = headline(runs[0].metrics) if runs else None
    if metric is None:
        return listed
    summary = summarise([float(run.metrics[metric]) for run in runs if metric in run.metrics])
    deviation = summary["std"] if len(summary["values"]) > 1 else None
    name, bar = best_elementary({"runs": [run.results for run in runs]}, metric) or (None, None)
    return replace(
        listed,
        metric=metric,
        score=summary["mean"],
        deviation=deviation,
        elementary=name,
        elementary_score=bar,
    )


def _config(record: RunRecord, listing: Listing) -> dict[str, Any]:
    """The settings of a run that has not ended; {} where they are missing or damaged."""
    places = (record.folder, *(seed.folder for seed in record.seeds[:1]))
    place = next((place for place in places if place.config_file.is_file()), record.folder)
    return listing.attempt(place.path, place.read_config) or {}


def _task(config: Mapping[str, Any]) -> str:
    if "vocabulary" in config:
        return "pretrain"
    adapts = "masks" in config
    named = str(config.get("task") or "")
    return f"adapt {named}".rstrip() if adapts else named or "?"


def _encoder(content: Mapping[str, Any]) -> str | None:
    """What a run started from, by its results or by its settings."""
    named = content.get("encoder_from", content.get("encoder"))
    is_made_here = content.get("task") == "pretrain"
    return named if isinstance(named, str) and not is_made_here else None


def _date(record: RunRecord) -> str | None:
    """When the run ended; when its newest file was written, where no results say it."""
    ends = [run.results.get("finished") for run in record.ended]
    if record.has_ended and ends and all(isinstance(end, str) for end in ends):
        return str(max(map(str, ends)))
    places = (record.folder, *(seed.folder for seed in record.seeds))
    files = [file for place in places for file in place.marks]
    if not files:
        return None
    newest = max(file.stat().st_mtime for file in files)
    return datetime.fromtimestamp(newest).astimezone().isoformat(timespec="seconds")


def _last_step(folder: RunFolder) -> int | None:
    """The last step of the run that was written to last."""
    places = (folder, *folder.seeds)
    logs = [place.metrics_file for place in places if place.metrics_file.is_file()]
    if not logs:
        return None
    with max(logs, key=lambda log: log.stat().st_mtime).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]  # not one that is being written
    return int(json.loads(whole[-1])["step"]) if whole else None
