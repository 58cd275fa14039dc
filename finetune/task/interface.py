"""What the library knows about a task: examples in, answers out.

A task is its files' form and how an answer is read off a head's outputs. It owns no loop, no
optimizer and no logger; the loss belongs to the head that it names, the official metrics belong to
it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from finetune.text.features.long_texts import CUT, LongConfig

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features
    from finetune.text.tokenizer.tokenizer import Tokenizer

Answer = dict[str, Any]
"""One row of a predictions file: `id`, `prediction`, what led to it, and the gold where known."""

Outputs = npt.NDArray[Any]
"""What answers are read off: a head's `outputs` for every unit of a split, in order (U, …)."""


class GoldAnswer(NamedTuple):
    """A passage of the context that answers a question."""

    text: str
    """`context[start : start + len(text)]`."""
    start: int
    """Its first character in the context, counted in code points."""


Label = str | float | tuple[str, ...] | tuple[GoldAnswer, ...]
"""A class or an option by name, or a text to be written; a number; classes of which several hold;
answers in a context, none where the question has no answer there."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a task's file.

    >>> from finetune import Example
    >>> Example(0, ("Where is the cat?", "The cat is on the mat."), label="answerable").texts[0]
    'Where is the cat?'
    """

    id: int | str
    """The data's own id, or the row's number from 0 where it has none."""
    texts: tuple[str, ...]
    """What is read, as the file holds it: a text; a pair; a question and its context; a passage, a
    question and its options."""
    label: Label | None = None
    """What is to be answered; None where the file withholds it."""
    group: str | None = None
    """The part of the split that is scored on its own as well, such as a level."""


class Task(Protocol):
    """A benchmark task or the user's own; one that inherits from it has the usual answers here.

    >>> from finetune import find_task
    >>> task = find_task("classify", train="data/train.csv", validation="data/validation.csv")
    >>> examples = task.examples("validation")
    >>> examples[0].label in task.labels
    True
    >>> guesses = task.baseline_answers(task.examples("train"), examples)
    >>> sorted(task.score(guesses))
    ['accuracy', 'auc', 'macro_f1', 'macro_precision', 'macro_recall']
    """

    @property
    def name(self) -> str:
        """Family and task, such as `glue/cola`: the name in results and run folders."""

    @property
    def monitor(self) -> str:
        """The metric of `score` by which the best checkpoint is chosen.

        Higher is better, unless `finetune.metrics.semantics` says otherwise of its name.
        """

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits; empty for heads without classes."""

    @property
    def train_split(self) -> str | None:
        """The split to train on; None where there is nothing to train on."""

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """The splits that are scored; the first one is monitored."""

    @property
    def test_splits(self) -> tuple[str, ...]:
        """The splits whose answers are submitted."""

    @property
    def sequences_per_example(self) -> int:
        """Sequences that the head reads together: 1, or the number of options of a question."""
        return 1

    @property
    def long(self) -> LongConfig:
        """How texts longer than a sequence are read."""
        return CUT

    @property
    def feature_settings(self) -> str:
        """What besides texts, tokenizer and length decides the features; a part of their key."""
        return ""

    @property
    def fixed_answer(self) -> str | None:
        """The answer that every example gets, untrained; None: the answers are learnt.

        Raises:
            DataError: It is read from a file that is missing or not in its official form.
        """

    def data_files(self, split: str) -> list[Path]:
        """The files that `examples` reads, for reports.

        Raises:
            DataError: A file is missing.
        """

    def examples(self, split: str) -> list[Example]:
        """Read a split, in the file's order.

        Raises:
            DataError: A file is missing, or a row is not in the official form (file and line).
        """

    def language_texts(self) -> Iterator[str]:
        """The texts that the language model may be adapted on: those to train on, each once.

        A set with unlabelled rows gives these too; nobody gives texts that are scored.
        """
        seen: set[str] = set()
        for example in self.examples(self.train_split) if self.train_split else ():
            for text in example.texts:
                if text not in seen:
                    seen.add(text)
                    yield text

    def vocabulary_texts(self) -> Iterator[str] | None:
        """Texts to train a tokenizer on where a run names none; None: it has to name one."""
        return None

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read one row of a user's input for `predict`; a label is not looked for.

        Args:
            row: Field -> value, as a JSON object or a table's row has them; a bare text has the
                one field `text`.
            where: `FILE:LINE`, for the message.
            number: Of the row, from 0: its id where it brings none.

        Raises:
            DataError: A field is missing or of another type.
        """

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Facts about examples for results.json, by name; may be empty."""
        return {}

    def notes(self) -> list[str]:
        """How the training data were read, a line each, for the terminal; may be empty."""
        return []

    @property
    def told_in_notes(self) -> tuple[str, ...]:
        """The facts of `describe` that `notes` puts into words."""
        return ()

    def skipped(self, split: str) -> dict[str, int]:
        """Rows of a split that `examples` left out, by reason, for results.json; may be empty."""
        return {}

    def warnings(self, examples: Sequence[Example], features: Sequence[Features]) -> list[str]:
        """What looks like a mistake in labelled examples, to be reported before training.

        Args:
            examples: The N examples of a split.
            features: What `features` made of them.

        Returns:
            Each a sentence that says what was found, in how many examples, and what to do.
        """
        return []

    def bind(
        self,
        tokenizer: Tokenizer,
        head: Mapping[str, Any] | None = None,
        encoder: EncoderConfig | None = None,
    ) -> None:
        """Take what a task whose answers are texts needs before `head` and `answers`.

        Args:
            tokenizer: Turns token ids into texts.
            head: What a checkpoint says of its head; None where a new one is made.
            encoder: The encoder's config, where it is known.
        """
        return

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Turn examples into token ids of at most `max_length`, special tokens counted.

        Args:
            examples: N examples.
            tokenizer: Splits their texts.
            max_length: Tokens of the longest sequence.
            training: Answers will not be read off these; what cannot be learnt from may be left
                out.

        Returns:
            `sequences_per_example` features for each unit, one after the other. A unit is an
            example, or a window of one: its features then say of which (`Features.example`).
        """

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """The head whose outputs `answers` reads, with fresh weights."""

    def merged(self, outputs: Outputs, features: Sequence[Features]) -> Outputs:
        """The outputs of examples, of which `answers` reads one each, from those of their windows.

        Args:
            outputs: One entry a unit.
            features: As for `answers`.

        Returns:
            The outputs as they are, where an example has one unit, or `answers` reads all of them.
        """
        return outputs

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """Read the answers off the head's outputs.

        Args:
            outputs: One entry a unit, in the order of the features; see also `merged`.
            examples: The N examples.
            features: What `features` made of them, with `training` false; none where a baseline
                without tokens gives the outputs.

        Returns:
            One row of the predictions file an example, in the examples' order.
        """

    def tune(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Choose, on labelled answers, the numbers that `decide` uses; empty where it uses none."""
        return {}

    def decide(self, answers: Sequence[Answer], numbers: Mapping[str, float]) -> list[Answer]:
        """The same answers, decided by numbers that `tune` chose."""
        return list(answers)

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """The answers of one who knows the training labels and reads no text: the bar to clear."""

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """The official metrics of labelled answers, as fractions, the headline first.

        Raises:
            DataError: The answers carry no labels.
        """

    def report(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """What results.json says of labelled answers besides the metrics; may be empty."""
        return {}

    def submission(self, split: str, answers: Sequence[Answer]) -> dict[str, str]:
        """The answers in the benchmark's own format: file name (below a folder) -> content.

        Empty where the benchmark has no file for this split.
        """
        return {}


def examples_digest(examples: Iterable[Example]) -> str:
    """Hash all that examples say, their order included: 32 hexadecimal digits.

    It follows the content and not the file: a packed file, or one of another name, has the same.
    """
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        fields = (example.id, example.texts, example.label, example.group)
        digest.update(ascii(fields).encode())
    return digest.hexdigest()


def most_frequent(labels: Sequence[Label | None]) -> Label:
    """The most frequent label (the first of equals), or the mean of numbers.

    Args:
        labels: At least one label; None is passed over.
    """
    numbers = [label for label in labels if isinstance(label, int | float)]
    if numbers:
        return float(np.mean(numbers))
    return Counter(label for label in labels if label is not None).most_common(1)[0][0]
