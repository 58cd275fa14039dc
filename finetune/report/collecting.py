"""Run folders read for a report: what is there is taken, what is missing or damaged is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from finetune.comparison import Group
from finetune.elementary import TRIVIAL
from finetune.errors import FinetuneError
from finetune.runs.folder import RunFolder
from finetune.runs.groups import group_of
from finetune.runs.listing import UNEXPECTED, Listing, RunRecord, State, read_record, run_folders
from finetune.runs.listing import Seed as ListedSeed
from finetune.runs.results import baselines, best_elementary

T = TypeVar("T")

NOTHING = "it contains neither results nor metrics"


class Problem(NamedTuple):
    """Something that could not be shown, or that a reader must know."""

    place: str
    """The run or folder."""
    what: str
    """What is wrong with it, in half a sentence."""
    damaged: bool = True
    """Whether something is left out because of it."""


@dataclass(frozen=True)
class Seed(ListedSeed):
    """One training, ended or not, with its curves."""

    lines: Sequence[dict[str, Any]] = ()
    """What was logged, a step each."""


@dataclass(frozen=True)
class ReportedRun:
    """A run folder with its seeds."""

    folder: RunFolder
    """As it was named."""
    name: str
    """What it is called on the page."""
    config: dict[str, Any]
    """Its settings; empty where they cannot be read."""
    seeds: tuple[Seed, ...]
    """At least one."""
    state: State = "done"
    """As `finetune runs` shows it."""
    group: Group | None = None
    """The seeds that have ended, for comparisons; None where none has."""

    @property
    def results(self) -> Mapping[str, Any]:
        """The results of the first seed that has some."""
        return next((seed.results for seed in self.seeds if seed.results), {})

    @property
    def task(self) -> str:
        """What it was trained for, such as `family/task`, or `pretrain`."""
        named = self.group.task if self.group else self.config.get("task")
        return str(named or ("pretrain" if self.models_language else "unknown task"))

    @property
    def data(self) -> str:
        """Digest of the examples that it was scored on; empty where it is not known."""
        return self.group.data if self.group else ""

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

    def trivial(self, metric: str) -> float | None:
        """What the trivial baseline scores; None where it is not known."""
        return number(baselines(self._of_seeds), TRIVIAL, metric)

    def elementary(self, metric: str) -> tuple[str, float] | None:
        """The elementary baseline that is best by a metric, and its value; None without one."""
        return best_elementary(self._of_seeds, metric)

    @property
    def _of_seeds(self) -> dict[str, Any]:
        return {"runs": [seed.results for seed in self.seeds if seed.results] or [{}]}

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
            detail = " ".join(f"{type(error).__name__} {error}".split())[:200]
            self.problems.append(
                Problem(place, f"a file does not have the format of a run: {detail}")
            )
        return None


def nested(values: Any, *path: str) -> Any:
    """What nested results hold by these keys; None where they are not there."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def number(values: Any, *path: str) -> float | None:
    """A finite number in nested results, by its keys; None where there is none."""
    values = nested(values, *path)
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
    collection = Collection()
    folders: dict[Path, RunFolder] = {}
    for place in places:
        inside = _runs_in(place, collection)
        for folder in inside:
            folders.setdefault(folder.path.resolve(), folder)
        if not inside:
            expected = f"expected a run or a folder of runs, got {_what_is(place)}"
            collection.problems.append(Problem(str(place), expected))
    names = short_names([folder.path for folder in folders.values()])
    for folder, name in zip(folders.values(), names, strict=True):
        run = _read_run(folder, name, collection)
        if run is not None:
            collection.runs.append(run)
    return collection


def _what_is(place: Path) -> str:
    if not place.exists():
        return "no such folder"
    return "none in it" if place.is_dir() else "a file"


def _runs_in(place: Path, collection: Collection) -> list[RunFolder]:
    """The run folders that `finetune runs` lists."""
    if not place.is_dir():
        return []
    listing = Listing()
    folders = list(run_folders(place, listing))
    collection.problems += [Problem(str(folder), what) for folder, what in listing.problems]
    return folders


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many of each as distinguish it from the others."""
    parts = [folder.absolute().parts for folder in folders]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        lengths = range(1, len(own) + 1)
        detail = (size for size in lengths if all(other[-size:] != own[-size:] for other in others))
        names.append("/".join(own[-next(detail, len(own)) :]))
    return names


def _read_run(folder: RunFolder, name: str, collection: Collection) -> ReportedRun | None:
    before = len(collection.problems)
    listing = Listing()
    record = read_record(folder, listing)
    collection.problems += [Problem(name, what) for _, what in listing.problems]
    seeds = tuple(_read_seed(seed, name, collection) for seed in record.seeds)
    group = collection.attempt(name, lambda: group_of(record.ended, name)) if record.ended else None
    run = ReportedRun(folder, name, _config(record, name, collection), seeds, record.state, group)
    usable = group is not None or any(seed.lines for seed in seeds)
    if usable and len(collection.problems) == before:
        collection.problems += _unended(run)
    if not usable and not any(problem.damaged for problem in collection.problems[before:]):
        running = run.state == "running"
        what = "it is running, and has logged nothing yet" if running else NOTHING
        collection.problems.append(Problem(name, what, damaged=not running))
    return run if usable else None


def _unended(run: ReportedRun) -> Iterator[Problem]:
    if run.state == "running":
        yield Problem(run.name, "it is running: this is what it has so far", damaged=False)
        return
    seeds = [seed.folder.path.name for seed in run.seeds if not seed.results]
    if len(seeds) == len(run.seeds):
        yield Problem(run.name, "the run has not ended", damaged=False)
    elif seeds:
        yield Problem(run.name, f"not all seeds have ended: {', '.join(seeds)}", damaged=False)
    elif run.state == "interrupted":
        yield Problem(run.name, "not all seeds have been trained", damaged=False)


def _config(record: RunRecord, name: str, collection: Collection) -> dict[str, Any]:
    """The settings of a run, or of the first of its seeds; {} where they cannot be read."""
    config = collection.attempt(name, record.folder.read_config)
    return config or collection.attempt(name, record.seeds[0].folder.read_config) or {}


def _read_seed(seed: ListedSeed, name: str, collection: Collection) -> Seed:
    """A training with its curves; how many logged lines are damaged is reported."""
    lines, damaged = collection.attempt(name, seed.folder.read_metrics) or ([], 0)
    if damaged:
        file, count = seed.folder.metrics_file, len(lines) + damaged
        what = "is not a JSON object" if damaged == 1 else "are not JSON objects"
        what = f"{file.name}: {damaged} of {count} lines {what} with a step"
        collection.problems.append(Problem(name, what))
    return Seed(seed.folder, seed.run, lines)
