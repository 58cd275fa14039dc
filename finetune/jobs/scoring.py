"""A checkpoint that answers the splits of a task, and the score of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finetune.checkpoints.hub import find_checkpoint
from finetune.jobs.loading import answerer_of
from finetune.machine.processes import first_process_only
from finetune.metrics.semantics import of_split
from finetune.runs.folder import RunFolder, cache_folder, say
from finetune.runs.predictions import Origin, write_predictions, write_texts
from finetune.runs.results import Results
from finetune.runs.settings import FitRun
from finetune.task import decision
from finetune.task.interface import Answer, Example, Outputs, Task
from finetune.text.features.pairs import Features
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.answering import Answering, is_degenerate, predict
from finetune.training.loop.task_data import TaskData
from finetune.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Scorer:
    """A model that answers, the task that reads its answers, and the data."""

    module: Answering
    task: Task
    data: TaskData
    checkpoint: str
    """Digest of the checkpoint that the model is of."""
    ranks: Ranks = ALONE
    """Processes that divide the batches; all of them must ask for the same splits."""
    _read: dict[str, Outputs] = field(default_factory=dict, repr=False)
    """Outputs by split, as far as they are known."""

    def origin(self, split: str) -> Origin:
        """What the answers on a split are of."""
        return Origin(self.task.name, self.checkpoint, self.data.digest(split))

    def answers(self, split: str) -> list[Answer]:
        """The answers on a split, in the order of its examples."""
        return decision.answers(*self._given(split), self.module.decision)

    def trust(self, split: str) -> dict[str, Any]:
        """How far the probabilities on a split can be trusted; {} where it has no labels."""
        task, outputs, examples, features = self._given(split)
        return decision.trust(task, outputs, examples, self.module.decision, features)

    def with_fixed_thresholds(self, split: str) -> dict[str, float]:
        """The metrics without what the task tuned; {} where it tuned nothing for its labels."""
        numbers = self.module.decision
        untuned = {name: value for name, value in numbers.items() if name == decision.TEMPERATURE}
        if untuned == numbers or not self.task.labels:
            return {}
        return self.task.score(decision.answers(*self._given(split), untuned))

    def tune(self) -> dict[str, float]:
        """Tune the numbers of the decision on the very outputs of the first validation split.

        While training, outputs may be of half precision or of cached states: odds near the
        threshold then lie elsewhere.
        """
        split = self.task.validation_splits[0]
        self.module.decision = decision.tune(*self._given(split))
        if decision.TEMPERATURE not in self.module.decision and self.trust(split):
            say(
                f"probabilities are not calibrated: every answer on {split} is right, and the "
                "likelihood grows without end as the temperature falls"
            )
        return self.module.decision

    def _given(self, split: str) -> tuple[Task, Outputs, Sequence[Example], Sequence[Features]]:
        """What the answers on a split are read off."""
        data = self.data
        return self.task, self._outputs(split), data.examples(split), data.features(split)

    def _outputs(self, split: str) -> Outputs:
        """The head's outputs on a split; computed once."""
        if split not in self._read:
            self._read[split] = predict(
                self.module, self.data.loader(split, self.ranks), self.ranks
            )
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
        choose_on_half=run.choose_on_half,
    )


def load_scorer(source: Path, run: FitRun) -> Scorer:
    """A model with the data of the run's task; see `load_answerer`."""
    checkpoint = find_checkpoint(source, run.cache_dir)
    tokenizer = checkpoint.tokenizer()
    module = answerer_of(checkpoint, tokenizer, source, run)
    data = task_data(run, module.task, tokenizer)
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
        examples: Left out, no texts are written.
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
    more: Results = {"collapsed": False, "predictions": {}, "calibration": {}}
    for number, split in enumerate(splits):
        answers = scorer.answers(split)
        examples = scorer.data.examples(split)
        write_answers(scorer.task, folder, split, answers, scorer.origin(split), examples)
        more["predictions"][split] = asdict(scorer.origin(split))
        metrics |= of_split(number, split, scorer.task.score(answers))
        more["collapsed"] |= is_degenerate(answers)
        if figures := scorer.trust(split):
            more["calibration"][split] = figures
        if number == 0 and (report := scorer.task.report(answers)):
            more["report"] = report
    if scorer.module.decision:
        if fixed := scorer.with_fixed_thresholds(splits[0]):
            more["fixed_thresholds"] = fixed
        # A task with another file in place of rows held out has no split to validate on.
        tuned_on = next(iter(scorer.task.validation_splits), "validation")
        more["decision"] = {**scorer.module.decision, "tuned_on": tuned_on}
    if not more["calibration"]:
        del more["calibration"]
    return metrics, more
