"""Runs that differ by their seed only, read from their folders as one group, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from finetune.comparison import Comparison, Group, Run, compare
from finetune.comparison.examples import RESAMPLES, Score
from finetune.comparison.groups import Answer
from finetune.console.output import are, counted
from finetune.errors import ConfigError, DataError, nearest
from finetune.metrics.semantics import label
from finetune.runs.families import make_task
from finetune.runs.fits import read_fit
from finetune.runs.folder import RunFolder
from finetune.runs.listing import Listing, run_folders
from finetune.runs.predictions import baseline_file, read_predictions
from finetune.runs.results import baselines, data_of

Places = Path | Sequence[Path]


def read_group(places: Places) -> Group:
    """Read a run of one or several seeds, a folder of runs, or a list of either.

    Args:
        places: A run folder, a folder of runs (those that `finetune runs` lists), or several of
            them, all of one task; what has not ended is passed over.

    Returns:
        One run a seed, by ascending seed.

    Raises:
        DataError: There is no results.json, or one is damaged; the runs are of different tasks or
            splits; a seed occurs twice.
    """
    folders = [places] if isinstance(places, Path) else list(places)
    if not folders:
        raise DataError("expected at least one run folder, got none; name a run")
    notes: list[str] = []
    found = [run for folder in folders for run in _ended_in(RunFolder(folder), notes)]
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    return replace(group_of(found, f"{folders[0]}{more}"), notes=tuple(notes))


def group_of(found: Sequence[Run], name: str) -> Group:
    """Runs of one seed as a group, by ascending seed.

    Args:
        found: Those runs, read from their folders.
        name: What the group is called.

    Raises:
        DataError: The runs are of different tasks or splits; a seed occurs twice.
    """
    kinds = {(run.results["task"], run.results["split"]): run.folder for run in found}
    if len(kinds) > 1:
        (one, here), (other, there) = list(kinds.items())[:2]
        raise DataError(
            f"expected runs of one task, got {_kind(one)} in {here} and {_kind(other)} in "
            f"{there}; name runs that differ by their seed only"
        )
    runs = sorted(found, key=lambda run: run.seed)
    seed, times = Counter(run.seed for run in runs).most_common(1)[0]
    if times > 1:
        places_of = " and ".join(str(run.folder) for run in runs if run.seed == seed)
        raise DataError(
            f"expected one run a seed, got seed {seed} {times} times: {places_of}; leave all but "
            "one out"
        )
    ((task, split),) = kinds
    return Group(name, task, split, tuple(runs), data=data_of(runs[0].results))


def baseline_group(group: Group, name: str) -> Group:
    """A baseline of a group's runs, as runs of the same seeds that all answer alike.

    Args:
        group: Runs, read from their folders.
        name: The baseline: `bag_of_words`, or `bag of words`.

    Raises:
        ConfigError: Not every run has the score of such a baseline.
    """
    scores = [baselines(run.results) for run in group.runs]
    known = [one for one in scores[0] if all(one in others for others in scores)]
    if not known:
        raise ConfigError(
            f"{group.name}: expected runs with scores of baselines, got none; compare it with "
            "another run"
        )
    wanted = name.replace(" ", "_").replace("-", "_")
    if wanted not in known:
        raise ConfigError(f"{group.name}: no baseline '{name}'; {nearest(wanted, known)}")
    runs = [
        Run(run.seed, one[wanted], read=partial(_baseline_rows, run.folder, wanted))
        for run, one in zip(group.runs, scores, strict=True)
    ]
    return replace(group, name=label(wanted), runs=tuple(runs), notes=(), is_baseline=True)


def _baseline_rows(folder: Path | None, name: str, split: str) -> list[Answer] | None:
    """What a baseline answers; beside several seeds its answers lie once, in the folder above."""
    places = [] if folder is None else [folder, folder.parent]
    files = (baseline_file(place, name, split) for place in places)
    return next((read_predictions(file) for file in files if file.is_file()), None)


def score_of(runs: Iterable[Run]) -> Score | None:
    """How the task of runs scores answers; None where none of them has its settings.

    Args:
        runs: Read from their folders.
    """
    for run in runs:
        if run.folder is not None and RunFolder(run.folder).config_file.is_file():
            # Of what the run answered, so that no training file is asked for the classes.
            first = next(iter(run.rows(run.results["split"]) or ()), {})
            labels = tuple(first.get("probabilities") or ()) or None
            return make_task(read_fit(run.folder), labels).score
    return None


def _kind(kind: tuple[str, str]) -> str:
    return f"{kind[0]} ({kind[1]})"


def _ended_in(place: RunFolder, notes: list[str]) -> list[Run]:
    """The runs of one seed that have ended, in a run or in a folder of runs."""
    if place.results_file.is_file():
        return place.read_ended()
    inside = [folder for folder in _parts_of(place.path) if folder.results_file.is_file()]
    if not inside:
        raise DataError(
            f"{place.path}: expected a run with {place.results_file.name}, or a folder of such "
            "runs, got neither; name a run that has ended"
        )
    notes.append(
        f"{place.path} has no {place.results_file.name} of its own: the "
        f"{counted(len(inside), 'run')} in it {are(len(inside))} taken"
    )
    return [run for folder in inside for run in folder.read_ended()]


def _parts_of(place: Path) -> Iterator[RunFolder]:
    """The runs below a folder; of several seeds that have not all ended, those of its seeds."""
    for folder in run_folders(place, Listing()):
        yield from [folder] if folder.results_file.is_file() else folder.runs


def compare_folders(
    a: Places,
    b: Places,
    metric: str | None = None,
    *,
    score: Score | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two runs, of one or several seeds, from their folders.

    Args:
        a: A run folder, a folder of runs, or a list of them (`read_group`).
        b: Another.
        metric: As for `compare`, like all that follow.
        score: Scores answers.
        resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    Raises:
        DataError: A folder holds no results, or damaged ones; or as for `compare`.
        ConfigError: They do not both have the metric.
    """
    groups = read_group(a), read_group(b)
    return compare(*groups, metric, score=score, resamples=resamples, seed=seed)
