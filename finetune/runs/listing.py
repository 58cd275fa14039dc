"""The runs below a folder: what each is for, what came out and how it stands.

Small files alone are read (results.json; config.yaml of a run that has not ended; the last line of
metrics.jsonl), so that a folder of hundreds of runs is listed at once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from finetune.checkpoints.seed_folders import seed_folders
from finetune.errors import FinetuneError
from finetune.metrics.semantics import headline
from finetune.runs.folder import summarise
from finetune.runs.lock import is_running
from finetune.settings.values import load

T = TypeVar("T")
State = Literal["running", "done", "interrupted", "degenerate"]
PARTS = ("config.yaml", "results.json", "metrics.jsonl")
"""Files of which a run folder has one at least."""
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
    for a seed at least; interrupted: it stopped before its end."""
    seeds: tuple[int, ...] = ()
    """Those that have ended."""
    planned: int = 1
    """How many seeds the run is to have."""
    degenerate: tuple[int, ...] = ()
    """Those of its seeds that ended with one answer for every example."""
    metric: str | None = None
    """The headline of the results."""
    score: float | None = None
    """Its mean over the seeds that have ended; a share, or a loss."""
    deviation: float | None = None
    """Its standard deviation (n - 1); None for one seed."""
    minutes: float | None = None
    """Minutes of training, of all ended seeds together."""
    step: int | None = None
    """The last optimizer step that was logged, where the run has not ended."""

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

    def attempt(self, folder: Path, read: Callable[[Path], T]) -> T | None:
        """Read files of a folder; name what is wrong with them, and return None."""
        try:
            return read(folder)
        except FinetuneError as error:
            self.problems.append((folder, " ".join(str(error).split())))
        except UNEXPECTED as error:
            told = " ".join(f"{type(error).__name__} {error}".split())[:120]
            self.problems.append((folder, f"a file does not have the format of a run: {told}"))
        return None


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
    found = Listing()
    for folder in run_folders(place, found):
        run = found.attempt(folder, partial(_read, found=found))
        if run is not None:
            found.runs.append(replace(run, name=str(folder.relative_to(place))))
    found.runs.sort(key=lambda run: (run.task, run.name))
    return found


def run_folders(place: Path, found: Listing) -> Iterator[Path]:
    """Run folders below a folder, each once and by name; what lies in one belongs to it.

    Args:
        place: The folder, which may be a run itself.
        found: Is told of folders that cannot be read.
    """
    seen: set[Path] = set()
    waiting = [(place, DEEPEST)]
    while waiting:
        folder, depth = waiting.pop()
        real = folder.resolve()
        if real in seen:  # by a link
            continue
        seen.add(real)
        is_run = found.attempt(folder, _is_run)
        if is_run:
            yield folder
        elif depth > 0 and is_run is not None:
            below = found.attempt(folder, _folders_in) or []
            waiting += [(each, depth - 1) for each in reversed(below)]


def _is_run(folder: Path) -> bool:
    if any((folder / part).is_file() for part in PARTS):
        return True
    return any(True for part in PARTS for _ in folder.glob(f"seed-*/{part}"))


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    return [folder / name for name in sorted(names)]


def _read(folder: Path, found: Listing) -> ListedRun:
    top = found.attempt(folder, _results) or {}
    parts = seed_folders(folder)
    ended = top.get("runs") or ([top] if top else [])
    if not top:
        ended = [found.attempt(part, _results) for part in parts]
    seeds = [results for results in ended if results]
    alone = seeds_stand_alone(folder)
    config = {} if top else _config(folder, parts, found)
    degenerate = tuple(_seed(one) for one in seeds if one.get("collapsed"))
    all_ended = bool(top) or (alone and len(seeds) == len(parts))
    state = state_of((folder, *parts), ended=all_ended, degenerate=bool(degenerate))
    run = ListedRun(
        folder,
        folder.name,
        str(top.get("task") or (seeds[0].get("task") if seeds else _task(config))),
        state,
        tuple(map(_seed, seeds)),
        len(seeds) if top else len(parts if alone else config.get("seeds") or [0]),
        degenerate,
        step=None if all_ended and state != "running" else _last_step([folder, *parts]),
    )
    return _with_score(run, seeds)


def seeds_stand_alone(folder: Path) -> bool:
    """Whether the seeds are runs of their own, made one by one: there is no run above them."""
    return bool(seed_folders(folder)) and not any((folder / part).is_file() for part in PARTS)


def state_of(folders: Iterable[Path], *, ended: bool, degenerate: bool) -> State:
    """How a run stands.

    Args:
        folders: The run's, and those of its seeds.
        ended: Whether it has the results of all its seeds.
        degenerate: Whether one of them ended with one answer for every example.
    """
    if any(map(is_running, folders)):
        return "running"
    if not ended:
        return "interrupted"
    return "degenerate" if degenerate else "done"


def _with_score(run: ListedRun, seeds: Sequence[Mapping[str, Any]]) -> ListedRun:
    seconds = [one["train_seconds"] for one in seeds if one.get("train_seconds") is not None]
    if seconds:
        run = replace(run, minutes=sum(seconds) / 60)
    metric = headline(seeds[0]["metrics"]) if seeds else None
    if metric is None:
        return run
    values = [float(one["metrics"][metric]) for one in seeds if metric in one["metrics"]]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"results.json: {metric} is not finite")
    summary = summarise(values)
    deviation = summary["std"] if len(values) > 1 else None
    return replace(run, metric=metric, score=summary["mean"], deviation=deviation)


def _seed(results: Mapping[str, Any]) -> int:
    return int(results["seed"])


def _results(folder: Path) -> dict[str, Any] | None:
    path = folder / "results.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or not isinstance(content.get("metrics"), dict):
        raise ValueError("results.json contains no results")
    return content


def _config(folder: Path, parts: Sequence[Path], found: Listing) -> dict[str, Any]:
    """The settings of a run that has not ended; {} where they are missing or damaged."""
    for place in (folder, *parts[:1]):
        if (place / "config.yaml").is_file():
            return found.attempt(place, _mapping) or {}
    return {}


def _mapping(folder: Path) -> dict[str, Any]:
    content = load(folder / "config.yaml")
    if not isinstance(content, dict):
        raise ValueError("config.yaml contains no settings")
    return content


def _task(config: Mapping[str, Any]) -> str:
    if "vocabulary" in config:
        return "pretrain"
    adapts = "masks" in config
    named = str(config.get("task") or "")
    return f"adapt {named}".rstrip() if adapts else named or "?"


def _last_step(folders: Sequence[Path]) -> int | None:
    """The last step of the run that was written to last."""
    logs = [log for folder in folders if (log := folder / "metrics.jsonl").is_file()]
    if not logs:
        return None
    with max(logs, key=lambda log: log.stat().st_mtime).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]  # not one that is being written
    return int(json.loads(whole[-1])["step"]) if whole else None
