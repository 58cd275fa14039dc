"""Texts or pairs of texts, each with a class, several classes or a number: the task class.

It serves the user's own tables (`classify_task`) and the public sets of `tasks.own.text_sets`:
where the rows come from is a `Source`, the training labels decide what is learnt from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import counted
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.task.answers import classes as reading
from finetune.task.interface import Answer, Example, Label, Outputs, most_frequent
from finetune.text.features.long_texts import CUT, LongConfig
from finetune.text.tokenizer.tokenizer import is_empty
from tasks.own.classify_config import TUNED, ClassifyConfig
from tasks.own.label_column import LabelColumn, check_commas, check_header
from tasks.own.label_kinds import (
    CLASSES,
    MULTI_LABEL,
    REGRESSION,
    balanced_weights,
    class_order,
    target_of,
)
from tasks.own.label_warnings import class_counts, notes_of
from tasks.own.labelled_rows import LabelledRows, UnknownLabel, known_class, listed
from tasks.own.labelled_texts import LabelledText, Source
from tasks.own.long_texts import LongTextTask
from tasks.own.own_table import SPLITS, OwnTable
from tasks.own.text_scores import METRICS_OF, check_labelled, report_of, scores_of
from tasks.sources.reader import BadRows, check_files, check_split, check_texts

__all__ = ["ClassifyConfig", "ClassifyTask", "classify_task"]

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features
    from finetune.text.tokenizer.tokenizer import Tokenizer


def classify_task(
    files: Mapping[str, Path],
    config: ClassifyConfig,
    labels: Sequence[str] | None = None,
    name: str | None = None,
) -> ClassifyTask:
    """The task that the user's own tables make.

    Args:
        files: Split -> file: train, validation, test.
        config: Columns and kind of the labels.
        labels: The classes in the order of a trained head's logits; None: `class_order`.
        name: Of the data; None names them after the training file and its label column.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: There is no such split, or no training file.
    """
    check_files("classify/own", files, SPLITS)
    if "train" not in files:
        raise ConfigError("own tables need a file to train on: --train FILE (.csv, .tsv, .jsonl)")
    if config.holdout is not None and "validation" in files:
        raise ConfigError(
            f"holdout {config.holdout} takes rows to validate on from the training file, and "
            f"--validation names {files['validation']}; give one of them"
        )
    source = OwnTable(
        dict(files),
        config.text_column,
        config.pair_column,
        config.label_column,
        config.id_column,
        drop_missing=config.missing == "drop",
        given_name=name,
    )
    return ClassifyTask(source, config, None if labels is None else tuple(labels))


@dataclass(frozen=True)
class ClassifyTask(LongTextTask):
    """Rows of a source, and what their training labels make of them."""

    source: Source
    config: ClassifyConfig
    order: tuple[str, ...] | None = None
    """The classes in the order of a trained head's logits; None: their own order."""
    long: LongConfig = CUT
    """How texts longer than a sequence are read."""

    sequences_per_example = 1
    told_in_notes = ("kind", "columns", "classes")
    train_split = "train"
    fixed_answer = None

    @property
    def name(self) -> str:
        """`classify/` and what is classified."""
        return self.source.name

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """`validation`, if there is one."""
        return tuple(split for split in self._table.splits if split == "validation")

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`, if there is one."""
        return tuple(split for split in self._table.splits if split == "test")

    @property
    def monitor(self) -> str:
        """The first metric of the kind."""
        return next(iter(METRICS_OF[self.kind]))

    @property
    def feature_settings(self) -> str:
        """The kind, which makes numbers of the labels, and how long texts are read."""
        return " ".join(filter(None, (self.kind, self.long.key)))

    @property
    def head_kind(self) -> str:
        """Classes, one or several, or a number."""
        return "classification" if self.kind == CLASSES else self.kind

    @cached_property
    def kind(self) -> str:
        """What a label is: `classes`, `multi_label` or `regression`.

        Raises:
            DataError: The labels are unclear.
        """
        return self._column.kind if self.config.kind == "auto" else self.config.kind

    @cached_property
    def _table(self) -> LabelledRows:
        return LabelledRows(self.source, self.config, self.order)

    @property
    def _column(self) -> LabelColumn:
        return self._table.column

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits: that of a trained head, or `class_order`.

        Raises:
            DataError: The training file is bad.
        """
        return self.order if self.order is not None else self._own_labels

    @cached_property
    def _own_labels(self) -> tuple[str, ...]:
        if self.kind == REGRESSION:
            return ()
        if self.source.classes is not None:
            return self.source.classes
        names: set[str] = set()
        rows, bad = self._table.labelled("train"), BadRows()
        for row in rows:
            with bad.collected():
                names |= set(self._names(self._column.read(row.label, row.where)))
        bad.report(self.data_files("train")[0], len(rows))
        return tuple(class_order(names))

    def check_order(self) -> None:
        """Refuse the head of other classes: an answer would get a wrong name.

        Raises:
            CheckpointError: The classes of the head are not those of the training labels.
        """
        if self.order is not None and sorted(self.order) != sorted(self._own_labels):
            raise CheckpointError(
                f"{self.name}: expected a head for the classes {listed(self._own_labels)}, got "
                f"one for {listed(self.order)}; name a run that has learnt them"
            )

    def skipped(self, split: str) -> dict[str, int]:
        """Rows that were left out, as the settings say: without a label or a text, or unknown."""
        counts = {**self._table.skipped(split), "unknown_labels": self._unknown.get(split, 0)}
        return {reason: count for reason, count in counts.items() if count}

    @cached_property
    def _unknown(self) -> dict[str, int]:
        """Split -> rows of unknown classes that were left out, of those read so far."""
        return {}

    @property
    def resolved(self) -> ClassifyConfig:
        """The config with all that was found out filled in.

        With it, and with `labels`, a trained head answers where its training file is gone.
        """
        separator = self.config.separator if self.kind == MULTI_LABEL else None
        config = replace(self.config, kind=self.kind, separator=separator)
        if (columns := self.source.columns) is None:
            return config
        return replace(
            config,
            text_column=columns.text,
            pair_column=columns.pair,
            label_column=columns.label,
        )

    def data_files(self, split: str) -> list[Path]:
        """The file of a split."""
        return self._table.files(split)

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        check_split(self.name, split, self._table.splits)
        rows = self._table.labelled(split)
        self._check_labels(rows)
        labels = self._labels_of(rows, split)
        examples = [
            Example(row.id, row.texts, labels[row.where]) for row in rows if row.where in labels
        ]
        if split == self.train_split:
            self._check_training(examples, rows)
        return examples

    def _labels_of(self, rows: Sequence[LabelledText], split: str) -> dict[str, Label | None]:
        """Where a row is -> its label; rows of unknown classes are an error or left out."""
        known = self.labels  # refuses bad training rows, all at once
        labels: dict[str, Label | None] = {}
        bad, dropped = BadRows(), 0
        for row in rows:
            with bad.collected():
                try:
                    labels[row.where] = self._known_label(row)
                except UnknownLabel:
                    if self.config.unknown_label != "drop" or split == self.train_split:
                        raise
                    dropped += 1
        bad.report(self.data_files(split)[0], len(rows))
        self._unknown[split] = dropped
        if not labels:
            raise DataError(
                f"{self.data_files(split)[0]}: expected rows with a class that the training data "
                f"have ({listed(known)}), got none in {counted(len(rows), 'row')}"
            )
        return labels

    def _check_labels(self, rows: Sequence[LabelledText]) -> None:
        columns = self.source.columns
        if columns is not None and columns.label is not None:
            check_header(rows, filter(None, (columns.text, columns.pair)), columns.label)
        if self.kind == REGRESSION:
            check_commas(rows)

    def _known_label(self, row: LabelledText) -> Label | None:
        if self._column.is_unlabeled(row.label):
            return None
        label = self._column.read(row.label, row.where)
        if isinstance(label, str):
            return known_class(label, self.labels, row.where)
        if self.kind == MULTI_LABEL:
            names = {known_class(name, self.labels, row.where) for name in self._names(label)}
            return tuple(class_order(names))
        return label

    @staticmethod
    def _names(label: Label) -> tuple[str, ...]:
        """The classes of a label."""
        names = (label,) if isinstance(label, str) else label
        return names if isinstance(names, tuple) else ()  # type: ignore[return-value]

    def _check_training(self, examples: Sequence[Example], rows: Sequence[LabelledText]) -> None:
        """Refuse data from which nothing can be learnt, or that are not those of the head."""
        file = self.source.files("train")[0]
        check_texts(examples, file)
        if len({example.label for example in examples}) < 2:
            raise DataError(
                f"{file}: expected at least two different labels, got "
                f"{examples[0].label!r} in all {len(examples)} rows, the first in {rows[0].where}"
            )
        self.check_order()

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read one row of a user's input; see `Task.example`."""
        read = self.source.read(row, where, number)
        return Example(read.id, read.texts)

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """The kind of labels, the columns, how often each class is there, and empty texts."""
        facts: dict[str, Any] = {"kind": self.kind}
        if (columns := self.source.columns) is not None:
            facts["columns"] = columns.chosen()
        if self.labels and any(example.label is not None for example in examples):
            facts["classes"] = class_counts((each.label for each in examples), self.labels)
        if empty := sum(all(map(is_empty, example.texts)) for example in examples):
            facts["empty_texts"] = empty
        return facts

    def notes(self) -> list[str]:
        """What the labels of each split are, with their counts, and what may be a misreading."""
        labels = {}
        for split in self._table.splits:
            labels[split] = list(self._labels_of(self._table.labelled(split), split).values())
        return notes_of(
            labels,
            self._table.labelled("train"),
            self._column,
            self.config,
            classes=self.labels,
            columns=self.source.columns,
        )

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Encode the text or the pair, and put the label into the form that the head takes."""
        from finetune.text.features.pairs import encode_pairs
        from finetune.text.features.units import examples_of

        firsts, *seconds = zip(*(example.texts for example in examples), strict=True)
        pairs = firsts, seconds[0] if seconds else None
        features = encode_pairs(tokenizer, *pairs, max_length, self.long)
        for number, feature in examples_of(features, 1):
            feature.label = target_of(examples[number].label, self.labels)
        return features

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `Regression`, `MultiLabel` or `Classification` head."""
        from finetune.heads import Classification, MultiLabel, Regression

        if self.config.class_weights != "none" and self.kind != CLASSES:
            raise ConfigError(
                f"class_weights {self.config.class_weights}: expected one class a row, got "
                f"labels of the kind {self.kind}; leave the weights out"
            )
        if self.kind == REGRESSION:
            return Regression(config, head)
        if self.kind == MULTI_LABEL:
            return MultiLabel(config, head, len(self.labels))
        return Classification(config, head, len(self.labels), self._class_weights())

    def _class_weights(self) -> list[float] | None:
        # A trained head that only answers does without: its training file may be gone.
        if self.config.class_weights == "none" or not self._has_training_file():
            return None
        labels = [str(self._known_label(row)) for row in self._table.labelled("train")]
        return balanced_weights(labels, self.labels)

    def _has_training_file(self) -> bool:
        try:
            return bool(self.source.files("train"))
        except DataError:
            if self.order is None:
                raise
            return False

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """Read a class, several classes or a number off each example."""
        if self.kind == REGRESSION:
            return reading.number_answers(outputs, examples)
        read = reading.multi_label_answers if self.kind == MULTI_LABEL else reading.class_answers
        return read(outputs, examples, self.labels)

    def tune(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Of several classes, choose the threshold of the best F1 of each."""
        tunes = self.kind == MULTI_LABEL and self.config.thresholds == TUNED
        return reading.chosen_thresholds(answers, self.labels) if tunes else {}

    def decide(self, answers: Sequence[Answer], numbers: Mapping[str, float]) -> list[Answer]:
        """Of several classes, give those whose probability is above their threshold."""
        return reading.decide_classes(answers, numbers)

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """The most frequent label of the training rows, or their mean."""
        return reading.lists(
            reading.constant_answers(most_frequent([row.label for row in train]), examples)
        )

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Compute the metrics of the kind from rows that carry a label."""
        check_labelled(answers, self.name)
        return scores_of(self.kind, answers, self.labels, self.config.positive_class)

    def report(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Per-class figures and the confusion matrix, or the errors of a regression."""
        check_labelled(answers, self.name)
        return report_of(self.kind, answers, self.labels)
