"""A sweep's file: a command, and which of its settings vary. Nothing is trained here.

command: glue sst2 --config configs/glue/tiny.yaml --encoder runs/tiny --data data
method: random            # or grid: all combinations of lists
runs: 20                  # how many are drawn
parameters:
  pooling: [cls, mean]
  learning_rate: {min: 1.0e-5, max: 1.0e-3, scale: log}
  seed: [1, 2, 3]         # each of the runs is trained with each seed

Each combination is a run, in a folder named after its values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np

from finetune.console.output import counted
from finetune.errors import ConfigError, nearest
from finetune.metrics.semantics import label, shown
from finetune.ranges import MOST_SEED, check_values, within
from finetune.runs.families import make_task
from finetune.runs.folder import RunFolder
from finetune.runs.settings import FitRun, PretrainRun
from finetune.settings.fields import read
from finetune.settings.keywords import from_keywords
from finetune.settings.values import load, show

SUMMARY = "sweep.json"
"""In the folder of a sweep: its runs, the choice, and the winner's score on fresh rows."""
Values = dict[str, Any]
"""Name of a parameter -> its value in one run."""
MOST_RUNS = 100_000
LONGEST_NAME = 120
"""Characters of a run folder's name."""
OF_THE_SWEEP = {
    "out": "each run has a folder of its own; name that of the sweep by --out",
    "resume": "the sweep continues what was stopped",
    "overwrite": "name another folder by --out, or remove the run's folder",
    "extend_epochs": "vary max_epochs",
    "find_lr": "vary learning_rate",
    "dry_run": "give --dry-run to finetune sweep",
    "choose_on_half": "the sweep decides it: see fresh",
}
"""Settings that neither the command nor a parameter may set, and what to do instead."""
OF_THE_ROWS = ("task", "dataset", "data", "validation", "test", "limit")
"""Settings that would let runs be scored on different rows, between which nothing can choose."""


@dataclass
class Sweep:
    """What a sweep's file says."""

    command: str
    """The training command without the settings that vary, such as `glue rte --encoder runs/tiny`;
    pretrain, or any command that fine-tunes."""
    method: Literal["grid", "random"] = "grid"
    """grid: all combinations of the parameters' lists; random: draws from lists and ranges."""
    runs: int | None = within(1, MOST_RUNS, default=None)
    """random: how many combinations are drawn."""
    seed: int = within(0, MOST_SEED, default=1)
    """random: keys the draws; a higher `runs` continues them."""
    fresh: str | None = None
    """Rows that choose nothing, to score the winner on: `half` (of the validation split, which
    then chooses on the other half), or a labelled split such as `test`; none = test where the
    command names a file by --test, else half."""

    def __post_init__(self) -> None:
        """Check the values."""
        check_values(self)


@dataclass(frozen=True)
class Interval:
    """Numbers of which a random sweep draws."""

    least: float
    most: float
    log: bool
    """Whether the logarithm is uniform."""

    def draw(self, rng: np.random.Generator) -> float:
        """A number with four digits, or a whole one between whole ends (both included)."""
        is_whole = isinstance(self.least, int) and isinstance(self.most, int)
        low, high = self.least, self.most + is_whole
        if self.log:
            number = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            number = rng.uniform(low, high)
        rounded = math.floor(number) if is_whole else float(f"{number:.4g}")
        return min(max(rounded, self.least), self.most)


Parameters = dict[str, list[Any] | Interval]
"""Name with `_` for `-` -> the values that it may have."""


def read_sweep(file: Path) -> tuple[Sweep, Parameters]:
    """Read a sweep's file.

    Raises:
        ConfigError: A key is unknown, a value is wrong, or the parameters do not fit the method.
    """
    content = load(file)
    if not isinstance(content, dict) or not isinstance(content.get("command"), str):
        raise ConfigError(
            f"{file}: expected a sweep with a command in text, such as 'command: glue rte "
            "--encoder runs/tiny'; see docs/sweeps.md"
        )
    try:
        rest = {key: value for key, value in content.items() if key != "parameters"}
        sweep = read(Sweep, None, from_keywords(Sweep, rest))
        parameters = _parameters(content.get("parameters"))
        _check(sweep, parameters)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return sweep, parameters


def _parameters(content: Any) -> Parameters:
    if not isinstance(content, dict) or not content:
        raise ConfigError("parameters: expected at least one setting with its values, got none")
    parameters: Parameters = {}
    for written, values in content.items():
        name = str(written).lstrip("-").replace("-", "_")
        _refuse(name)
        if name in parameters:
            raise ConfigError(f"parameters: {name} is given twice; leave one out")
        parameters[name] = _values(name, values)
    return parameters


def _refuse(name: str) -> None:
    """Refuse a setting that is not a run's, or between whose values nothing can choose."""
    if name == "seeds":
        raise ConfigError(
            "parameters: seeds: write seed: [1, 2, 3]; each run is trained with each of them, and "
            "judged by the mean"
        )
    if name in OF_THE_SWEEP:
        raise ConfigError(f"parameters: {name} is not allowed to vary; {OF_THE_SWEEP[name]}")
    if name in OF_THE_ROWS:
        raise ConfigError(
            f"parameters: {name} is not allowed to vary: runs would be scored on other rows, and "
            "the best could not be chosen; put it into the command"
        )


def _values(name: str, values: Any) -> list[Any] | Interval:
    if isinstance(values, list) and values:
        repeated = next((one for n, one in enumerate(values) if one in values[:n]), None)
        if repeated is not None:
            raise ConfigError(f"parameters: {name}: {show(repeated)} is given twice; leave one out")
        return values
    if isinstance(values, dict) and name != "seed":
        return _range(name, values)
    wanted = "a list of values" if name == "seed" else "a list of values, or min and max"
    got = "an empty list" if values == [] else show(values)
    raise ConfigError(f"parameters: {name}: expected {wanted}, got {got}")


def _range(name: str, values: Mapping[str, Any]) -> Interval:
    known = ("min", "max", "scale")
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"parameters: {name}: unknown key '{unknown}'; {nearest(unknown, known)}")
    least, most, scale = (values.get(key) for key in known)
    if not _is_number(least) or not _is_number(most) or not least < most:
        raise ConfigError(
            f"parameters: {name}: expected numbers as min and max, min the lower, got "
            f"{show(least)} and {show(most)}"
        )
    if scale not in (None, "linear", "log") or (scale == "log" and least <= 0):
        raise ConfigError(
            f"parameters: {name}: expected the scale linear, or log with a min above 0, got "
            f"{show(scale)} and {show(least)}"
        )
    return Interval(least, most, scale == "log")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(sweep: Sweep, parameters: Parameters) -> None:
    """Refuse what does not fit the method."""
    ranges = [name for name, values in parameters.items() if isinstance(values, Interval)]
    if sweep.method == "grid" and ranges:
        raise ConfigError(
            f"parameters: {ranges[0]}: a grid has lists of values, got min and max; list the "
            "values, or choose method: random"
        )
    if (sweep.method == "random") != (sweep.runs is not None):
        raise ConfigError(
            f"runs: expected {'a number' if sweep.runs is None else 'none'} with method: "
            f"{sweep.method}, got {show(sweep.runs)}; a grid has all combinations"
        )
    most = math.prod(len(one) for one in _varied(parameters).values() if isinstance(one, list))
    if sweep.runs is not None and not ranges and sweep.runs > most:
        raise ConfigError(
            f"runs: {sweep.runs} of {most} combinations cannot be drawn; choose method: grid"
        )


def _varied(parameters: Parameters) -> Parameters:
    """The parameters without the seed, which makes no run of its own."""
    return {name: values for name, values in parameters.items() if name != "seed"}


def combinations(sweep: Sweep, parameters: Parameters) -> dict[str, Values]:
    """The runs of a sweep: name of its folder -> the value of each parameter.

    The values of `seed` are the `seeds` of each; only pretraining, which knows one seed, has a run
    for each of them.
    """
    varied = _varied(parameters)
    drawn = _draws(sweep, varied) if sweep.method == "random" else _grid(varied)
    seeds = parameters.get("seed")
    if not isinstance(seeds, list):
        return {folder_name(values): values for values in drawn}
    if command_words(sweep)[0] == "pretrain":
        each = [{**values, "seed": seed} for values in drawn for seed in seeds]
        return {folder_name(values): values for values in each}
    return {folder_name(values): {**values, "seeds": seeds} for values in drawn}


def _grid(parameters: Parameters) -> Iterator[Values]:
    lists = [values for values in parameters.values() if isinstance(values, list)]
    for combination in itertools.product(*lists):
        yield dict(zip(parameters, combination, strict=True))


def _draws(sweep: Sweep, parameters: Parameters) -> Iterator[Values]:
    """Different draws; each is a function of the sweep's seed, its number and the names."""
    seen: set[str] = set()
    for number in itertools.count():
        if len(seen) == sweep.runs:
            return
        if number > 1000 + 100 * (sweep.runs or 1):
            raise ConfigError(
                f"runs: {sweep.runs} different combinations could not be drawn; lower it"
            )
        values = {
            name: _draw(
                choices, np.random.default_rng([sweep.seed, number, zlib.crc32(name.encode())])
            )
            for name, choices in parameters.items()
        }
        if (name := folder_name(values)) not in seen:
            seen.add(name)
            yield values


def _draw(choices: list[Any] | Interval, rng: np.random.Generator) -> Any:
    return (
        choices.draw(rng) if isinstance(choices, Interval) else choices[rng.integers(len(choices))]
    )


def folder_name(values: Values) -> str:
    """The name of a run's folder: `dropout=0.1,pooling=cls`; `all` where nothing varies.

    By name, so that parameters may change their places in the file.
    """
    name = ",".join(f"{key}={show(value)}" for key, value in sorted(values.items())) or "all"
    safe = re.sub(r"[^\w.=,:+-]", "-", name)
    if safe == name and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{safe[: LONGEST_NAME - 9]}-{digest}"


def check_command(words: list[str]) -> None:
    """Refuse options of a command that are the sweep's.

    Raises:
        ConfigError: One is given.
    """
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    for name, hint in OF_THE_SWEEP.items():
        if f"--{name.replace('_', '-')}" in options:
            raise ConfigError(f"command: --{name.replace('_', '-')} is not allowed; {hint}")


def command_words(sweep: Sweep) -> list[str]:
    """The words of the command, `finetune` before them or not.

    Raises:
        ConfigError: A quote is open, or there is no word; or an option is the sweep's.
    """
    try:
        words = shlex.split(sweep.command)
    except ValueError as error:
        raise ConfigError(f"command: {str(error).lower()}; close it") from None
    words = words[1:] if words[:1] == ["finetune"] else words
    if not words:
        raise ConfigError("command: expected a command such as glue rte, got no word")
    check_command(words)
    return words


@dataclass(frozen=True)
class Planned:
    """A run of a sweep."""

    name: str
    """Of its folder in the sweep's."""
    values: Mapping[str, Any]
    """Of the settings that vary."""
    run: FitRun | PretrainRun
    """All its settings."""

    @property
    def folder(self) -> RunFolder:
        """Where it is trained."""
        return RunFolder(Path(str(self.run.out)))

    @property
    def setting(self) -> str:
        """Its name without the seed: runs of one setting are judged by their mean."""
        varied = {name: value for name, value in self.values.items() if name != "seed"}
        return folder_name(varied) if "seed" in self.values else self.name


def fresh_rows(run: FitRun, named: str | None) -> str:
    """Which rows score the winner: those that were named, else a labelled test file, else a half.

    Args:
        run: One of the sweep's.
        named: `half` or a split; None where nothing was named.

    Raises:
        ConfigError: The split that was named has no labels, or the task is not trained.
        DataError: Its file is missing or damaged.
    """
    task = make_task(run)
    if task.train_split is None or task.fixed_answer is not None:
        raise ConfigError(f"command: {task.name} is not trained, so there is nothing to choose")
    if named == "half" or (named is None and run.test is None):
        return "half"
    split = named or task.test_splits[0]
    if split in task.validation_splits:
        raise ConfigError(f"fresh: {split} chooses the winner; name another split, or half")
    if all(example.label is not None for example in task.examples(split)):
        return split
    if named is None:  # a file to predict
        return "half"
    raise ConfigError(f"fresh: expected a labelled split, got {split} without labels; choose half")


def choice_lines(summary: Mapping[str, Any]) -> list[str]:
    """The best run of a sweep, and by how much its score flatters; none before its end.

    Args:
        summary: What sweep.json holds.
    """
    if "best" not in summary:
        return []
    metric, name = summary["metric"], label(summary["metric"])
    lines = [f"best of {len(summary['runs'])}: {summary['best']}"]
    score = shown(metric, summary["score"])
    if "fresh" not in summary:
        return [*lines, f"{name} {score}, on the rows that chose it; there are no fresh ones"]
    fresh = summary["fresh"]
    rows = f"{counted(fresh['examples'], 'row')} of {fresh['split']}"
    flattery = shown(metric, fresh["flatters_by"], signed=True)
    if "interval" in fresh:
        low, high = (shown(metric, end, signed=True) for end in fresh["interval"])
        flattery += f" [95 % over examples: {low}, {high}]"
    lines += [
        f"{name} on the rows that chose it ({summary['split']}): {score}",
        f"{name} on fresh rows ({rows}): {shown(metric, fresh['score'])}",
        f"the choice flatters by {flattery}",
    ]
    for bar, value in summary.get("elementary", {}).items():
        lines.append(f"baseline {label(bar)}, on the rows that chose: {shown(metric, value)}")
    return lines
