"""A family of tasks for files in fastText's format: `__label__NAME` and a text on each line.

After `pip install examples/fasttext_family` there is a command `finetune fasttext`, and
`finetune.fit("fasttext", ...)` and `finetune.load` know the family too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import finetune
from finetune.metrics import accuracy, macro_f1
from finetune.runs.families import Family
from finetune.task.answers.classes import class_answers, constant_answers
from finetune.task.interface import Answer, Outputs, most_frequent
from finetune.text.features.pairs import Features, encode_pairs

MARK = "__label__"


class FastText(finetune.Task):
    """Lines of a label and a text; a method that is not here is inherited from `Task`."""

    name, monitor = "fasttext/own", "accuracy"
    train_split, validation_splits, test_splits = "train", ("validation",), ()
    fixed_answer = None

    def __init__(self, files: Mapping[str, Path], labels: tuple[str, ...] | None = None) -> None:
        """Keep the files; nothing is read yet.

        Args:
            files: Split -> file.
            labels: The classes of a trained head in their order; None: those of the training file.
        """
        self.files, self.trained_labels = files, labels

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes in the order of the logits: that of a trained head must not change."""
        if self.trained_labels is not None:
            return self.trained_labels
        return tuple(sorted({str(example.label) for example in self.examples("train")}))

    def data_files(self, split: str) -> list[Path]:
        """The file of a split."""
        if split not in self.files:
            raise finetune.ConfigError(f"{self.name}: no file for {split}; give --{split} FILE")
        return [self.files[split]]

    def examples(self, split: str) -> list[finetune.Example]:
        """Read a split; a wrong line is an error with its place, never skipped."""
        (path,) = self.data_files(split)
        examples = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            mark, _, text = line.partition(" ")
            if not mark.startswith(MARK) or not text.strip():
                raise finetune.DataError(
                    f"{path}:{number + 1}: expected {MARK}NAME and a text, got {line[:60]!r}"
                )
            examples.append(finetune.Example(number, (text,), mark.removeprefix(MARK)))
        return examples

    def example(self, row: Mapping[str, Any], where: str, number: int) -> finetune.Example:
        """Read one text to predict."""
        if not isinstance(row.get("text"), str):
            raise finetune.DataError(f"{where}: expected a field 'text' with a text")
        return finetune.Example(row.get("id", number), (row["text"],))

    def features(
        self,
        examples: Sequence[finetune.Example],
        tokenizer: finetune.Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Token ids of each text, with the number of its class."""
        texts = [example.texts[0] for example in examples]
        features = encode_pairs(tokenizer, texts, None, max_length)
        for feature, example in zip(features, examples, strict=True):
            feature.label = None if example.label is None else self.labels.index(str(example.label))
        return features

    def head(
        self, config: finetune.EncoderConfig, head: finetune.HeadConfig
    ) -> finetune.Classification:
        """The head, which also has the loss."""
        return finetune.Classification(config, head, len(self.labels))

    def answers(
        self,
        outputs: Outputs,
        examples: Sequence[finetune.Example],
        features: Sequence[Features],
    ) -> list[Answer]:
        """Classes and probabilities from logits."""
        return class_answers(outputs, examples, self.labels)

    def baseline_answers(
        self, train: Sequence[finetune.Example], examples: Sequence[finetune.Example]
    ) -> list[Answer]:
        """The most frequent training label for every example."""
        return constant_answers(most_frequent([example.label for example in train]), examples)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Metrics as fractions; the first one chooses the best checkpoint."""
        predictions = [answer["prediction"] for answer in answers]
        labels = [answer["label"] for answer in answers]
        return {
            "accuracy": accuracy(predictions, labels),
            "macro_f1": macro_f1(predictions, labels),
        }


FAMILIES = {
    "fasttext": Family(
        "fine-tune on files in fastText's format",
        lambda run, labels: FastText(run.files(), labels),
        only="own",
        group="your data",
    )
}
"""Word of the command -> family; `pyproject.toml` names this dictionary as the entry point."""
