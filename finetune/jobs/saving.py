"""A model as a run folder, whoever trained it: settings, checkpoint, predictions and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.checkpoints.folder import load_checkpoint, save_checkpoint
from finetune.checkpoints.seed_folders import DATA
from finetune.errors import ConfigError, DataError
from finetune.files.writing import write_bytes
from finetune.jobs.scoring import Scorer, score_splits, task_data
from finetune.machine.circumstances import circumstances
from finetune.runs.families import family_of
from finetune.runs.folder import RunFolder
from finetune.runs.opening import check_folder, opened
from finetune.runs.settings import FitRun, fit_settings
from finetune.settings.fields import read
from finetune.settings.keywords import from_keywords, keys_of
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.answering import ReadsAnswers

SPLITS = ("train", "validation", "test")


def run_of(task: Task, start: FitRun | None, settings: Mapping[str, Any]) -> FitRun:
    """The settings that a saved run records.

    Args:
        task: The task of the model.
        start: The settings of the run that it was loaded from; None if it was not loaded.
        settings: Keywords that override them.

    Raises:
        ConfigError: A keyword is unknown or wrong.
    """
    kind = fit_settings(task.name)
    known = {"encoder_from": "none", **_files(task)} if start is None else keys_of(start)
    modes = {"seeds": None, "resume": False, "overwrite": False, "find_lr": False, "dry_run": False}
    keys = {**known, **modes, "task": task.name, **from_keywords(kind, settings)}
    return family_of(task.name).resolve(read(kind, None, keys), task)  # type: ignore[no-any-return]


def _files(task: Task) -> dict[str, str]:
    """The file of each split of a task that has one file for it."""
    splits = [task.train_split, *task.validation_splits, *task.test_splits]
    files = {}
    for split in (split for split in splits if split in SPLITS):
        try:
            paths = task.data_files(str(split))
        except (ConfigError, DataError):  # of the hub, or withheld
            continue
        if len(paths) == 1:
            files[str(split)] = str(paths[0].absolute())
    return files


def save_run(run: FitRun, module: ReadsAnswers, tokenizer: Tokenizer, *, score: bool) -> None:
    """Write the folder `run.out`.

    Args:
        run: The settings to record.
        module: The model, on its device.
        tokenizer: Its tokenizer.
        score: Whether to predict and score the validation splits, and to write results.json.

    Raises:
        ConfigError: The folder is not empty.
        DataError: The validation data cannot be read.
    """
    folder, task = RunFolder(Path(str(run.out))), module.task
    check_folder(folder, run, resume=False, overwrite=False)
    data = task_data(run, task, tokenizer)
    if score:
        module.decision = Scorer(module, task, data, "").tune()
    with opened(folder, _with_own_data(run, folder), {}):
        _save_best(folder, module, tokenizer)
        if score:
            scorer = Scorer(module, task, data, load_checkpoint(folder.path).digest)
            metrics, more = score_splits(scorer, folder, task.validation_splits)
            split = task.validation_splits[0]
            folder.write_results(
                {
                    "task": task.name,
                    "split": split,
                    "metrics": metrics,
                    "examples": len(data.examples(split)),
                    "seed": run.seed,
                    "encoder": run.encoder_from,
                    "parameters": sum(p.numel() for p in module.parameters()),
                    **circumstances(),
                    **more,
                }
            )


def _with_own_data(run: FitRun, folder: RunFolder) -> FitRun:
    """The settings with copies of data that another run was given in memory, and may replace."""
    copies = {}
    for split, file in run.files().items():
        if file.parent.name == DATA and RunFolder(file.parent.parent).is_run and file.is_file():
            copy = folder.path / DATA / f"{split}.jsonl"
            write_bytes(copy, file.read_bytes())
            copies[split] = str(copy)
    return dataclasses.replace(run, **copies)  # type: ignore[arg-type]


def _save_best(folder: RunFolder, module: ReadsAnswers, tokenizer: Tokenizer) -> None:
    task, head = module.task, module.head
    save_checkpoint(
        folder.checkpoints / "best",
        module,
        tokenizer,
        encoder_config=module.encoder.config,
        head={"kind": head.kind, **head.settings()},
        task=task.name,
        labels=tuple(task.labels),
        decision=module.decision,
    )
