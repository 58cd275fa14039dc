"""Predict for new texts with a finished run: from Python, or as a stream of rows."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import counted, put
from finetune.errors import ConfigError, DataError
from finetune.jobs.answer_files import Inputs, Row, check_target, write_answer_file
from finetune.jobs.ensembles import Ensemble, load_members, member_folders
from finetune.jobs.ensembles import average_weights as average_weights_of
from finetune.jobs.loading import checkpoint_of, fills_masks, in_int8, load_answerer, writes_on
from finetune.machine.processes import Place, join
from finetune.runs.families import make_task
from finetune.runs.fits import read_fit, with_beams
from finetune.runs.folder import RunFolder, say
from finetune.runs.settings import FitRun
from finetune.task import decision
from finetune.task.interface import Answer, Example
from finetune.text.features.in_memory import rows_of
from finetune.text.features.pairs import length_batches
from finetune.text.features.rows import read_rows
from finetune.text.features.units import examples_of
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.unknown import UnknownTexts
from finetune.training.answering import (
    Answering,
    ReadsAnswers,
    batches_of,
    lengths_of,
    predict,
    units_of,
)
from finetune.training.config import TrainerConfig
from finetune.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from finetune.jobs.fill_masks import MaskFiller
    from finetune.jobs.generation import TextGenerator

WINDOW_BATCHES = 32
"""Batches of examples that are read ahead and sorted by length together."""


SHARED_ROWS = 1024
"""Rows that are sent to the other processes at a time."""


class Predictor:
    """A fine-tuned model that predicts for texts; `load` makes one from a run.

    It can also be built from its parts, after training with your own Trainer:

    >>> from finetune import (
    ...     Encoder, FineTuner, HeadConfig, Predictor, find_checkpoint, find_task
    ... )
    >>> task = find_task("classify", train="data/train.csv", validation="data/validation.csv")
    >>> checkpoint = find_checkpoint("runs/pretrained")
    >>> encoder = checkpoint.encoder()
    >>> tuner = FineTuner(encoder, task.head(encoder.config, HeadConfig()), task)
    >>> predictor = Predictor(tuner, checkpoint.tokenizer(), max_length=32, batch_size=8)
    >>> [answer["id"] for answer in predictor.predict(["the cat", "a dog"])]
    [0, 1]
    """

    def __init__(
        self, module: Answering, tokenizer: Tokenizer, *, max_length: int, batch_size: int
    ) -> None:
        """Build a predictor.

        Args:
            module: The model, on its device.
            tokenizer: Its tokenizer.
            max_length: Tokens of the longest sequence.
            batch_size: Examples in a batch, or windows of them.
        """
        self.module, self.tokenizer = module, tokenizer
        self.max_length, self.batch_size = max_length, batch_size
        self.task = module.task
        self._run: FitRun | None = None  # its settings, if it was loaded from a run
        self.ranks = ALONE
        """Processes that divide each window of rows, which all of them get."""

    def save(self, folder: str | Path, *, score: bool = True, **settings: Any) -> None:
        """Save the model as a run, so that `load`, `evaluate`, `export` and `report` work on it.

        >>> import finetune
        >>> finetune.load("runs/own").save("runs/copy")
        >>> finetune.evaluate("runs/copy")["metrics"] == finetune.evaluate("runs/own")["metrics"]
        True

        Args:
            folder: The run's folder, new or empty.
            score: Whether to predict and score the validation splits and to write results.json,
                which `report` and `compare` read. It needs the validation data.
            settings: Settings to record in config.yaml, by the names that `finetune.fit` takes,
                such as `encoder="runs/pretrained"` and `learning_rate=1e-4` of a training with
                your own Trainer. The task, its files, `max_length` and `batch_size` are known.

        Raises:
            ConfigError: A setting is unknown, or the folder contains something; or the model is an
                ensemble.
            DataError: The validation data cannot be read.
        """
        if not isinstance(self.module, ReadsAnswers):
            raise ConfigError(
                "expected one model to save, got an ensemble; save its seeds one by one, or load "
                "the run with average_weights=True"
            )
        from finetune.jobs.saving import run_of, save_run

        sizes = {"max_length": self.max_length, "batch_size": self.batch_size}
        known = {**sizes, **settings, "out": folder}
        save_run(run_of(self.task, self._run, known), self.module, self.tokenizer, score=score)

    def predict(self, texts: Any) -> list[Answer]:
        """Predict for one text or many, in order.

        Args:
            texts: One example: a text, a tuple (the texts of a pair), or a dictionary of fields
                such as `{"question": …, "context": …}`. Or many: a list or another iterable of
                these, a dictionary of columns, a pandas DataFrame or Series, or a
                `datasets.Dataset`.

        Returns:
            A list with a row for each example, as in a predictions file; `id` is that of the
            example if it has one, or its number from 0. `pandas.DataFrame(rows)` makes a table.

        Raises:
            DataError: A field is missing or of another type.
        """
        rows = enumerate(rows_of(texts, "texts"))
        return list(self.stream((f"texts[{number}]", row) for number, row in rows))

    def generate(self, prompts: Any, **settings: Any) -> list[dict[str, Any]]:
        """Refuse: the head of a task predicts labels or answers, and no next token.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"expected a causal language model to continue texts, got the run of {self.task.name}; "
            "load the pretraining run that it started from"
        )

    def stream(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Answer]:
        """Predict for rows in order, with a bounded number of them in memory.

        Args:
            rows: Place of each row, for messages, and its fields.

        Yields:
            A row of a predictions file for each.
        """
        examples = (
            self.task.example(row, where, number) for number, (where, row) in enumerate(rows)
        )
        unknown = UnknownTexts(self.tokenizer)
        while window := list(islice(examples, WINDOW_BATCHES * self.batch_size)):
            yield from self._answers(window, unknown)
        if self.ranks.rank > 0:  # of what the first process warns
            return
        if number := unknown.empty:
            warnings.warn(
                f"{number:,} of {counted(unknown.texts, 'text')} "
                f"{'has' if number == 1 else 'have'} no visible character",
                stacklevel=2,
            )
        for message in unknown.warnings():
            warnings.warn(message, stacklevel=2)

    def _answers(self, examples: list[Example], unknown: UnknownTexts) -> list[Answer]:
        task = self.task
        features = task.features(examples, self.tokenizer, self.max_length, training=False)
        unknown.add(
            examples_of(features, task.sequences_per_example),
            [example.texts for example in examples],
        )
        sizes = units_of(task, features).sizes(lengths_of(features))
        batches = length_batches(sizes, self.batch_size, seed=0, epoch=0, shuffle=False)
        made = batches_of(task, features, self.tokenizer)
        own = self.ranks.part(batches)
        outputs = predict(self.module, (made[batch] for batch in own), self.ranks)
        answers = decision.answers(task, outputs, examples, features, self.module.decision)
        if task.sequences_per_example == 1:
            return answers
        return [_with_option(*pair) for pair in zip(answers, examples, strict=True)]


def _with_option(answer: Answer, example: Example) -> Answer:
    """The answer with the text of the option that its letter stands for."""
    number = sorted(answer["probabilities"]).index(answer["prediction"])
    return answer | {"option": example.texts[2 + number]}


def load(
    run: str | Path,
    *,
    batch_size: int | None = None,
    ensemble: bool = False,
    average_weights: bool = False,
    beams: int | None = None,
    int8: bool = False,
) -> Predictor | MaskFiller | TextGenerator:
    """Load the best checkpoint of a run to predict; a pretraining run fills `[MASK]`.

    >>> import finetune
    >>> model = finetune.load("runs/own")
    >>> answers = model.predict(["the cat sees a good bird", "a bad dog"])
    >>> sorted(answers[0])
    ['id', 'prediction', 'probabilities']
    >>> len(model.predict("a good bird"))
    1

    A run that was pretrained or adapted as a masked language model:

    >>> filler = finetune.load("runs/pretrained")
    >>> (answer,) = filler.predict(["the [MASK] sees a dog"])
    >>> sorted(answer["masks"][0]["candidates"][0])
    ['probability', 'token']

    Args:
        run: The run's folder; of several seeds, the best one is used.
        batch_size: Examples in a batch; default: that of the run (32 for filling masks).
        ensemble: Answer by all seeds of the run: the average of their probabilities (of numbers, of
            the scores of passages).
        average_weights: Answer by one model with the mean of the weights of all seeds.
        beams: Search texts with so many beams in place of the run's number; 1 = greedy.
        int8: Compute the encoder's linear layers in 8 bits, on the CPU: about twice as fast, with
            answers that differ a little; `evaluate` tells what score they have.

    Returns:
        A model with `predict`; a causal language model has `generate` too.

    Raises:
        ConfigError: The folder contains no run, or an unfinished run of several seeds; an ensemble
            is wanted of one seed, or 8 bits of a language model or on a GPU.
        CheckpointError: The run has no checkpoint; or the seeds of an ensemble do not answer in the
            same form.
    """
    folder = Path(run)
    if ensemble and average_weights:
        raise ConfigError("expected ensemble or average_weights, got both; choose one")
    several = ensemble or average_weights
    if int8 and (fills_masks(folder) or writes_on(folder)):
        raise ConfigError(f"int8 is for the run of a task, got a language model in {folder}")
    if not several and beams is None and fills_masks(folder):
        from finetune.jobs.fill_masks import load_filler

        return load_filler(folder, batch_size=batch_size)
    if not several and beams is None and writes_on(folder):
        from finetune.jobs.generation import load_generator

        return load_generator(folder, batch_size=batch_size)
    whole = RunFolder(folder)
    folder = (member_folders(whole)[0] if several else whole.one_run()).path
    settings = with_beams(read_fit(folder), beams)
    task = make_task(settings)
    if task.fixed_answer is not None:
        raise ConfigError(
            f"{folder} was not trained: every example is answered '{task.fixed_answer}'"
        )
    module: Answering
    if several:
        members, tokenizer, _ = load_members(whole, settings)
        module = Ensemble(members) if ensemble else average_weights_of(members)
    else:
        module, tokenizer = load_answerer(checkpoint_of(folder, settings, task), settings)
    if int8:
        in_int8(module)
    predictor = Predictor(
        module,
        tokenizer,
        max_length=settings.max_length,
        batch_size=batch_size or settings.loader.batch_size,
    )
    predictor._run = settings
    return predictor


def predict_file(
    run: Path,
    source: str,
    target: str,
    *,
    kind: str | None = None,
    batch_size: int | None = None,
    top: int | None = None,
    ensemble: bool = False,
    int8: bool = False,
    devices: int = 1,
    beams: int | None = None,
) -> int:
    """Answer the rows of a file, in order; a pretraining run fills their masks.

    Args:
        run: RUN.
        source: A file that `read_rows` reads, or `-` for standard input.
        target: The file to write, whole or not at all: a table with the ending .csv, .tsv or
            .parquet, otherwise JSON lines; or `-` for standard output.
        kind: Of the source, where its name does not say.
        batch_size: Units in a batch; left out, that of the run.
        top: Candidates for each mask; left out, 5.
        ensemble: Answer by all seeds of the run, as `load` does.
        int8: Answer in 8 bits, as `load` does.
        devices: Processes on this machine that divide the rows; with the same answers.
        beams: As for `load`.

    Returns:
        How many rows were answered.

    Raises:
        ConfigError: The output is the input; the folder holds no run; or candidates are asked of
            a run that fills no masks.
        DataError: There is no row, or one has no text, or no mask to fill.
    """
    if target != "-" and Path(target).is_dir():
        raise ConfigError(f"--output {target} is a folder; name a file, such as answers.jsonl")
    check_target(Path(target))
    if "-" not in (source, target) and os.path.realpath(source) == os.path.realpath(target):
        raise ConfigError(f"--output {target}: is the input; name another file")
    how = {"ensemble": ensemble, "int8": int8, "beams": beams}
    load_it = partial(_answerer, run, top, batch_size, **how)
    if join(devices) == Place():  # nothing of Lightning is needed, which takes seconds to import
        return _answer_rows(load_it(), source, target, kind)
    from finetune.training.loop.launching import taking_part
    from finetune.training.loop.trainer import start_ranks

    with taking_part(devices) as count:
        predictor = load_it()
        predictor.ranks = start_ranks(_trainer(predictor, count))
        return _answer_rows(predictor, source, target, kind)


def _trainer(predictor: Predictor | MaskFiller | TextGenerator, devices: int) -> TrainerConfig:
    """What starts the processes of a run, each with its device."""
    device = next(predictor.module.parameters()).device
    return TrainerConfig(accelerator="gpu" if device.type == "cuda" else "cpu", devices=devices)


def _answer_rows(
    predictor: Predictor | MaskFiller | TextGenerator, source: str, target: str, kind: str | None
) -> int:
    ranks = predictor.ranks
    inputs = Inputs(_shared(read_rows(source, kind) if ranks.rank == 0 else iter(()), ranks))
    stream = inputs.beside(predictor.stream(inputs))
    first = list(islice(stream, 1))
    if not first:
        raise DataError(f"{source}: expected rows to answer, got none")
    answers = _Counted(chain(first, stream))
    if ranks.rank > 0:  # which the first process writes
        return sum(1 for _ in answers)
    if target == "-":
        for answer in answers:
            put(json.dumps(answer, ensure_ascii=False, allow_nan=False))
    else:
        write_answer_file(answers, Path(target))
    say(counted(answers.count, "answer") + ("" if target == "-" else f": {target}"))
    return answers.count


def _shared(rows: Iterator[Row], ranks: Ranks) -> Iterator[Row]:
    """The rows of the first process, which alone reads them, in every process."""
    if ranks.size == 1:
        yield from rows
        return
    while window := ranks.of_first(list(islice(rows, SHARED_ROWS))):
        yield from window


def _answerer(
    run: Path, top: int | None, batch_size: int | None, **how: Any
) -> Predictor | MaskFiller | TextGenerator:
    """What answers rows: the head of a task, or that of a language model."""
    if top is None:
        return load(run, batch_size=batch_size, **how)
    if not fills_masks(run):
        raise ConfigError(f"--top-k is for runs that fill masks; {run} answers a task")
    from finetune.jobs.fill_masks import load_filler

    return load_filler(run, batch_size=batch_size, top=top)


class _Counted:
    """An iterator that counts what goes through it."""

    def __init__(self, rows: Iterator[Answer]) -> None:
        self.rows, self.count = rows, 0

    def __iter__(self) -> Iterator[Answer]:
        for row in self.rows:
            self.count += 1
            yield row
