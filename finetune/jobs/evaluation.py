"""A finished run's best checkpoint, put to use: its answers on a split, and their score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from finetune.checkpoints.folder import Checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.encoder import Encoder
from finetune.errors import CheckpointError, ConfigError
from finetune.heads import HeadConfig
from finetune.machine.processes import first_process_only
from finetune.runs.families import make_task
from finetune.runs.fits import read_fit
from finetune.runs.folder import RunFolder, cache_folder, say
from finetune.runs.inputs import Input, read_inputs
from finetune.runs.predictions import (
    Origin,
    read_origin,
    read_predictions,
    write_predictions,
    write_texts,
)
from finetune.runs.results import Results, over_seeds
from finetune.runs.settings import FitRun
from finetune.task.interface import Answer, Example, Task, examples_digest
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.finetuner import FineTuner, is_degenerate, predict
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import pick_device

FILE_SPLITS = ("train", "validation", "test")
"""The splits that a file can be named for."""


@dataclass(frozen=True)
class Scorer:
    """A model that answers, the task that reads its answers, and the data."""

    module: FineTuner
    task: Task
    data: TaskData
    checkpoint: str
    """Digest of the checkpoint that the model is of."""
    _read: dict[str, list[Answer]] = field(default_factory=dict, repr=False)

    def origin(self, split: str) -> Origin:
        """What the answers on a split are of."""
        return Origin(self.task.name, self.checkpoint, self.data.digest(split))

    def answers(self, split: str) -> list[Answer]:
        """The answers on a split, in the order of its examples."""
        return self.task.decide(self._undecided(split), self.module.decision)

    def tune(self) -> dict[str, float]:
        """Tune the task's numbers on the very answers of the first validation split.

        While training, outputs may be of half precision or of cached states: odds near the
        threshold then lie elsewhere.
        """
        tuned = self.task.tune(self._undecided(self.task.validation_splits[0]))
        self.module.decision = tuned
        return tuned

    def _undecided(self, split: str) -> list[Answer]:
        """The answers before the tuned numbers decide them; computed once."""
        if split not in self._read:
            outputs = predict(self.module, self.data.loader(split))
            examples, features = self.data.examples(split), self.data.features(split)
            self._read[split] = self.task.answers(outputs, examples, features)
        return self._read[split]


def task_data(run: FitRun, task: Task, tokenizer: Tokenizer) -> TaskData:
    """The splits of a task, as a run's settings want them."""
    return TaskData(
        task,
        tokenizer,
        run.loader,
        max_length=run.max_length,
        seed=run.seed,
        cache_dir=cache_folder(run.cache_dir),
        limit=run.limit,
        train_examples=run.train_examples,
    )


def load_tuner(source: Path, run: FitRun) -> tuple[FineTuner, Tokenizer]:
    """The model of a fine-tuning run's best checkpoint, on its device and in eval mode.

    Args:
        source: The run's folder, or a checkpoint's.
        run: Names the task that is to be answered: the run's own or one with the same classes.

    Raises:
        CheckpointError: There is no checkpoint, or its head is for other answers than the task's.
    """
    checkpoint = find_checkpoint(source, run.cache_dir)
    return _tuner(checkpoint, source, run), checkpoint.tokenizer()


def _tuner(checkpoint: Checkpoint, source: Path, run: FitRun) -> FineTuner:
    task = make_task(run, checkpoint.labels or None)
    config = checkpoint.encoder_config
    head = task.head(config, HeadConfig.from_dict(checkpoint.head))
    if checkpoint.head.get("kind") != head.kind:
        raise CheckpointError(
            f"{source}: {task.name} needs a head of the kind {head.kind}, got "
            f"{checkpoint.head.get('kind')}; name a run that was fine-tuned on such a task"
        )
    module = FineTuner(Encoder(config), head, task)
    checkpoint.load_into(module)
    module.decision = dict(checkpoint.decision)
    device = pick_device(run.trainer.accelerator)
    if device.type == "cpu" and run.trainer.accelerator not in ("auto", "cpu"):
        say(f"{source}: trained on a {run.trainer.accelerator}; none is available here, using cpu")
    module.to(device).eval()
    return module


def load_scorer(source: Path, run: FitRun) -> Scorer:
    """A model with the data of the run's task; see `load_tuner`."""
    checkpoint = find_checkpoint(source, run.cache_dir)
    module = _tuner(checkpoint, source, run)
    data = task_data(run, module.task, checkpoint.tokenizer())
    return Scorer(module, module.task, data, checkpoint.digest)


@first_process_only
def write_answers(
    task: Task,
    folder: RunFolder,
    split: str,
    answers: Sequence[Answer],
    origin: Origin,
    examples: Sequence[Example] = (),
) -> None:
    """Write RUN/predictions/SPLIT.jsonl, texts of the examples, and the benchmark's own files.

    Args:
        task: Whose answers these are.
        folder: RUN.
        split: The split.
        answers: Those to all its examples, in order.
        origin: What they are of.
        examples: Left out, no texts are kept.
    """
    if examples:
        write_texts(examples, answers, folder.texts(split), origin)
    write_predictions(answers, folder.predictions(split), origin)
    folder.write_submission(task.submission(split, answers))


def score_splits(
    scorer: Scorer, folder: RunFolder, splits: Sequence[str]
) -> tuple[dict[str, float], Results]:
    """Answer each split, write the answers, and score them.

    Returns:
        The metrics (those of a second split behind its name), and what else is reported.
    """
    metrics: dict[str, float] = {}
    more: Results = {"collapsed": False, "predictions": {}}
    for number, split in enumerate(splits):
        answers = scorer.answers(split)
        examples = scorer.data.examples(split)
        write_answers(scorer.task, folder, split, answers, scorer.origin(split), examples)
        more["predictions"][split] = asdict(scorer.origin(split))
        prefix = f"{split}/" if number else ""
        metrics |= {prefix + name: value for name, value in scorer.task.score(answers).items()}
        more["collapsed"] |= is_degenerate(answers)
        if number == 0 and (report := scorer.task.report(answers)):
            more["report"] = report
    if scorer.module.decision:
        tuned_on = scorer.task.validation_splits[0]
        more["decision"] = {**scorer.module.decision, "tuned_on": tuned_on}
    return metrics, more


def evaluate(
    folder: str | Path,
    split: str | None = None,
    file: str | None = None,
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

    Returns:
        `task`, `split` and `metrics`; for several seeds in the form of results.json.

    Raises:
        ConfigError: The folder contains no fine-tuning run, or the split is not read from one file.
        DataError: The split has no labels (its predictions are written even so).
    """
    run_folder = RunFolder(Path(folder))
    if seeds := run_folder.planned_seeds:
        return over_seeds([evaluate(seed.path, split, file) for seed in seeds])
    run, split = _with_file(read_fit(run_folder.path), split, file)
    task = make_task(run)
    splits = [split] if split else list(task.validation_splits or task.test_splits)
    if task.fixed_answer is not None:
        metrics, more, examples = _score_fixed(task, run_folder, splits)
    else:
        if run.limit is not None:
            say(f"limit {run.limit:,} of the run: scores are of a part of each split")
        scorer = load_scorer(checkpoint_of(run_folder.path, run, task), run)
        if file is None:
            _warn_of_other_examples(run_folder, scorer.data, splits)
        metrics, more = score_splits(scorer, run_folder, splits)
        examples = len(scorer.data.examples(splits[0]))
    if skipped := task.skipped(splits[0]):
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
    return replace(run, limit=None, train_examples=None, **{split: file}), split  # type: ignore[arg-type]


def checkpoint_of(folder: Path, run: FitRun, task: Task) -> Path:
    """Where the weights of a run are: in its folder, or where it took them from as they were."""
    return Path(run.encoder_from) if task.train_split is None else folder


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
        prefix = f"{split}/" if number else ""
        metrics |= {prefix + name: value for name, value in task.score(answers).items()}
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

    def origin(self) -> Origin:
        """What the answers would be of."""
        if self.task.fixed_answer is not None:
            return fixed_answers(self.task, self.split)[1]
        digest = find_checkpoint(self.source, self.run.cache_dir).digest
        return Origin(self.task.name, digest, examples_digest(self.task.examples(self.split)))

    def answers(self) -> tuple[Task, list[Answer], Origin]:
        """The answers as they are now, by the task whose classes are in the head's order."""
        if self.task.fixed_answer is not None:
            return self.task, *fixed_answers(self.task, self.split)
        scorer = load_scorer(self.source, self.run)
        return scorer.task, scorer.answers(self.split), scorer.origin(self.split)


def answer_split(
    folder: Path,
    split: str,
    task_name: str | None = None,
    data: str | None = None,
) -> list[Answer]:
    """The answers of a run's best checkpoint to a split: those on file, or new ones.

    Those on file are taken only if they are of that very checkpoint, to these very examples.
    New ones are written into the run's folder.

    Args:
        folder: RUN; of several seeds, the best one answers.
        split: The split.
        task_name: Another task with the same classes, such as a diagnostic set.
        data: Another data folder than the run's.

    Raises:
        CheckpointError: There is no checkpoint to answer with, or it is damaged.
    """
    folder = RunFolder(folder).one_run().path
    run = read_fit(folder)
    # Each example is to be answered.
    run = replace(run, data=data or run.data, limit=None, train_examples=None)
    if task_name:  # the files that the run names are those of its own task
        run = replace(run, task=task_name, train=None, validation=None, test=None)
    task = make_task(run)
    source = folder if task_name else checkpoint_of(folder, run, task)
    question, path = _Question(run, task, split, source), RunFolder(folder).predictions(split)
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
