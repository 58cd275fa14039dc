"""Elementary baselines of a task, fitted and scored: beside a run's own metrics, or alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finetune.elementary.baselines import BASELINES, TRIVIAL, applicable, fit
from finetune.errors import ConfigError, DataError, nearest
from finetune.machine.processes import is_first_process
from finetune.metrics.semantics import label
from finetune.runs.folder import note, say
from finetune.runs.settings import FitRun
from finetune.task.interface import Answer, Example, Task
from finetune.training.loop.task_data import TaskData

Splits = Mapping[str, Sequence[Example]]
"""Split -> its labelled examples; metrics of the first one have no prefix."""

Scores = dict[str, dict[str, float]]
"""Baseline -> its metrics, as in results.json."""


@dataclass(frozen=True)
class Answered:
    """What a baseline answers."""

    answers: dict[str, list[Answer]]
    """By split."""
    metrics: dict[str, float]
    """As in results.json: those of a second split behind its name."""
    seconds: float
    """To fit it, to answer and to score."""


def answer(name: str, task: Task, train: Sequence[Example], splits: Splits) -> Answered:
    """Fit one baseline, and answer and score splits.

    Raises:
        DataError: Nothing can be learnt from the training examples, or a split has no labels.
    """
    start = time.perf_counter()
    answer_with = fit(name, task, train)
    answers = {split: answer_with(examples) for split, examples in splits.items()}
    metrics: dict[str, float] = {}
    for number, (split, rows) in enumerate(answers.items()):
        prefix = f"{split}/" if number else ""
        metrics |= {prefix + metric: value for metric, value in task.score(rows).items()}
    return Answered(answers, metrics, time.perf_counter() - start)


def answer_all(task: Task, train: Sequence[Example], splits: Splits) -> dict[str, Answered]:
    """The trivial baseline and those that apply to the task; one that cannot be fitted is named.

    Args:
        task: The task.
        train: Its training examples.
        splits: What is answered.
    """
    done = {TRIVIAL: answer(TRIVIAL, task, train, splits)}
    first = next(iter(splits.values()))
    for name in applicable(task, [*train[:1], *first]):
        note(f"fitting the baseline {label(name)} …")
        try:
            done[name] = answer(name, task, train, splits)
        # A task of another package may read its answers off in a way that no baseline knows; the
        # run, which may take hours, must not end for that.
        except Exception as error:
            say(f"warning: no score of the baseline {label(name)}: {error}")
    return done


def baselines_of(run: FitRun, data: TaskData) -> Scores:
    """Metrics of the baselines for results.json, by name; empty where a run wants none.

    Args:
        run: Says whether they are wanted.
        data: The task's splits.
    """
    if not run.baselines or not is_first_process():  # which alone writes results
        return {}
    train = data.examples(data.train_split)
    splits = {split: data.examples(split) for split in data.task.validation_splits}
    done = answer_all(data.task, train, splits)
    return {name: one.metrics for name, one in done.items()}


def answer_task(task: Task, split: str | None, only: str | None) -> dict[str, Answered]:
    """The baselines of a task, by name, for the command.

    Args:
        task: The task.
        split: A labelled split; None for the validation splits.
        only: One of the baselines; None for all that apply.

    Raises:
        ConfigError: The baseline named is unknown or does not apply.
        DataError: A file is missing or bad, there is nothing to train on or to score, or the one
            baseline that was named cannot be fitted.
    """
    train = task.examples(task.train_split) if task.train_split else []
    wanted = [split] if split else list(task.validation_splits)
    splits = {name: task.examples(name) for name in wanted}
    if not splits or not all(splits.values()):
        raise DataError(f"{task.name}: no examples to score; name a file by --validation")
    first = next(iter(splits.values()))
    names = [TRIVIAL, *applicable(task, [*train[:1], *first])]
    if not train and all(BASELINES[name].is_fitted for name in names[1:]):
        raise DataError(f"{task.name}: nothing to train on; name a file by --train")
    if only is None:
        return answer_all(task, train, splits)
    name = only.replace(" ", "_").replace("-", "_")
    if name not in names:
        raise ConfigError(f"--only {only}: no baseline of {task.name}; {nearest(name, names)}")
    return {name: answer(name, task, train, splits)}
