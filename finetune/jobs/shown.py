"""The tables and files that a run shows when it has ended, gathered from its folder."""

from __future__ import annotations

from finetune.jobs.artifacts import artifacts_of
from finetune.runs.folder import RunFolder
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.task.interface import Task
from finetune.tracking import Shown, Table
from finetune.training.loop.data import OrderedData
from finetune.training.loop.task_data import TaskData


def shown(
    run: PretrainRun | AdaptRun | FitRun,
    folder: RunFolder,
    results: Results,
    task: Task | None,
    data: OrderedData,
) -> Shown:
    """Gather what a run shows besides its numbers.

    Args:
        run: Its settings.
        folder: RUN, with results, predictions and the best checkpoint.
        results: What results.json holds.
        task: What was fine-tuned on; None for language models.
        data: What was read, with the texts of a task's examples.
    """
    tables: list[Table] = []
    if task is not None and isinstance(data, TaskData) and run.tracking.table_examples:
        tables = _tables(folder, task, data, run.tracking.table_examples)
    return Shown(tables, artifacts_of(run, folder, results))


def _tables(folder: RunFolder, task: Task, data: TaskData, most: int) -> list[Table]:
    from finetune.jobs.answer_tables import answer_tables

    tables = []
    for split in (*task.validation_splits, *task.test_splits):
        if (rows := folder.read_predictions(split)) is not None:
            examples = {example.id: example for example in data.examples(split)}
            tables += answer_tables(split, rows, examples, most)
    return tables
