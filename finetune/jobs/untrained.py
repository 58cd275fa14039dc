"""Tasks that are answered without training: by one answer for all, or by another run's head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.checkpoints.hub import find_checkpoint
from finetune.console.output import counted
from finetune.errors import ConfigError
from finetune.jobs.evaluation import fixed_answers
from finetune.jobs.loading import checkpoint_of
from finetune.jobs.scoring import load_scorer, write_answers
from finetune.machine.circumstances import circumstances
from finetune.runs.folder import RunFolder, say
from finetune.runs.inputs import Input
from finetune.runs.opening import check_folder, open_folder
from finetune.runs.predictions import Origin
from finetune.runs.results import Results
from finetune.runs.settings import FitRun
from finetune.task.interface import Answer, Task

TRAINING = ("find_lr", "seeds", "adapt")
"""Settings of a run that mean nothing where nothing is trained."""


def is_trained(task: Task) -> bool:
    """Whether a task has something to train on, and more than one answer."""
    return task.train_split is not None and task.fixed_answer is None


def check_untrained(run: FitRun, task: Task) -> None:
    """Refuse settings of training for a task that is not trained.

    Raises:
        ConfigError: One of them is given.
    """
    for name in TRAINING:
        if getattr(run, name):
            raise ConfigError(
                f"{name}: {task.name} is not trained, so there is nothing for it to change; leave "
                f"--{name.replace('_', '-')} out"
            )


def answer_without_training(run: FitRun, task: Task) -> Results:
    """Answer a task and write the answers; in a dry run only say what would be answered.

    Args:
        run: The settings.
        task: One that `is_trained` denies.

    Returns:
        What RUN/results.json holds.

    Raises:
        ConfigError: The folder is taken, or no run is named whose head answers the task.
        CheckpointError: That run's head is for other answers.
    """
    folder = RunFolder(Path(str(run.out)))
    if not run.dry_run:
        check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    if task.train_split is None:
        return _by_another_head(run, task, folder)
    return _alike(run, task, folder)


def _by_another_head(run: FitRun, task: Task, folder: RunFolder) -> Results:
    if run.encoder_from == "none":
        raise ConfigError(f"{task.name} is not trained on: name a fine-tuned run by --encoder RUN")
    source = checkpoint_of(folder.path, run, task)
    scorer = load_scorer(source, run)
    split = task.test_splits[0]
    if run.dry_run:
        return _dry(
            task, split, len(scorer.data.examples(split)), f"the head of {run.encoder_from}"
        )
    run = dataclasses.replace(run, encoder=find_checkpoint(source, run.cache_dir).encoder_config)
    answers = scorer.answers(split)
    results = _write(run, task, folder, split, answers, scorer.origin(split), {})
    say(f"{counted(len(answers), 'answer')}: {folder.predictions(split)} (no labels, no score)")
    return results


def _alike(run: FitRun, task: Task, folder: RunFolder) -> Results:
    """Give every example of a task the same answer, as the task says, and score that."""
    split, fixed = task.validation_splits[0], task.fixed_answer
    answers, origin = fixed_answers(task, split)
    if run.dry_run:
        return _dry(task, split, len(answers), f"'{fixed}', the most frequent training label")
    more = {"metrics": task.score(answers), "fixed_answer": fixed}
    results = _write(run, task, folder, split, answers, origin, more)
    say(f"not trained: every example is answered '{fixed}', the most frequent training label")
    return results


def _dry(task: Task, split: str, count: int, by: str) -> Results:
    say(f"not trained: {counted(count, 'example')} of {split} would be answered by {by}")
    return {"task": task.name, "split": split, "metrics": {}, "plan": []}


def _write(
    run: FitRun,
    task: Task,
    folder: RunFolder,
    split: str,
    answers: list[Answer],
    origin: Origin,
    more: Mapping[str, Any],
) -> Results:
    """Write the answers and the results into the run's folder."""
    results = {
        "task": task.name,
        "split": split,
        "metrics": {},
        "examples": len(answers),
        "seed": run.seed,
        "encoder": run.encoder_from,
        **circumstances(),
        "predictions": {split: dataclasses.asdict(origin)},
        **more,
    }
    inputs = {
        f"{split} examples": Input(origin.data, split),
        "answering checkpoint": Input(origin.checkpoint, run.encoder_from),
    }
    with folder.hold():
        open_folder(folder, run, resume=run.resume, overwrite=run.overwrite, inputs=inputs)
        write_answers(task, folder, split, answers, origin, task.examples(split))
        folder.write_results(results)
    return results
