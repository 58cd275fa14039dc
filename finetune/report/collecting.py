"""Run folders read for a report: what is there is taken, what is missing or damaged is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from finetune.checkpoints.seed_folders import seed_folders
from finetune.comparison import Group, read_group
from finetune.errors import ConfigError, DataError, FinetuneError
from finetune.runs.listing import Listing, State, run_folders, seeds_stand_alone, state_of
from finetune.settings.renames import with_new_names
from finetune.settings.values import load

T = TypeVar("T")

NOTHING = "it contains neither results nor metrics"
UNEXPECTED = (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError)
"""What files of an unexpected form make of code that reads them."""


class Problem(NamedTuple):
    """Something that could not be shown, or that a reader must know."""

    place: str
    """The run or folder."""
    what: str
    """What is wrong with it, in half a sentence."""
    damaged: bool = True
    """Whether something is left out because of it."""


@dataclass(frozen=True)
class Seed:
    """One training."""

    folder: Path
    """Where it lies."""
    seed: int | None
    """Its seed, where known."""
    results: dict[str, Any]
    """What results.json holds; empty before the end."""
    lines: tuple[dict[str, Any], ...]
    """The lines of metrics.jsonl."""


@dataclass(frozen=True)
class ReportedRun:
    """A run folder with its seeds."""

    folder: Path
    """As it was named."""
    name: str
    """What it is called on the page."""
    config: dict[str, Any]
    """config.yaml; empty where it cannot be read."""
    seeds: tuple[Seed, ...]
    """At least one."""
    state: State = "done"
    """As `finetune runs` shows it."""
    group: Group | None = None
    """The seeds that have ended, for comparisons; None where none has."""

    @property
    def results(self) -> dict[str, Any]:
        """The results of the first seed that has some."""
        return next((seed.results for seed in self.seeds if seed.results), {})

    @property
    def task(self) -> str:
        """What it was trained for, such as `family/task`, or `pretrain`."""
        named = self.group.task if self.group else self.config.get("task")
        return str(named or ("pretrain" if self.models_language else "unknown task"))

    @property
    def models_language(self) -> bool:
        """Whether it is a pretraining or an adaptation, which has no answers."""
        perplexity = number(self.results, "metrics", "perplexity")
        return "masks" in self.config or perplexity is not None

    @property
    def from_scratch(self) -> bool:
        """Whether it is a fine-tuning that started from random weights."""
        start = self.results.get("encoder", self.config.get("encoder_from"))
        return not self.models_language and start == "none"

    def mean(self, *path: str) -> float | None:
        """The mean over seeds of a number in their results; None where none has it."""
        return mean(number(seed.results, *path) for seed in self.seeds)


@dataclass
class Collection:
    """All that was found."""

    runs: list[ReportedRun] = field(default_factory=list)
    """In the order in which they were named."""
    problems: list[Problem] = field(default_factory=list)
    """What was not."""

    def attempt(self, place: str, read: Callable[[], T]) -> T | None:
        """Do what reads files of a run; name what is wrong with them and return None.

        Args:
            place: Whose files.
            read: What reads them.
        """
        try:
            return read()
        except FinetuneError as error:
            self.problems.append(Problem(place, " ".join(str(error).split())))
        except UNEXPECTED as error:
            told = " ".join(f"{type(error).__name__} {error}".split())[:200]
            self.problems.append(
                Problem(place, f"a file does not have the format of a run: {told}")
            )
        return None


def number(values: Any, *path: str) -> float | None:
    """A finite number in nested results, by its keys; None where there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    if isinstance(values, bool) or not isinstance(values, int | float):
        return None
    return float(values) if math.isfinite(values) else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there; None of none."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def collect(places: Sequence[Path]) -> Collection:
    """Read run folders, and those in folders of runs.

    Args:
        places: A run of one seed, a run of several (`RUN/seed-1` …), or a folder of runs.

    Returns:
        The runs, each once, and what could not be read.
    """
    found = Collection()
    folders: dict[Path, Path] = {}
    for place in places:
        inside = _runs_in(place, found)
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
        if not inside:
            expected = f"expected a run or a folder of runs, found {_what_is(place)}"
            found.problems.append(Problem(str(place), expected))
    names = short_names(list(folders.values()))
    for folder, name in zip(folders.values(), names, strict=True):
        run = _read_run(folder, name, found)
        if run is not None:
            found.runs.append(run)
    return found


def _what_is(place: Path) -> str:
    if not place.exists():
        return "no such folder"
    return "none in it" if place.is_dir() else "a file"


def _runs_in(place: Path, found: Collection) -> list[Path]:
    """The run folders that `finetune runs` would list."""
    if not place.is_dir():
        return []
    listing = Listing()
    folders = list(run_folders(place, listing))
    found.problems += [Problem(str(folder), what) for folder, what in listing.problems]
    return folders


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many of each as distinguish it from the others."""
    parts = [folder.absolute().parts for folder in folders]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        lengths = range(1, len(own) + 1)
        told = (size for size in lengths if all(other[-size:] != own[-size:] for other in others))
        names.append("/".join(own[-next(told, len(own)) :]))
    return names


def _read_run(folder: Path, name: str, found: Collection) -> ReportedRun | None:
    before = len(found.problems)
    config = found.attempt(name, lambda: _read_config(folder / "config.yaml")) or {}
    top = found.attempt(name, lambda: _read_json(folder / "results.json")) or {}
    places = seed_folders(folder) or [folder]
    seeds = tuple(_read_seed(place, top, name, found) for place in places)
    group = None
    if any(seed.results for seed in seeds):
        ended = [seed.folder for seed in seeds if (seed.folder / "results.json").is_file()]
        group = found.attempt(name, lambda: read_group(folder if top else ended))
        group = group and replace(group, name=name)
    config = config or _config_of(seeds, name, found)
    told = bool(top) or seeds_stand_alone(folder)
    run = ReportedRun(folder, name, config, seeds, _state(folder, seeds, told), group)
    usable = group is not None or any(seed.lines for seed in seeds)
    if usable and len(found.problems) == before:
        found.problems += _unended(run)
    if not usable and not any(problem.damaged for problem in found.problems[before:]):
        running = run.state == "running"
        what = "it is running, and has logged nothing yet" if running else NOTHING
        found.problems.append(Problem(name, what, damaged=not running))
    return run if usable else None


def _state(folder: Path, seeds: Sequence[Seed], told: bool) -> State:
    """How a run stands: `told` is whether no more seeds than these are to come."""
    ended = told and all(seed.results for seed in seeds)
    degenerate = any(seed.results.get("collapsed") for seed in seeds)
    return state_of((folder, *(seed.folder for seed in seeds)), ended=ended, degenerate=degenerate)


def _unended(run: ReportedRun) -> Iterator[Problem]:
    if run.state == "running":
        yield Problem(run.name, "it is running: this is what it has so far", damaged=False)
        return
    seeds = [seed.folder.name for seed in run.seeds if not seed.results]
    if len(seeds) == len(run.seeds):
        yield Problem(run.name, "the run has not ended", damaged=False)
    elif seeds:
        yield Problem(run.name, f"not all seeds have ended: {', '.join(seeds)}", damaged=False)
    elif run.state == "interrupted":
        yield Problem(run.name, "not all seeds have been trained", damaged=False)


def _config_of(seeds: Sequence[Seed], name: str, found: Collection) -> dict[str, Any]:
    file = seeds[0].folder / "config.yaml"
    return found.attempt(name, lambda: _read_config(file)) or {}


def _read_config(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    content = with_new_names(load(file))
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected settings by name, found {type(content).__name__}")
    return content


def _read_json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file}: expected JSON, found {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected results by name, found {type(content).__name__}")
    return content


def _read_seed(folder: Path, top: dict[str, Any], name: str, found: Collection) -> Seed:
    results = found.attempt(name, lambda: _read_json(folder / "results.json"))
    if results is None or "seeds" in results:
        results = _from_top(folder, top)
    lines = found.attempt(name, lambda: _read_lines(folder / "metrics.jsonl", name, found)) or ()
    seed = number(results, "seed")
    return Seed(folder, None if seed is None else int(seed), results, lines)


def _from_top(folder: Path, top: dict[str, Any]) -> dict[str, Any]:
    """What the results of all seeds say about one, whose own folder may be gone."""
    runs = top.get("runs")
    named = (run for run in runs or () if isinstance(run, dict))
    return next((run for run in named if f"seed-{run.get('seed')}" == folder.name), {})


def _read_lines(file: Path, name: str, found: Collection) -> tuple[dict[str, Any], ...]:
    """The lines that are whole; how many are not is told, but for a last one that was cut off."""
    if not file.is_file():
        return ()
    lines = file.read_bytes().splitlines()
    read = [_line(line) for line in lines]
    damaged = sum(line is None for line in read[:-1])
    if damaged:
        what = f"{file.name}: {damaged} of {len(lines)} lines are not JSON objects with a step"
        found.problems.append(Problem(name, what))
    return tuple(line for line in read if line is not None)


def _line(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(content, dict) and number(content, "step") is not None
    return content if whole else None
