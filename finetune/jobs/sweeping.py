"""Many runs of one command, the choice among them, and its score on rows that did not choose.

The runs are ordinary ones in one folder, trained one after another in this process. One that has
ended is not trained again, one that was stopped continues, one that another process holds is left
to it: several machines with a shared folder may work on the same sweep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from finetune.comparison.example_tests import unpaired_bootstrap
from finetune.comparison.groups import split_of
from finetune.console.output import counted
from finetune.errors import ConfigError, DataError, FinetuneError
from finetune.files.writing import write_json, write_text
from finetune.jobs import fit, pretrain
from finetune.jobs.evaluation import evaluate
from finetune.machine.processes import (
    first_process_only,
    is_first_process,
    join,
    place,
    working_alone,
)
from finetune.metrics.semantics import best_index, goodness, headline
from finetune.runs.folder import RunFolder, say
from finetune.runs.groups import score_of
from finetune.runs.listing import Listing, read_record, run_folders
from finetune.runs.opening import check_writable
from finetune.runs.results import Results, best_elementary, data_of, of_several, summarise
from finetune.runs.settings import FitRun, PretrainRun
from finetune.runs.sweeps import SUMMARY, Planned
from finetune.settings.values import load, show, write

RECORD = "sweep.yaml"
"""In the folder of a sweep: what its runs have in common."""
Fresh = Literal["half"] | str | None
"""Which rows score the winner: the other half, a labelled split, or none."""


def sweep(
    planned: Sequence[Planned], folder: Path, *, command: str, fresh: Fresh, only: int | None = None
) -> Results:
    """Train the runs that have not ended, choose the best, and score it on fresh rows.

    Args:
        planned: All runs of the sweep; they differ in their settings alone.
        folder: Holds their folders.
        command: What they have in common, which must stay when runs are added.
        fresh: Which rows score the winner.
        only: Number of the one run to train, from 1, without a choice; None: all.

    Returns:
        What sweep.json holds: `runs`, a row each; and, when all have ended or failed, `best`,
        `metric` and `fresh`.

    Raises:
        ConfigError: The folder holds another sweep, or none of the runs could be trained.
    """
    with working_alone():  # tasks of srun on several machines divide the runs among themselves
        join(planned[0].run.trainer.devices)
        return _sweep(planned, folder, {"command": command, "fresh": fresh}, only)


def _sweep(
    planned: Sequence[Planned], folder: Path, record: Mapping[str, Any], only: int | None
) -> Results:
    _open(planned, folder, record)
    chosen = planned if only is None else planned[only - 1 : only]
    results, failed = _train(chosen, len(planned), only or 1)
    if only is not None:
        if failed:
            raise ConfigError(next(iter(failed.values())))
        return {"runs": _rows(chosen, results, failed)}
    summary: Results = {"runs": _rows(planned, results, failed)}
    if len(results) + len(failed) == len(planned):
        if not results:
            raise ConfigError(f"none of the runs could be trained: {next(iter(failed.values()))}")
        summary |= _chosen(
            [one for one in planned if one.name in results], results, record["fresh"]
        )
    _write_summary(folder, summary)
    return summary


@first_process_only
def _open(planned: Sequence[Planned], folder: Path, record: Mapping[str, Any]) -> None:
    """Take the folder, or refuse it where another sweep's runs lie there."""
    check_writable(folder)
    file = folder / RECORD
    if file.is_file():
        before = load(file)
        for key, value in record.items():
            if not isinstance(before, dict) or before.get(key) != value:
                was = before.get(key) if isinstance(before, dict) else None
                raise ConfigError(
                    f"{folder}: the sweep there has another {key} ({show(was)}); a sweep may get "
                    "further runs, and nothing else may change: name another folder by --out"
                )
    names = {one.name for one in planned}
    there = {run.path.relative_to(folder).parts[0] for run in run_folders(folder, Listing())}
    strange = sorted(there - names - {f"{name}-adapt" for name in names})
    if strange:
        raise ConfigError(
            f"{folder}: expected runs of this sweep, got {strange[0]}, which is none of its "
            f"{counted(len(names), 'run')}; a sweep may get further runs, but lose none: name "
            "another folder by --out"
        )
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file, write(dict(record)))


def _train(
    planned: Sequence[Planned], count: int, first: int
) -> tuple[dict[str, Results], dict[str, str]]:
    """Train what has not ended: results by name, and by name what ended those that failed."""
    results: dict[str, Results] = {}
    failed: dict[str, str] = {}
    alone = place().size == 1
    ended = {one.name for one in planned if one.folder.results_file.is_file()}
    for number, one in enumerate(planned, start=first):
        # Of several processes each must decide alike: they look before the first run only.
        if one.name in ended or (alone and one.folder.results_file.is_file()):
            results[one.name] = one.folder.read_results()
            continue
        if alone and one.folder.is_running:
            say(f"run {number} of {count}: {one.name} is running in another process")
            continue
        say(f"run {number} of {count}: {one.name}")
        try:
            results[one.name] = _train_one(one)
        except FinetuneError as error:
            if not alone:
                raise
            if one.folder.is_running:  # another process took it since the look at it
                say(f"run {number} of {count}: {one.name} is running in another process")
            elif not one.folder.results_file.is_file():
                failed[one.name] = " ".join(str(error).split())
                say(f"run {number} of {count} failed: {failed[one.name]}")
    for one in planned if alone else ():  # what other processes have ended in the meantime
        if one.name not in results | failed and one.folder.results_file.is_file():
            results[one.name] = one.folder.read_results()
    return results, failed


def _train_one(one: Planned) -> Results:
    has_started = one.folder.has_started or one.folder.adapted.has_started
    run = dataclasses.replace(one.run, resume=has_started and one.folder.config_file.is_file())
    return pretrain(run) if isinstance(run, PretrainRun) else fit(run)


def _rows(
    planned: Sequence[Planned], results: Mapping[str, Results], failed: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What sweep.json says of each setting."""
    return [_row(ones, results, failed) for ones in _by_setting(planned).values()]


def _by_setting(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    """The runs that differ in their seed alone, together: more than one only of pretraining."""
    settings: dict[str, list[Planned]] = {}
    for one in planned:
        settings.setdefault(one.setting, []).append(one)
    return settings


def _row(
    ones: Sequence[Planned], results: Mapping[str, Results], failed: Mapping[str, str]
) -> dict[str, Any]:
    """What sweep.json says of the runs of one setting."""
    values = {name: value for name, value in ones[0].values.items() if name != "seed"}
    row: dict[str, Any] = {"name": ones[0].setting, "values": values}
    for one in ones:
        if one.name in failed:
            return {**row, "state": "failed", "error": failed[one.name]}
    for one in ones:
        if one.name not in results:
            return {**row, "state": read_record(one.folder, Listing()).state}
    runs = [run for one in ones for run in _runs(results[one.name])]
    metrics = {
        name: summarise([run["metrics"][name] for run in runs]) for name in runs[0]["metrics"]
    }
    seconds = sum(run.get("train_seconds") or 0.0 for run in runs)
    is_degenerate = any(run.get("collapsed") for run in runs)
    state = "degenerate" if is_degenerate else "done"
    return {**row, "state": state, "metrics": metrics, "minutes": seconds / 60}


def _runs(results: Results) -> Sequence[Any]:
    """The results of each seed."""
    return results["runs"] if of_several(results) else [results]


def _chosen(planned: Sequence[Planned], results: Mapping[str, Results], fresh: Fresh) -> Results:
    """The best of the runs that have ended, and its score on fresh rows."""
    _check_same_rows(planned, results)
    metric = _metric(planned[0].run, [results[one.name] for one in planned])
    settings = list(_by_setting(planned).values())
    scores = [fmean(_mean(results[one.name], metric) for one in ones) for ones in settings]
    number = best_index(metric, scores)
    best = settings[number][0]
    ended = results[best.name]
    summary: Results = {
        "task": ended["task"],
        "split": ended["split"],
        "metric": metric,
        "best": best.setting,
        "score": scores[number],
    }
    bars = [bar for one in planned if (bar := best_elementary(results[one.name], metric))]
    if bars:
        summary["elementary"] = dict([bars[0]])
    if fresh is not None:
        summary["fresh"] = _fresh(best, ended, metric, "fresh" if fresh == "half" else fresh)
    return summary


def _check_same_rows(planned: Sequence[Planned], results: Mapping[str, Results]) -> None:
    """Refuse to choose among scores of different rows."""
    digests = {data_of(_first(results[one.name])): one.name for one in planned}
    if len(digests) > 1:
        first, second = list(digests.values())[:2]
        raise DataError(
            f"{first} and {second} were scored on different rows, so the best cannot be chosen; "
            "vary no setting that decides which rows are read"
        )


def _first(results: Results) -> Mapping[str, Any]:
    first: Mapping[str, Any] = _runs(results)[0]
    return first


def _metric(run: FitRun | PretrainRun, results: Sequence[Results]) -> str:
    """What --monitor names, else the headline."""
    known = [
        name for name in results[0]["metrics"] if all(name in one["metrics"] for one in results)
    ]
    monitor = getattr(run, "monitor", None)
    metric = monitor if monitor in known else headline(known)
    if metric is None:
        raise DataError("expected a metric that all runs have, got none; vary fewer settings")
    return metric


def _mean(results: Results, metric: str) -> float:
    value = results["metrics"][metric]
    return float(value["mean"] if of_several(results) else value)


def _fresh(best: Planned, ended: Results, metric: str, split: str) -> dict[str, Any]:
    """The winner's score on fresh rows, and by how much its score where it was chosen is better."""
    say(f"scoring {best.name} on rows that did not choose it")
    scored = evaluate(best.folder.path, split)
    split = scored["split"]
    score = _mean(scored, metric)
    sign = goodness(metric, 1.0)
    about = {
        "split": split,
        "examples": _first(scored)["examples"],
        "score": score,
        "flatters_by": sign * (_mean(ended, metric) - score),
    }
    # Another process may be here before the first one has written what the interval is made of.
    interval = _interval(best.folder, metric, (ended, scored)) if is_first_process() else None
    if interval is not None:
        about["interval"] = sorted(sign * end for end in interval)
    return about


def _interval(
    folder: RunFolder, metric: str, results: tuple[Results, Results]
) -> tuple[float, float] | None:
    """95 % of the difference between two splits, by the bootstrap; None where it is not known."""
    score = score_of(folder.read_ended())
    sides = []
    for one in results:
        split, name = split_of(metric, one["split"])
        sides.append([run.read_predictions(split) or [] for run in folder.runs])
    values = tuple(_values(one, metric) for one in results)
    if score is None or not all(rows for side in sides for rows in side):
        return None
    bootstrap = unpaired_bootstrap((sides[0], sides[1]), (values[0], values[1]), name, score)
    return None if bootstrap is None else bootstrap.interval


def _values(results: Results, metric: str) -> list[float]:
    """A metric of each seed."""
    value = results["metrics"][metric]
    return list(value["values"]) if of_several(results) else [value]


@first_process_only
def _write_summary(folder: Path, summary: Results) -> None:
    write_json(folder / SUMMARY, summary)
