"""A finished run's best checkpoint, put to use: its answers on a split, and their score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from finetune.checkpoints.hub import find_checkpoint
from finetune.errors import ConfigError
from finetune.jobs.ensembles import (
    average_weights,
    digest_of,
    load_ensemble,
    member_checkpoints,
    member_folders,
)
from finetune.jobs.loading import checkpoint_of, in_int8
from finetune.jobs.scoring import Scorer, load_scorer, score_splits, write_answers
from finetune.jobs.session import with_devices
from finetune.metrics.semantics import of_split
from finetune.runs.families import make_task
from finetune.runs.fits import read_fit, with_beams
from finetune.runs.folder import RunFolder, say
from finetune.runs.inputs import Input, read_inputs
from finetune.runs.predictions import Origin, read_origin, read_predictions
from finetune.runs.results import Results, over_seeds
from finetune.runs.settings import FitRun
from finetune.task.drawing import FRESH
from finetune.task.interface import Answer, Task, examples_digest
from finetune.training.loop.launching import taking_part
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import start_ranks
from finetune.training.ranks import Ranks

FILE_SPLITS = ("train", "validation", "test")
"""The splits that a file can be named for."""


def evaluate(
    folder: str | Path,
    split: str | None = None,
    file: str | None = None,
    *,
    ensemble: bool = False,
    int8: bool = False,
    devices: int = 1,
    beams: int | None = None,
) -> Results:
    """Score the best checkpoint of a finished fine-tuning run again.

    >>> import finetune
    >>> results = finetune.evaluate("runs/own")
    >>> results["split"], sorted(results["metrics"])
    ('validation', ['accuracy', 'auc', 'macro_f1', 'macro_precision', 'macro_recall'])

    Args:
        folder: The run's folder; of several seeds, each is scored.
        split: Another labelled split; default: the validation splits.
        file: Another file, which is scored as that split (default `test`), all of it.
        ensemble: Score all seeds of the run together: the average of their probabilities (of
            numbers, of the scores of passages), besides each of them.
        int8: Score the encoder with linear layers of 8 bits too; its answers are not written.
        devices: Processes on this machine that divide the batches; with the same scores.
        beams: Search texts with so many beams in place of the run's number; 1 = greedy.

    Returns:
        `task`, `split` and `metrics`; for several seeds in the form of results.json. Of an ensemble
        also `ensemble`: its `seeds`, the metrics of `each`, and those of the `average_weights`.
        With `int8` its metrics, by that name.

    Raises:
        ConfigError: The folder contains no fine-tuning run, or the split is not read from one file;
            or an ensemble is wanted of one seed, or of seeds that have not all ended, or in 8 bits.
        DataError: The split has no labels (its predictions are written even so).
    """
    if ensemble and int8:
        raise ConfigError("int8 is scored for one model: remove it or the ensemble")
    score = _evaluate_ensemble if ensemble else _evaluate
    with taking_part(devices) as count:
        return score(RunFolder(Path(folder)), _Wanted(split, file, count, beams, int8))


@dataclass(frozen=True)
class _Wanted:
    """What is to be scored, and by how many processes on this machine."""

    split: str | None
    file: str | None
    devices: int
    beams: int | None = None
    int8: bool = False

    def of(self, folder: Path) -> tuple[FitRun, str | None]:
        """The settings of a run with what is to be scored, and the split."""
        run = with_beams(read_fit(folder), self.beams)
        run, split = _with_file(run, self.split, self.file)
        return with_devices(run, self.devices), split


def _evaluate(run_folder: RunFolder, wanted: _Wanted) -> Results:
    if seeds := run_folder.planned_seeds:
        return over_seeds([_evaluate(seed, wanted) for seed in seeds])
    run, split = wanted.of(run_folder.path)
    task = make_task(run)
    splits = _splits(run, task, split)
    if task.fixed_answer is not None:
        metrics, more, examples = _score_fixed(task, run_folder, splits)
    else:
        if run.limit is not None:
            say(f"limit {run.limit:,} of the run: scores are of a part of each split")
        scorer = load_scorer(checkpoint_of(run_folder.path, run, task), run)
        if wanted.beams is not None:  # no answers of the run as it was trained
            scorer = replace(scorer, checkpoint=f"{scorer.checkpoint}, {wanted.beams} beams")
        if wanted.file is None:
            _warn_of_other_examples(run_folder, scorer.data, splits)
        scorer = replace(scorer, ranks=_start(run, scorer, splits))
        metrics, more = score_splits(scorer, run_folder, splits)
        if wanted.int8:
            more["int8"] = _score_int8(scorer, splits)
        examples = len(scorer.data.examples(splits[0]))
    if skipped := task.skipped(splits[0].removesuffix(FRESH)):
        more["skipped"] = skipped
        for reason, count in skipped.items():
            say(f"{splits[0]}: {reason.replace('_', ' ')} skipped: {count:,}")
    return {
        "task": task.name,
        "split": splits[0],
        "metrics": metrics,
        "examples": examples,
        "seed": run.seed,
        **more,
    }


def _score_int8(scorer: Scorer, splits: Sequence[str]) -> dict[str, float]:
    """The metrics of the model in 8 bits, which it is from now on."""
    in_int8(scorer.module)
    rounded = Scorer(scorer.module, scorer.task, scorer.data, "", scorer.ranks)
    metrics: dict[str, float] = {}
    for number, split in enumerate(splits):
        metrics |= of_split(number, split, scorer.task.score(rounded.answers(split)))
    return metrics


def _splits(run: FitRun, task: Task, split: str | None) -> list[str]:
    """The splits to score: the one that is named, the fresh halves, or those of validation."""
    if split != "fresh":
        return [split] if split else list(task.validation_splits or task.test_splits)
    if not run.choose_on_half:
        raise ConfigError(
            "--split fresh: expected a run that was trained with --choose-on-half, which leaves a "
            "half of the validation split fresh; name another split"
        )
    return [f"{name}{FRESH}" for name in task.validation_splits]


def _start(run: FitRun, scorer: Scorer, splits: Sequence[str]) -> Ranks:
    """The processes that answer, when all that one can complain of has been read."""
    for split in splits:
        scorer.data.features(split)
    return start_ranks(run.trainer)


def _evaluate_ensemble(folder: RunFolder, wanted: _Wanted) -> Results:
    """Score the seeds of a run together, beside each of them and the average of their weights."""
    seeds = member_folders(folder)
    each = over_seeds([_evaluate(seed, wanted) for seed in seeds])
    if "fixed_answer" in each["runs"][0]:
        raise ConfigError(f"{folder.path} was not trained: all of its seeds answer the same")
    run, split = wanted.of(seeds[0].path)
    members, scorer = load_ensemble(folder, run)
    task = scorer.task
    splits = _splits(run, task, split)
    scorer = replace(scorer, ranks=_start(run, scorer, splits))
    metrics, more = score_splits(scorer, folder, splits)
    more.pop("decision", None)  # means of the seeds' numbers, tuned by none
    mean = Scorer(average_weights(members), task, scorer.data, "", scorer.ranks)
    weights: dict[str, float] = {}
    for number, name in enumerate(splits):
        weights |= of_split(number, name, task.score(mean.answers(name)))
    return {
        "task": task.name,
        "split": splits[0],
        "metrics": metrics,
        "examples": len(scorer.data.examples(splits[0])),
        "ensemble": {"seeds": each["seeds"], "each": each["metrics"], "average_weights": weights},
        **more,
    }


def _warn_of_other_examples(folder: RunFolder, data: TaskData, splits: Sequence[str]) -> None:
    """Say which splits have changed; where rows were held out, others are held out now."""
    began: Mapping[str, Input] = {}
    with suppress(ConfigError):  # a damaged file, which concerns resuming alone
        began = read_inputs(folder.path) or {}
    for split in splits:
        before = began.get(f"{split} examples")
        if before is not None and before.digest != data.digest(split):
            say(
                f"warning: {split}: other examples than when the run began; if they are held out "
                "of the training file, the run has learnt from some of them"
            )


def _with_file(run: FitRun, split: str | None, file: str | None) -> tuple[FitRun, str | None]:
    """The settings with another file, all of it, in place of a split's; and that split."""
    if file is None:
        return run, split
    split = split or "test"
    if split not in FILE_SPLITS:
        raise ConfigError(f"--file replaces {', '.join(FILE_SPLITS)}, got --split {split}")
    if getattr(table := getattr(run, "table", None), "holdout", None) is not None:
        run = replace(run, table=replace(table, holdout=None))  # type: ignore[call-arg, type-var]
    whole = replace(run, limit=None, train_examples=None, choose_on_half=False)
    return replace(whole, **{split: file}), split  # type: ignore[arg-type]


def fixed_answers(task: Task, split: str) -> tuple[list[Answer], Origin]:
    """The same answer for every example of a split, as the task says; and what that is of."""
    from finetune.task.answers.classes import constant_answers

    examples, answer = task.examples(split), task.fixed_answer
    origin = Origin(task.name, f"always {answer}", examples_digest(examples))
    return constant_answers(answer, examples), origin


def _score_fixed(
    task: Task, folder: RunFolder, splits: Sequence[str]
) -> tuple[dict[str, float], Results, int]:
    """Metrics, what else is reported, and how many examples the first split has."""
    metrics: dict[str, float] = {}
    counts, origins = [], {}
    for number, split in enumerate(splits):
        answers, origins[split] = fixed_answers(task, split)
        write_answers(task, folder, split, answers, origins[split], task.examples(split))
        metrics |= of_split(number, split, task.score(answers))
        counts.append(len(answers))
    more: Results = {"collapsed": False, "fixed_answer": task.fixed_answer}
    more["predictions"] = {split: asdict(origin) for split, origin in origins.items()}
    return metrics, more, counts[0]


@dataclass(frozen=True)
class _Question:
    """What a run is asked: a task's split, and whose head answers."""

    run: FitRun
    task: Task
    split: str
    source: Path
    """Where the checkpoint is; none is read where all answers are the same."""
    ensemble: bool = False
    """Whether the seeds of that run answer together."""

    def origin(self) -> Origin:
        """What the answers would be of."""
        if self.task.fixed_answer is not None:
            return fixed_answers(self.task, self.split)[1]
        if self.ensemble:
            digest = digest_of(member_checkpoints(RunFolder(self.source), self.run.cache_dir))
        else:
            digest = find_checkpoint(self.source, self.run.cache_dir).digest
        return Origin(self.task.name, digest, examples_digest(self.task.examples(self.split)))

    def answers(self) -> tuple[Task, list[Answer], Origin]:
        """The answers as they are now, by the task whose classes are in the head's order."""
        if self.task.fixed_answer is not None:
            return self.task, *fixed_answers(self.task, self.split)
        if self.ensemble:
            _, scorer = load_ensemble(RunFolder(self.source), self.run)
        else:
            scorer = load_scorer(self.source, self.run)
        return scorer.task, scorer.answers(self.split), scorer.origin(self.split)


def answer_split(
    folder: Path,
    split: str,
    task_name: str | None = None,
    data: str | None = None,
    *,
    ensemble: bool = False,
) -> list[Answer]:
    """The answers of a run's best checkpoint to a split: those on file, or new ones.

    Those on file are taken only if they are of that very checkpoint, to these very examples.
    New ones are written into the run's folder.

    Args:
        folder: RUN; of several seeds, the best one answers.
        split: The split.
        task_name: Another task with the same classes, such as a diagnostic set.
        data: Another data folder than the run's.
        ensemble: All seeds answer together, in place of the best one.

    Raises:
        CheckpointError: There is no checkpoint to answer with, or it is damaged.
    """
    if ensemble:
        run = read_fit(member_folders(RunFolder(folder))[0].path)
    else:
        folder = RunFolder(folder).one_run().path
        run = read_fit(folder)
    # Each example is to be answered.
    run = replace(run, data=data or run.data)
    run = replace(run, limit=None, train_examples=None, choose_on_half=False)
    if task_name:  # the files that the run names are those of its own task
        run = replace(run, task=task_name, train=None, validation=None, test=None)
    task = make_task(run)
    source = folder if task_name else checkpoint_of(folder, run, task)
    question = _Question(run, task, split, source, ensemble)
    path = RunFolder(folder).predictions(split)
    if (reason := _outdated(path, question.origin())) is None:
        return read_predictions(path)
    say(f"{path}: {reason}; answering by {source}")
    task, answers, origin = question.answers()
    write_answers(task, RunFolder(folder), split, answers, origin)
    return answers


def _outdated(path: Path, wanted: Origin) -> str | None:
    """Why the answers of a file are not those that are wanted; None where they are."""
    if not path.is_file():
        return "no answers on file yet"
    origin = read_origin(path)
    if origin is None:
        return "its answers may be of another checkpoint or to other data: nothing beside it says"
    if origin.checkpoint != wanted.checkpoint:
        return "its answers are of another checkpoint"
    return None if origin == wanted else "its answers are to other data"


def warn_of_other_answers(folder: RunFolder, checkpoint: str) -> None:
    """Name the predictions files of a run that another checkpoint has answered.

    Args:
        folder: RUN.
        checkpoint: The digest of its best one.
    """
    for path in folder.predictions_files():
        origin = read_origin(path)
        if origin is None or origin.checkpoint != checkpoint:
            say(
                f"warning: {path} may contain answers of another checkpoint than the best one; "
                "finetune evaluate and finetune submit predict again"
            )
