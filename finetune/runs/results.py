"""The form of results.json, and what is computed of seeds.

Nothing here opens a file: `runs.folder.RunFolder` reads and writes them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, TypeGuard, cast

from finetune.elementary import TRIVIAL
from finetune.errors import DataError
from finetune.metrics.semantics import best_index, headline

if TYPE_CHECKING:
    from finetune.comparison import Run

Results = dict[str, Any]
"""What a job returns and results.json holds: `RunResults`, or `SeedsResults` of several seeds."""


class RunResults(TypedDict):
    """What results.json holds for a run of one seed."""

    task: str
    """Such as `glue/cola`, or `pretrain`."""
    split: str
    """The split that `metrics` are of, where their names do not say another one."""
    metrics: dict[str, float]
    """Name -> value, a fraction or a loss; the headline comes first."""
    seed: int
    examples: NotRequired[int]
    """Scored examples of the split."""
    encoder: NotRequired[str]
    """What the run started from; `none` for random weights."""
    extended_epochs: NotRequired[int]
    """Epochs that it was trained beyond its settings' length."""
    parameters: NotRequired[int]
    train_seconds: NotRequired[float]
    examples_per_second: NotRequired[float]
    peak_gib: NotRequired[float]
    versions: NotRequired[dict[str, str]]
    """Of Python and the libraries."""
    machine: NotRequired[dict[str, Any]]
    """System, processor, cores, memory in GiB and GPU."""
    finished: NotRequired[str]
    """Date and time of its end, with the offset from UTC."""
    command: NotRequired[str | None]
    """The command line as it was typed; None from Python."""
    working_folder: NotRequired[str]
    """The folder that it was typed in."""
    collapsed: NotRequired[bool]
    """Whether every example got one and the same answer."""
    predictions: NotRequired[dict[str, dict[str, str]]]
    """Split -> whose answers to what its predictions are (`predictions.Origin`)."""
    baselines: NotRequired[dict[str, dict[str, float]]]
    """Baseline (`trivial`, `bag_of_words`, …) -> its metrics on the validation splits; older runs
    have the trivial one alone, as `majority`."""
    data: NotRequired[dict[str, Any]]
    """What the splits or the corpus hold."""
    plan: NotRequired[list[dict[str, Any]]]
    """The phases of unfreezing."""
    report: NotRequired[dict[str, Any]]
    """Scores of each class."""
    decision: NotRequired[dict[str, Any]]
    """Temperature and thresholds that were tuned, and the split that they were tuned on."""
    calibration: NotRequired[dict[str, dict[str, dict[str, float]]]]
    """Split -> `nll` and `ece` -> their values `before` and `after` the temperature."""
    fixed_thresholds: NotRequired[dict[str, float]]
    """The metrics with a threshold of 0.5 for every class, where others were tuned."""
    test: NotRequired[dict[str, Any]]
    """Metrics and number of examples of a test file that was named."""
    monitored: NotRequired[dict[str, float]]
    """The metric that `--monitor` named, as it was when the best checkpoint was chosen."""
    skipped: NotRequired[dict[str, int]]
    """Rows that were left out, by reason."""
    imported: NotRequired[dict[str, str]]
    """Where an encoder that was imported is from."""
    fixed_answer: NotRequired[str]
    """What every example gets, where nothing was trained."""


class Summary(TypedDict):
    """A metric over seeds."""

    mean: float
    std: float
    """Standard deviation (n - 1); 0 for one value."""
    values: list[float]
    """In the order of the seeds."""


class SeedsResults(TypedDict):
    """What results.json holds for a run of several seeds."""

    task: str
    split: str
    seeds: list[int]
    metrics: dict[str, Summary]
    collapsed: list[int]
    """The seeds that gave every example the same answer."""
    runs: list[RunResults]
    """The results of each seed."""


def data_of(results: Mapping[str, Any]) -> str:
    """Digest of the examples that a run's metrics are of; "" where it does not say.

    Args:
        results: Those of one seed.
    """
    origins = results.get("predictions")
    origin = origins.get(results.get("split")) if isinstance(origins, Mapping) else None
    digest = origin.get("data") if isinstance(origin, Mapping) else None
    return digest if isinstance(digest, str) else ""


def over_seeds(runs: Sequence[Results]) -> Results:
    """Mean and standard deviation (n - 1) of each metric over seeds, with each seed's results."""
    first = runs[0]
    return {
        "task": first["task"],
        "split": first["split"],
        "seeds": [run["seed"] for run in runs],
        "metrics": {
            name: summarise([run["metrics"][name] for run in runs]) for name in first["metrics"]
        },
        "collapsed": [run["seed"] for run in runs if run.get("collapsed")],
        "runs": list(runs),
    }


def baselines(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics of the baselines by name, means over seeds; of an older run the trivial one alone.

    >>> from finetune.runs.results import baselines
    >>> baselines({"baselines": {"trivial": {"accuracy": 0.5}}})["trivial"]
    {'accuracy': 0.5}

    Args:
        results: What results.json contains.
    """
    runs = results.get("runs")
    each = list(map(_baselines, runs if isinstance(runs, list) and runs else [results]))
    return {
        name: {
            metric: _mean([one[name][metric] for one in each])
            for metric in metrics
            if all(metric in one.get(name, ()) for one in each)
        }
        for name, metrics in each[0].items()
    }


def _baselines(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Those of one seed."""
    recorded = results.get("baselines")
    named = {TRIVIAL: results.get("majority"), **(recorded if isinstance(recorded, dict) else {})}
    return {name: one for name, one in named.items() if one and isinstance(one, dict)}


def _mean(values: Sequence[float]) -> float:
    """The mean; of equal values the value itself, to the last digit."""
    return values[0] if all(value == values[0] for value in values) else statistics.fmean(values)


def best_elementary(results: Mapping[str, Any], metric: str | None) -> tuple[str, float] | None:
    """The elementary baseline that is best by a metric, and its value; None where there is none.

    Args:
        results: What results.json contains.
        metric: Its name.
    """
    scores = {
        name: one[metric]
        for name, one in baselines(results).items()
        if metric in one and name != TRIVIAL
    }
    if metric is None or not scores:
        return None
    name = list(scores)[best_index(metric, list(scores.values()))]
    return name, scores[name]


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation (n - 1; 0 for one value) and the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


def of_several(results: Mapping[str, Any]) -> TypeGuard[SeedsResults]:
    """Whether results are those of several seeds."""
    return "seeds" in results


def checked_runs(results: Mapping[str, Any], file: Path) -> list[RunResults]:
    """The results of each seed, or of the only one; checked.

    Args:
        results: What the file holds.
        file: Where they are from.

    Raises:
        DataError: They are not in the form that a run writes.
    """
    if not of_several(results):
        return [_checked(results, file)]
    runs = results.get("runs")
    if not isinstance(runs, list) or not runs:
        raise DataError(
            f"{file}: expected the results of each seed under 'runs', got none; train again"
        )
    return [_checked(run, file) for run in runs]


def _checked(results: Any, file: Path) -> RunResults:
    kinds = {"task": str, "split": str, "metrics": dict, "seed": int}
    for key, kind in kinds.items():
        if not isinstance(results, dict) or not isinstance(results.get(key), kind):
            raise DataError(
                f"{file}: expected results with task, split, metrics and seed, got no {key}; "
                "train or evaluate again"
            )
    for name, value in results["metrics"].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise DataError(f"{file}: expected a number as {name}, got {value!r}; train again")
    return cast(RunResults, results)


def logged_step(line: bytes) -> dict[str, Any] | None:
    """What a line of metrics.jsonl has of a step; None for a line that is damaged."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    has_step = isinstance(content, dict) and type(content.get("step")) in (int, float)
    return content if has_step and math.isfinite(content["step"]) else None


class BestSeed(NamedTuple):
    """The run that stands for those of several seeds."""

    run: Run
    metric: str
    """What it was chosen by."""
    value: float
    """Its value of that."""


def best_run(runs: Sequence[Run], monitor: str | None) -> BestSeed | None:
    """The best of several runs, the first of equals; None where they have no metric.

    Args:
        runs: One for each seed.
        monitor: The metric that chose their checkpoints; None, or where they do not have it: the
            headline, the first of their metrics.
    """
    known = [(run, {**run.metrics, **run.results.get("monitored", {})}) for run in runs]
    for metric in filter(None, (monitor, headline(runs[0].metrics))):
        scored = [
            BestSeed(run, metric, values[metric]) for run, values in known if metric in values
        ]
        if scored:
            return scored[best_index(metric, [one.value for one in scored])]
    return None
