"""`finetune sweep`: many runs of one command, or the files by which other machines run them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import add_json, command_parser, positive
from finetune.cli.train import read_fit_settings, read_pretrain_settings
from finetune.console.output import counted, put
from finetune.errors import ConfigError, nearest
from finetune.metrics.semantics import column_title, goodness, meaning, shown

if TYPE_CHECKING:
    from finetune.runs.settings import FitRun, PretrainRun
    from finetune.runs.sweeps import Interval, Parameters, Planned, Sweep, Values

MORE = """\
FILE, in YAML:
  command: glue rte --encoder runs/tiny --data data    what all runs share
  method: grid                 all combinations; or random, with runs: 20
  parameters:
    pooling: [cls, mean]
    learning_rate: [1.0e-4, 1.0e-3]
                     with random also {min: 1.0e-5, max: 1.0e-3, scale: log}
    seed: [1, 2, 3]  each run is trained with each, and judged by the mean

The best run is scored again on rows that did not choose it. The same command
continues a sweep that was stopped."""
WANDB_RUN = "$WANDB_RUN_ID"


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    space = _parser().parse_args(arguments)
    from finetune.runs.sweeps import combinations, read_sweep

    sweep, parameters = read_sweep(space.file)
    folder = space.out or Path("runs/sweeps") / space.file.stem
    runs = combinations(sweep, parameters)
    if space.run is not None and space.run > len(runs):
        raise ConfigError(f"--run {space.run}: the sweep has {counted(len(runs), 'run')}")
    planned, fresh = _planned(space.file, sweep, runs, folder)
    if space.print == "slurm":
        put(_slurm(space.file, folder, len(planned)))
    elif space.print == "wandb":
        put(_wandb(space.file, sweep, parameters, planned[0].run, folder))
    elif space.dry_run:
        _show_plan(planned, fresh, as_json=space.json)
    else:
        _run(planned, sweep, folder, fresh, space)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "sweep", "Train a command with many settings, and score the best on fresh rows.", MORE
    )
    parser.add_argument("file", type=Path, help="YAML file of the sweep, as below")
    parser.add_argument(
        "--out", type=Path, help="folder of the runs (default: runs/sweeps/NAME OF FILE)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs, and train nothing")
    parser.add_argument(
        "--run", type=positive, metavar="N", help="train run N alone, such as in a job array"
    )
    parser.add_argument(
        "--print",
        choices=("slurm", "wandb"),
        help="train nothing: print a script for sbatch, with a job for each run, or a file for "
        "wandb sweep",
    )
    add_json(parser, "print all runs and the choice as JSON on stdout")
    return parser


def _planned(
    file: Path, sweep: Sweep, runs: Mapping[str, Values], folder: Path
) -> tuple[list[Planned], str | None]:
    """The runs with all their settings, and which rows score the best of them."""
    from finetune.runs.settings import FitRun
    from finetune.runs.sweeps import Planned, fresh_rows

    common: dict[str, object] = {}
    fresh = None
    planned: list[Planned] = []
    for number, (name, values) in enumerate(runs.items()):
        try:
            run = _settings(sweep, values, {"out": str(folder / name), **common})
            if number == 0 and isinstance(run, FitRun):
                fresh = fresh_rows(run, sweep.fresh)
                common = {"choose_on_half": fresh == "half"}
                run = dataclasses.replace(run, choose_on_half=fresh == "half")
                common["baselines"] = False  # of further runs: they are the same
            elif sweep.fresh is not None and not isinstance(run, FitRun):
                raise ConfigError("fresh: pretraining has no rows but its validation text")
        except ConfigError as error:
            raise ConfigError(f"{file}: {name}: {error}") from None
        planned.append(Planned(name, values, run))
    return planned, fresh


def _settings(sweep: Sweep, values: Values, common: Mapping[str, object]) -> FitRun | PretrainRun:
    """The settings of one run.

    Raises:
        ConfigError: The command is none that trains, or a setting or value is wrong.
    """
    from finetune.runs.families import families
    from finetune.runs.settings import PretrainRun, fit_settings
    from finetune.runs.sweeps import command_words
    from finetune.settings.keywords import from_keywords

    word, *words = command_words(sweep)
    if word != "pretrain" and word not in families():
        known = [*families(), "pretrain"]
        raise ConfigError(
            f"command: expected one that trains, got {word!r}; {nearest(word, known)}"
        )
    keys = from_keywords(PretrainRun if word == "pretrain" else fit_settings(word), values)
    if len(keys) < len(values):
        raise ConfigError("parameters: two of them are the same setting; leave one out")
    read = read_pretrain_settings if word == "pretrain" else read_fit_settings
    run = read(word, words, {**keys, **common})
    if run is None:
        raise ConfigError("command: --print-config trains nothing; leave it out")
    return run


def _show_plan(planned: Sequence[Planned], fresh: str | None, *, as_json: bool) -> None:
    if as_json:
        rows = [{"name": one.name, "values": dict(one.values)} for one in planned]
        put(json.dumps({"runs": rows, "fresh": fresh}, ensure_ascii=False))
        return
    seeds = sum(len(getattr(one.run, "seeds", None) or [0]) for one in planned)
    put("\n".join(f"{number:>4}  {one.name}" for number, one in enumerate(planned, start=1)))
    put(f"{counted(len(planned), 'run')}, {counted(seeds, 'training')}")


def _run(
    planned: Sequence[Planned],
    sweep: Sweep,
    folder: Path,
    fresh: str | None,
    space: argparse.Namespace,
) -> None:
    from finetune.jobs import sweeping
    from finetune.machine.processes import is_first_process

    command = " ".join(sweep.command.split())
    summary = sweeping.sweep(planned, folder, command=command, fresh=fresh, only=space.run)
    if not is_first_process():
        return
    if space.json:
        put(json.dumps(summary, ensure_ascii=False))
    elif space.run is None:
        put(sweep_text(summary))


def sweep_text(summary: Mapping[str, Any]) -> str:
    """What came out of a sweep, for the terminal: its runs, the best first, and the choice.

    Args:
        summary: What sweep.json holds.
    """
    from finetune.console.tables import table
    from finetune.metrics.semantics import headline
    from finetune.runs.sweeps import choice_lines

    rows = summary["runs"]
    ended = [row for row in rows if "metrics" in row]
    others = [row for row in rows if "metrics" not in row]
    known = headline(ended[0]["metrics"]) if ended else None
    metric = str(summary.get("metric", known))
    ended.sort(key=lambda row: -goodness(metric, row["metrics"][metric]["mean"]))
    cells = [[row["name"], *_scores(metric, row), row["state"]] for row in ended]
    cells += [[row["name"], "", "", row["state"]] for row in others]
    title = column_title(metric) if ended else "score"
    lines = [table(cells, ["run", title, "minutes", "state"])]
    lines += [f"{row['name']}: {row['error']}" for row in others if "error" in row]
    waiting = sum(row["state"] != "failed" for row in others)
    if waiting:
        lines.append(f"{counted(waiting, 'run')} to come; the same command continues the sweep")
    return "\n".join([*lines, "", *choice_lines(summary)]).rstrip()


def _scores(metric: str, row: Mapping[str, Any]) -> list[str]:
    of = row["metrics"][metric]
    spread = f" ± {shown(metric, of['std'])}" if len(of["values"]) > 1 else ""
    return [f"{shown(metric, of['mean'])}{spread}", f"{row['minutes']:.1f}"]


def _slurm(file: Path, folder: Path, count: int) -> str:
    words = ["finetune", "sweep", str(file), "--out", str(folder)]
    again = shlex.join(words)
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={shlex.quote(file.stem)}",
            f"#SBATCH --array=1-{count}",
            "#SBATCH --requeue",
            "#SBATCH --signal=B:USR1@120",
            f"#SBATCH --chdir={shlex.quote(os.getcwd())}",
            f"# When all jobs have ended, this command chooses and prints the table: {again}",
            f'exec {again} --run "$SLURM_ARRAY_TASK_ID"',
        ]
    )


def _wandb(
    file: Path,
    sweep: Sweep,
    parameters: Parameters,
    run: FitRun | PretrainRun,
    folder: Path,
) -> str:
    """The file for `wandb sweep`: each agent trains one run of one seed at a time."""
    from finetune.runs.families import make_task
    from finetune.runs.settings import FitRun
    from finetune.runs.sweeps import command_words
    from finetune.settings.values import write

    words = ["finetune", *command_words(sweep)]
    metric, better = "best/loss", meaning("loss").better
    if isinstance(run, FitRun):
        words += ["--choose-on-half"] * run.choose_on_half
        metric, better = "best/headline", meaning(make_task(run).monitor).better
    out = f'--out "{folder}/{WANDB_RUN}"'
    content: dict[str, Any] = {
        "name": file.stem,
        "method": sweep.method,
        "metric": {"name": metric, "goal": "minimize" if better == "lower" else "maximize"},
        "parameters": {
            _flag(run, name): _wandb_values(name, values) for name, values in parameters.items()
        },
        "command": ["sh", "-c", f'{shlex.join(words)} {out} "$@"', "finetune", "${args}"],
    }
    if sweep.runs is not None:
        content["run_cap"] = sweep.runs
    return write(content).rstrip("\n")


def _flag(run: object, name: str) -> str:
    """A parameter as a flag without its dashes: W&B puts them before it."""
    from finetune.settings.fields import settings_of

    flags = {setting.key: setting.flag for setting in settings_of(type(run))}
    by_name = {str(flag).lstrip("-").replace("-", "_"): flag for flag in flags.values() if flag}
    flag = flags.get(name) or by_name.get(name)
    if flag is None:
        raise ConfigError(f"parameters: {name} has no flag, by which Weights & Biases would set it")
    return flag.lstrip("-")


def _wandb_values(name: str, values: list[Any] | Interval) -> dict[str, Any]:
    if isinstance(values, list):
        if any(isinstance(value, bool | list) for value in values):
            raise ConfigError(
                f"parameters: {name}: Weights & Biases writes --{name}=true, which no flag takes; "
                "print a sweep of plain values, or run this one without it"
            )
        return {"values": ["none" if value is None else value for value in values]}
    kind = "log_uniform_values" if values.log else "uniform"
    if isinstance(values.least, int) and isinstance(values.most, int):
        kind = "q_log_uniform_values" if values.log else "int_uniform"
    return {"distribution": kind, "min": values.least, "max": values.most}
