"""Elementary baselines of a task, fitted and scored: beside a run's own metrics, or alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finetune.elementary import TRIVIAL
from finetune.elementary.baselines import BASELINES, AnswerRows, applicable, fitter
from finetune.elementary.ngrams import MOST_TOKENS, NGrams
from finetune.errors import ConfigError, DataError, nearest
from finetune.machine.processes import is_first_process
from finetune.metrics.semantics import label, of_split
from finetune.runs.folder import RunFolder, note, say
from finetune.runs.predictions import baseline_file, write_predictions
from finetune.runs.settings import FitRun
from finetune.task.interface import Answer, Example, Task

if TYPE_CHECKING:
    from finetune.training.loop.data import CorpusData
    from finetune.training.loop.task_data import TaskData

Splits = Mapping[str, Sequence[Example]]
"""Split -> its labelled examples; metrics of the first one have no prefix."""

Fit = Callable[[str], AnswerRows]
"""Name of a baseline -> it, fitted: `fitter`."""
Scores = dict[str, float]
"""Metrics as in results.json: those of a second split behind its name."""


@dataclass(frozen=True)
class Answered:
    """What a baseline answers."""

    answers: dict[str, list[Answer]]
    """By split."""
    metrics: Scores
    seconds: float
    """To fit it, to answer and to score."""


def answer(fit: Fit, name: str, task: Task, splits: Splits) -> Answered:
    """Fit one baseline, and answer and score splits.

    Raises:
        DataError: Nothing can be learnt from the training examples, or a split has no labels.
    """
    start = time.perf_counter()
    rows = fit(name)
    answers = {split: rows(examples) for split, examples in splits.items()}
    return Answered(answers, scored(task, answers), time.perf_counter() - start)


def scored(task: Task, answers: Mapping[str, Sequence[Answer]]) -> Scores:
    """Metrics of answers to several splits; the names of those of the first have no prefix.

    Raises:
        DataError: A split has no labels.
    """
    metrics: Scores = {}
    for number, (split, rows) in enumerate(answers.items()):
        metrics |= of_split(number, split, task.score(rows))
    return metrics


def answer_elementary(task: Task, train: Sequence[Example], splits: Splits) -> dict[str, Answered]:
    """The elementary baselines that apply to a task, by name; one that cannot be fitted is named.

    Args:
        task: The task.
        train: Its training examples.
        splits: What is answered.
    """
    fit, done = fitter(task, train), {}
    first = next(iter(splits.values()))
    for name in applicable(task, [*train[:1], *first]):
        note(f"fitting the baseline {label(name)} …")
        try:
            done[name] = answer(fit, name, task, splits)
        # A task of another package may read its answers off in a way that no baseline knows; the
        # run, which may take hours, must not end for that.
        except Exception as error:
            say(f"warning: no score of the baseline {label(name)}: {error}")
    return done


def baselines_of(
    run: FitRun, data: TaskData, trivial: Scores, folder: RunFolder
) -> dict[str, Scores]:
    """Metrics of the baselines for results.json, by name; their answers are written.

    Args:
        run: Says whether the elementary ones are wanted.
        data: The task's splits.
        trivial: Metrics of the trivial one.
        folder: RUN.
    """
    done: dict[str, Answered] = {}
    if run.baselines and is_first_process():  # which alone writes results
        train = data.examples(data.train_split)
        splits = {split: data.examples(split) for split in data.task.validation_splits}
        done = answer_elementary(data.task, train, splits)
        write_answers(done, partial(baseline_file, folder.path))
    return {TRIVIAL: trivial} | {name: one.metrics for name, one in done.items()}


def ngrams_of(data: CorpusData, vocab_size: int) -> Scores:
    """Metrics of an n-gram model on the tokens that a causal encoder is validated on.

    Args:
        data: Blocks of a corpus, whose validation blocks are those of the encoder.
        vocab_size: Of the tokenizer.

    Returns:
        `loss` in nats a token, and `perplexity`; nothing where no block is held out.
    """
    blocks = data.corpus.train
    most = max(1, MOST_TOKENS // blocks.packing.max_length)
    chosen = np.linspace(0, len(blocks) - 1, min(len(blocks), most)).round().astype(np.int64)
    model = NGrams(blocks.blocks(chosen).input_ids, vocab_size)
    losses = [np.empty(0)]
    for batch in data.validation_loader():
        inputs, positions = batch["input_ids"].numpy(), batch["positions"].numpy()
        row, column = np.divmod(positions, inputs.shape[1])
        losses.append(-model.log_probabilities(inputs)[row, column])  # of the token after it
    every = np.concatenate(losses)
    if not len(every):
        return {}
    loss = float(every.mean())
    return {"loss": loss, "perplexity": math.exp(loss)}


def write_answers(answered: Mapping[str, Answered], file: Callable[[str, str], Path]) -> None:
    """Write the answers of baselines as predictions.

    Args:
        answered: By name.
        file: Name and split -> the file.
    """
    for name, one in answered.items():
        for split, rows in one.answers.items():
            write_predictions(rows, file(name, split))


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
    fit = fitter(task, train)
    if only is None:
        trivial = answer(fit, TRIVIAL, task, splits)
        return {TRIVIAL: trivial, **answer_elementary(task, train, splits)}
    name = only.replace(" ", "_").replace("-", "_")
    if name not in names:
        raise ConfigError(f"--only {only}: no baseline of {task.name}; {nearest(name, names)}")
    return {name: answer(fit, name, task, splits)}
