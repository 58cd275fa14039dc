"""GLUE (Wang et al., 2019): the class that reads a row of the table as a task.

The files are the official ones, `DATA/glue_data/SST-2/train.tsv` or the same with `.gz`; without a
data folder the hub is asked through `datasets`. A cell is kept as it stands: no quotes are
interpreted, no spaces stripped, and an empty text is a text. A class goes by its name on the hub
(`positive`), whatever the file writes for it (`1`); a submission is written in the file's form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import CheckpointError, ConfigError, DataError, nearest
from finetune.metrics import METRICS
from finetune.task.answers.classes import class_answers, constant_answers, number_answers
from finetune.task.interface import Answer, Example, Outputs, most_frequent
from finetune.text.features.long_texts import CUT, LongConfig
from tasks.glue.files import hub_examples, hub_split, read_examples, row_id
from tasks.glue.table import GLUE, HIGHEST_SCORE, LOWEST_SCORE, GlueRow, Split
from tasks.own.columns import Columns, find_columns, id_column
from tasks.own.long_texts import LongTextTask
from tasks.sources.hub import cache_files
from tasks.sources.reader import (
    BY_DATA,
    check_files,
    check_split,
    check_texts,
    data_folder,
    official_file,
)

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features
    from finetune.text.tokenizer.tokenizer import Tokenizer

__all__ = ["GLUE", "GlueRow", "GlueTask", "glue_task"]

DIAGNOSTIC = "ax"
"""The one split of the diagnostic set, which is read by a net that has learnt MNLI."""


def glue_task(
    name: str,
    data: Path | None = None,
    files: Mapping[str, Path] | None = None,
    *,
    labels: Sequence[str] | None = None,
    train_wnli: bool = False,
) -> GlueTask:
    """Find a task by its name in any usual spelling: `sst2`, `SST-2`, `glue/sst2`.

    Args:
        name: The task.
        data: A folder with `glue_data/`; None: the folder that the variable FINETUNE_DATA names,
            or else the hub.
        files: Files of other names, by split: `{"train": PATH, "validation": PATH}`; the one file
            of the diagnostic set goes by `test` as well.
        labels: The task's classes in the order of a trained head's logits; None: the table's order.
        train_wnli: Learn WNLI's answers, where they would be its majority class.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: GLUE has no such task, or the task has no split that a file was named for.
        CheckpointError: The labels are not those of the task.
    """
    key = name.lower().removeprefix("glue/").replace("-", "").replace("_", "")
    if key not in GLUE:
        raise ConfigError(f"unknown GLUE task '{name}'; {nearest(key, GLUE)}")
    return GlueTask(
        GLUE[key],
        data_folder(data),
        _files_by_split(GLUE[key], files or {}),
        order=None if labels is None else tuple(labels),
        train_wnli=train_wnli,
    )


def _files_by_split(row: GlueRow, files: Mapping[str, Path]) -> dict[str, Path]:
    """Files by the task's own splits: `validation` may stand for both of MNLI."""
    if DIAGNOSTIC in row.splits:
        files = {DIAGNOSTIC if split == "test" else split: path for split, path in files.items()}
    legal = {*row.splits, *(split.partition("_")[0] for split in row.splits)}
    check_files(f"glue/{row.name}", files, legal)
    return dict(files)


@dataclass(frozen=True)
class GlueTask(LongTextTask):
    """A row of the table, read from files or from the hub."""

    row: GlueRow
    data: Path | None = None
    """The folder that holds `glue_data/`; None asks the hub."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file, before any other place."""
    order: tuple[str, ...] | None = None
    """The classes in the order of a trained head's logits; None: in the table's."""
    train_wnli: bool = False
    """Learn what would be answered by the majority class."""
    long: LongConfig = CUT
    """How texts longer than a sequence are read."""
    _short: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Split -> rows with too few cells, of those read so far."""

    sequences_per_example = 1

    def __post_init__(self) -> None:
        """Refuse the head of another task: an answer would get a wrong name."""
        if self.order is not None and sorted(self.order) != sorted(self.row.labels):
            raise CheckpointError(
                f"{self.name}: expected a head for the labels {_listed(self.row.labels)}, got "
                f"one for {_listed(self.order)}; name a run that has learnt them"
            )

    @property
    def name(self) -> str:
        """`glue/` and the row's name."""
        return f"glue/{self.row.name}"

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits; empty for regression."""
        return self.row.labels if self.order is None else self.order

    @property
    def feature_settings(self) -> str:
        """How long texts are read."""
        return self.long.key

    @property
    def head_kind(self) -> str:
        """A class or a number."""
        return "classification" if self.labels else "regression"

    @property
    def monitor(self) -> str:
        """The first of the official metrics."""
        return self.row.metrics[0]

    @property
    def train_split(self) -> str | None:
        """`train`; None for the diagnostic set."""
        return None if DIAGNOSTIC in self.row.splits else "train"

    @functools.cached_property
    def fixed_answer(self) -> str | None:
        """The majority class of the training labels, where the table says so; None: learnt.

        WNLI's validation file shares hypotheses with its training file, under the other label: who
        learns them by heart is wrong (Wang et al., 2019, section 2.3).
        """
        if self.train_split is None or self.train_wnli or not self.row.untrained:
            return None
        return str(most_frequent([example.label for example in self.examples(self.train_split)]))

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """`validation`, or MNLI's two, unless a file was named in their place."""
        return self._splits_of("validation")

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`, MNLI's two, or `ax`."""
        return (DIAGNOSTIC,) if DIAGNOSTIC in self.row.splits else self._splits_of("test")

    def _splits_of(self, kind: str) -> tuple[str, ...]:
        if kind in self.files:
            return (kind,)
        return tuple(split for split in self.row.splits if split.startswith(kind))

    def data_files(self, split: str) -> list[Path]:
        """Name the file that a split is read from; from the hub, the files of its local cache."""
        if split not in self.files and self.data is None:
            return cache_files(hub_split(self.row.name, self._hub_name(split)))
        return [self._file(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        if split not in self.files and self.data is None:
            return list(hub_examples(self.row, self._hub_name(split)))
        path = self._file(split)
        labelled = split not in self.test_splits
        # Users' own files stay strict, and of a test file every row has to be answered.
        lenient = self.row.short_rows and labelled and split not in self.files
        examples, self._short[split] = read_examples(
            self.row, path, labelled=labelled, skip_short=lenient
        )
        if not examples:
            raise DataError(f"{path}: expected rows of examples, got none after the header")
        if split == self.train_split:
            self._check_training(examples, path)
        return examples

    def skipped(self, split: str) -> dict[str, int]:
        """Rows with too few cells, which an official file may have (QQP's do)."""
        short = self._short.get(split, 0)
        return {"short_rows": short} if short else {}

    def _check_training(self, examples: Sequence[Example], path: Path) -> None:
        """Refuse a file that nothing can be learnt from."""
        check_texts(examples, path)
        if self.labels and len(examples) > 1 and len({one.label for one in examples}) == 1:
            raise DataError(
                f"{path}: expected rows of {' and '.join(self.row.labels)} to train on, got "
                f"'{examples[0].label}' in all {len(examples):,}"
            )

    def _hub_name(self, split: str) -> str:
        self._split(split)
        return "test" if split == DIAGNOSTIC else split

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read a user's row by the official column names, the hub's, or the usual ones."""
        texts = tuple(row[column] for column in self._text_columns(tuple(row), where))
        for text in texts:
            if not isinstance(text, str):
                raise DataError(f"{where}: expected a text, got {text!r}; put it in quotes")
        named = (self.row.index, id_column(row))
        own = next((row[name] for name in named if name is not None and name in row), None)
        if isinstance(own, (bool, float)) or not isinstance(own, (int, str, type(None))):
            raise DataError(f"{where}: expected a text or a whole number as id, got {own!r}")
        return Example(own if isinstance(own, int) else row_id(own, number), texts)

    def _text_columns(self, header: Sequence[str], where: str) -> Sequence[str]:
        for official in (self.row.texts, self.row.hub_texts):
            if official and set(official) <= set(header):
                return official
        try:
            usual = find_columns(header, where=where, labelled=False)
        except DataError:  # its way out, naming columns, is for tables of one's own
            usual = Columns("")
        columns = [column for column in (usual.text, usual.pair) if column]
        if len(columns) != len(self.row.texts):
            listed = ", ".join(header)[:100] or "none"
            raise DataError(
                f"{where}: expected {' and '.join(self.row.texts)}, got the fields {listed}"
            )
        return columns

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Encode the text or the pair, and number the classes in the order of `labels`."""
        from finetune.text.features.pairs import encode_pairs
        from finetune.text.features.units import examples_of

        columns = list(zip(*(example.texts for example in examples), strict=True))
        if not columns:
            return []
        seconds = columns[1] if len(columns) == 2 else None
        features = encode_pairs(tokenizer, columns[0], seconds, max_length, self.long)
        labels = [self._target(example) for example in examples]
        for number, feature in examples_of(features, 1):
            feature.label = labels[number]
        return features

    def _target(self, example: Example) -> int | float | None:
        """The label as the loss takes it: a class's place among the logits, or the number."""
        label = example.label
        if label is None or (isinstance(label, int | float) and not self.labels):
            return label
        if label not in self.labels:
            raise self._unknown(label, example.id)
        return self.labels.index(str(label))

    def _unknown(self, label: object, row: object) -> DataError:
        legal = f"one of {_listed(self.row.labels)}" if self.row.labels else "a number"
        return DataError(f"{self.name}: expected {legal}, got {label!r} in the row of id {row!r}")

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `Classification` head over `labels`, or a `Regression` head."""
        from finetune.heads import Classification, Regression

        if not self.labels:
            return Regression(config, head)
        return Classification(config, head, len(self.labels))

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """Read a class with its probabilities, or a score clipped to [0, 5], off each example."""
        if not self.labels:
            return number_answers(outputs, examples, LOWEST_SCORE, HIGHEST_SCORE)
        return class_answers(outputs, examples, self.labels)

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """The most frequent class of the training labels, or their mean."""
        return constant_answers(most_frequent([example.label for example in train]), examples)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Compute the official metrics from rows that carry a label."""
        if DIAGNOSTIC in self.row.splits:
            raise DataError(
                f"{self.name}: expected answers with labels, got the diagnostic set, which is "
                "unlabelled: GLUE's leaderboard alone can score it"
            )
        if not answers or any("label" not in answer for answer in answers):
            raise DataError(
                f"{self.name}: expected answers with labels, got some without: GLUE withholds "
                "the labels of its test and diagnostic files; score a validation split"
            )
        predictions = [self._number(answer, "prediction") for answer in answers]
        references = [self._number(answer, "label") for answer in answers]
        return {name: METRICS[name](predictions, references) for name in self.row.metrics}

    def _number(self, answer: Answer, field: str) -> float:
        """A number as it is, a class by its place in the table: F1 is that of the second one."""
        value: Any = answer.get(field)
        # NaN passes: that the weights have diverged is reported where they are watched.
        if not (value in self.row.labels if self.row.labels else isinstance(value, (int, float))):
            raise self._unknown(value, answer.get("id"))
        return self.row.labels.index(value) if self.row.labels else float(value)

    def submission(self, split: str, answers: Sequence[Answer]) -> dict[str, str]:
        """The leaderboard's file: `index<TAB>prediction`, in official form."""
        form = self.row.splits.get(split)
        if form is None or form.submission is None:
            return {}
        lines = [f"{answer['id']}\t{self._written(answer)}" for answer in answers]
        return {form.submission: "\n".join(["index\tprediction", *lines, ""])}

    def _written(self, answer: Answer) -> str:
        number = self._number(answer, "prediction")
        if not self.row.labels:
            return f"{number:.3f}"
        return (self.row.written or self.row.labels)[int(number)]

    def _split(self, split: str) -> Split:
        check_split(self.name, split, self.row.splits)
        return self.row.splits[split]

    def _file(self, split: str) -> Path:
        if split in self.files:
            named = [self.files[split]]
            return official_file(self.name, split, named, "name a file that is there")
        data = self.data or Path()
        inside = Path(self.row.folder) / self._split(split).file
        # GLUE's own script names the outer folder `glue_data`: it may be what was given.
        files = [data / "glue_data" / inside, data / inside]
        return official_file(self.name, split, files, f"{BY_DATA} glue_data/")


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "no classes (a number)"
