"""`finetune baseline`: the scores that words alone reach on a task, in seconds."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import add_json, command_parser
from finetune.errors import ConfigError, nearest
from finetune.files.unpacking import without_sheet
from finetune.runs.families import Family, families

if TYPE_CHECKING:
    from finetune.jobs.baselines import Answered
    from finetune.runs.settings import FitRun
    from finetune.task.interface import Task

KINDS = families()
"""The word after `finetune baseline`: a family of tasks."""
PLACES = ("data", "train", "validation", "test")
"""Settings of every fine-tuning run that say where a task's files are."""


def command(words: list[str]) -> int:
    """Run the command; returns the exit status."""
    table = families()
    if not words or words[0] in ("-h", "--help", "--help-all", "help"):
        print(_overview(table))
        return 0
    word, *words = words
    if word not in table:
        raise ConfigError(f"baseline: unknown family {word!r}; {nearest(word, table)}")
    return _family(word, table[word], words)


def _overview(table: Mapping[str, Family]) -> str:
    usage = "usage: finetune baseline FAMILY [options]     finetune baseline FAMILY --help"
    width = max(map(len, table))
    rows = [f"  {word.ljust(width)}  {_listed(family)}" for word, family in table.items()]
    return "\n".join([usage, "", *rows])


def _listed(family: Family) -> str:
    return "your own files" if family.only else ", ".join(family.names())


def _family(word: str, family: Family, words: list[str]) -> int:
    from finetune.runs.families import make_task
    from finetune.runs.folder import say
    from finetune.runs.opening import check_writable
    from finetune.runs.settings import fit_settings
    from finetune.settings import fields as settings

    cls = fit_settings(word)
    space = _parser(word, family).parse_args(words)
    task_name = f"{word}/{getattr(space, 'task', None) or family.only}"
    flags = {**settings.given(cls, space), "encoder_from": "none", "task": task_name}
    run = settings.read(cls, space.config, flags)
    task = make_task(run)
    from finetune.jobs.baselines import answer_task, write_answers

    if space.out:
        check_writable(Path(space.out))
    if space.output:
        _not_read("--output", Path(space.output), run)
    split = space.split or next(iter(task.validation_splits), "validation")
    answered = answer_task(task, space.split, space.only)
    if space.output:
        _write(task, split, answered, Path(space.output))
    if space.out:
        out = Path(space.out)
        write_answers(
            answered, lambda name, split: _not_read("--out", out / f"{name}.{split}.jsonl", run)
        )
        say(f"predictions: {space.out}")
    _show(task, split, answered, in_full=space.json)
    return 0


def _not_read(flag: str, file: Path, run: FitRun) -> Path:
    """The file to write; refused where it is one that is read."""
    read = [os.path.realpath(without_sheet(one)) for one in run.files().values()]
    if os.path.realpath(file) in read:
        raise ConfigError(f"{flag}: {file} is a file that is read; name another")
    return file


def _parser(word: str, family: Family) -> argparse.ArgumentParser:
    from finetune.runs.settings import FitRun, fit_settings
    from finetune.settings import fields as settings

    parser = command_parser(
        f"baseline {word}",
        "Score elementary baselines: bag of words, word overlap, sliding window. The options "
        "that name files and columns are those of the command that trains.",
    )
    add_json(parser)
    if family.names():
        optional = "?" if family.only else None
        action = parser.add_argument("task", nargs=optional, help=", ".join(family.names()))
        vars(action)["words"] = tuple(family.names())
    parser.add_argument("--config", type=Path, help="YAML file of a fine-tuning run on this task")
    parser.add_argument("--split", help="labelled split to score (default: the validation splits)")
    parser.add_argument("--only", metavar="NAME", help="one baseline, such as word_overlap")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write predictions as JSONL: those of --only, or of the best baseline",
    )
    of_training = {field.name for field in dataclasses.fields(FitRun)} - set(PLACES)
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="write the predictions of every baseline there, as NAME.SPLIT.jsonl",
    )
    settings.add_flags(parser, fit_settings(word), skip=of_training)
    return parser


def _write(task: Task, split: str, answered: Mapping[str, Answered], file: Path) -> None:
    from finetune.metrics.semantics import best_index
    from finetune.runs.folder import say
    from finetune.runs.predictions import write_predictions

    scores = [one.metrics[task.monitor] for one in answered.values()]
    name = list(answered)[best_index(task.monitor, scores)]
    write_predictions(answered[name].answers[split], file)
    say(f"predictions of {name} on {split}: {file}")


def _show(task: Task, split: str, answered: Mapping[str, Answered], *, in_full: bool) -> None:
    """A table on stderr, one line of JSON on stdout."""
    from finetune.runs.folder import say

    say(_table(f"{task.name} ({split})", answered))
    metrics = {name: one.metrics for name, one in answered.items()}
    results: dict[str, Any] = {"task": task.name, "split": split, "baselines": metrics}
    if in_full:
        results["examples"] = len(next(iter(answered.values())).answers[split])
        results["seconds"] = {name: round(one.seconds, 3) for name, one in answered.items()}
    print(json.dumps(results))


def _table(title: str, answered: Mapping[str, Answered]) -> str:
    from finetune.console.tables import table
    from finetune.metrics.semantics import column_title, label, shown

    metrics: Sequence[str] = list(next(iter(answered.values())).metrics)
    rows = [
        [
            label(name),
            *(shown(metric, one.metrics[metric]) for metric in metrics),
            f"{one.seconds:.1f}",
        ]
        for name, one in answered.items()
    ]
    return table(rows, [title, *map(column_title, metrics), "seconds"])
