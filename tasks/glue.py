"""GLUE (Wang et al., 2019): the class that reads a row of the table as a task.

The files are the official ones, `DATA/glue_data/SST-2/train.tsv` or the same with `.gz`; without a
data folder the hub is asked through `datasets`. A cell is kept as it stands: no quotes are
interpreted, no spaces stripped, and an empty text is a text. A class goes by its name on the hub
(`positive`), whatever the file writes for it (`1`); a submission is written in the file's form.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from finetune.errors import ConfigError, DataError, nearest
from finetune.metrics import METRICS
from finetune.task import Answer, Example
from tasks.glue_table import GLUE, GlueRow, Split
from tasks.tsv import read_table

if TYPE_CHECKING:
    from torch import nn

    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig
    from finetune.text.features import Features
    from finetune.text.tokenizer import Tokenizer

__all__ = ["GLUE", "GlueRow", "GlueTask", "glue_task"]

HUB = "nyu-mll/glue"
LOWEST_SCORE, HIGHEST_SCORE = 0.0, 5.0
"""The range of STS-B, the one regression among the tasks."""


def glue_task(
    name: str, data: Path | None = None, files: Mapping[str, Path] | None = None
) -> GlueTask:
    """Find a task by its name in any usual spelling: `sst2`, `SST-2`, `glue/sst2`.

    Args:
        name: The task.
        data: A folder with `glue_data/`; None: the folder that the variable FINETUNE_DATA names,
            or else the hub.
        files: Files of other names, by split: `{"train": PATH, "validation": PATH}`.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: GLUE has no such task.
    """
    key = name.lower().removeprefix("glue/").replace("-", "").replace("_", "")
    if key not in GLUE:
        raise ConfigError(f"unknown GLUE task '{name}'; {nearest(key, GLUE)}")
    if data is None and os.environ.get("FINETUNE_DATA"):
        data = Path(os.environ["FINETUNE_DATA"])
    return GlueTask(GLUE[key], data, files or {})


@dataclass(frozen=True)
class GlueTask:
    """A row of the table, read from files or from the hub."""

    row: GlueRow
    data: Path | None = None
    """The folder that holds `glue_data/`; None asks the hub."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file, before any other place."""

    train_split = "train"

    @property
    def name(self) -> str:
        """`glue/` and the row's name."""
        return f"glue/{self.row.name}"

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits; empty for regression."""
        return self.row.labels

    @property
    def monitor(self) -> str:
        """The first of the official metrics."""
        return self.row.metrics[0]

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """`validation`, or MNLI's two, unless a file was named in their place."""
        return self._splits_of("validation")

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`, MNLI's two, or `ax`."""
        return ("ax",) if "ax" in self.row.splits else self._splits_of("test")

    def _splits_of(self, kind: str) -> tuple[str, ...]:
        if kind in self.files:
            return (kind,)
        return tuple(split for split in self.row.splits if split.startswith(kind))

    def data_files(self, split: str) -> list[Path]:
        """Name the file that a split is read from; from the hub, the files of its local cache."""
        if split not in self.files and self.data is None:
            return [Path(file["filename"]) for file in self._hub_split(split).cache_files]
        return [self._file(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        if split not in self.files and self.data is None:
            return list(self._hub_examples(split))
        path = self._file(split)
        examples = list(self._file_examples(path, labelled=split not in self.test_splits))
        if not examples:
            raise DataError(f"{path}: expected rows of examples, found none after the header")
        if split == self.train_split and not any(any(example.texts) for example in examples):
            columns = " and ".join(self.row.texts)
            raise DataError(f"{path}: expected texts to train on, found every {columns} empty")
        return examples

    def _file_examples(self, path: Path, *, labelled: bool) -> Iterator[Example]:
        row = self.row
        table = read_table(
            path,
            required=(*row.texts, row.label) if labelled else row.texts,
            headerless=row.headerless,
            optional=row.optional,
        )
        for number, (where, cells) in enumerate(table):
            yield Example(
                id=_id(cells.get(row.index), number),
                texts=tuple(cells[column] for column in row.texts),
                label=self._label(cells[row.label], where) if row.label in cells else None,
            )

    def _label(self, cell: str, where: str) -> str | float:
        if self.labels:
            written = self.row.written or self.labels
            if cell not in written:
                raise DataError(
                    f"{where}: expected a {self.row.label} of {', '.join(written)}, found '{cell}'"
                )
            return self.labels[written.index(cell)]
        try:
            score = float(cell)
        except ValueError:
            score = float("nan")
        if not LOWEST_SCORE <= score <= HIGHEST_SCORE:  # false for NaN too
            raise DataError(
                f"{where}: expected a {self.row.label} from {LOWEST_SCORE:g} to {HIGHEST_SCORE:g}, "
                f"found '{cell}'"
            )
        return score

    def _hub_split(self, split: str) -> Any:
        self._split(split)
        return _hub_split(self.row.name, "test" if split == "ax" else split)

    def _hub_examples(self, split: str) -> Iterator[Example]:
        rows = self._hub_split(split)
        columns = self.row.hub_texts or self.row.texts
        for row in rows:
            label = row["label"]
            known = label >= 0  # withheld labels are -1 there
            if known and self.labels:
                label = rows.features["label"].int2str(label)
            texts = tuple(row[column] for column in columns)
            yield Example(id=row["idx"], texts=texts, label=label if known else None)

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int
    ) -> list[Features]:
        """Encode the text or the pair, and number the classes in the order of `labels`."""
        from finetune.text.features import encode_pairs

        columns = list(zip(*(example.texts for example in examples), strict=True))
        seconds = columns[1] if len(columns) == 2 else None
        features = encode_pairs(tokenizer, columns[0], seconds, max_length)
        for feature, example in zip(features, examples, strict=True):
            label = example.label
            feature.label = self.labels.index(label) if isinstance(label, str) else label
        return features

    def head(self, config: EncoderConfig, head: HeadConfig) -> nn.Module:
        """A `Classification` head over `labels`, or a `Regression` head."""
        from finetune.heads import Classification, Regression

        if not self.labels:
            return Regression(config, head)
        return Classification(config, head, len(self.labels))

    def answers(self, logits: npt.NDArray[Any], examples: Sequence[Example]) -> list[Answer]:
        """Read a class with its probabilities, or a score clipped to [0, 5], off each example."""
        read = self._classes if self.labels else self._scores
        answers = []
        for example, answer in zip(examples, read(logits), strict=True):
            known = {} if example.label is None else {"label": example.label}
            answers.append({"id": example.id, **answer, **known})
        return answers

    def _classes(self, logits: npt.NDArray[Any]) -> Iterator[Answer]:
        shifted = logits.astype(float) - logits.max(axis=1, keepdims=True)  # (N, C)
        odds = np.exp(shifted)
        probabilities = odds / odds.sum(axis=1, keepdims=True)  # (N, C)
        best = logits.argmax(axis=1)  # (N,)
        for choice, row in zip(best.tolist(), probabilities.round(6).tolist(), strict=True):
            named = dict(zip(self.labels, row, strict=True))
            yield {"prediction": self.labels[choice], "probabilities": named}

    @staticmethod
    def _scores(logits: npt.NDArray[Any]) -> Iterator[Answer]:
        clipped = logits.astype(float).clip(LOWEST_SCORE, HIGHEST_SCORE)  # (N,)
        return ({"prediction": score} for score in clipped.round(6).tolist())

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Compute the official metrics from rows that carry a label."""
        if not answers or any("label" not in answer for answer in answers):
            raise DataError(
                f"{self.name}: expected answers with labels, found some without: GLUE withholds "
                "the labels of its test and diagnostic files; score a validation split"
            )
        predictions = self._numbers(answer["prediction"] for answer in answers)
        references = self._numbers(answer["label"] for answer in answers)
        return {name: METRICS[name](predictions, references) for name in self.row.metrics}

    def _numbers(self, values: Iterable[Any]) -> list[float]:
        if not self.labels:
            return list(values)
        number = {label: index for index, label in enumerate(self.labels)}
        return [number[value] for value in values]

    def write_submission(
        self, answers_by_split: Mapping[str, Sequence[Answer]], folder: Path
    ) -> list[Path]:
        """Write the leaderboard's file of each split: `index<TAB>prediction`, in official form."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for split, answers in answers_by_split.items():
            name = self._split(split).submission
            if name is None:
                raise DataError(
                    f"{self.name}: '{split}' is not submitted; {nearest(split, self.test_splits)}"
                )
            lines = [f"{answer['id']}\t{self._written(answer['prediction'])}" for answer in answers]
            paths.append(folder / name)
            paths[-1].write_text("\n".join(["index\tprediction", *lines, ""]), encoding="utf-8")
        return paths

    def _written(self, prediction: Any) -> str:
        if not self.labels:
            return f"{prediction:.3f}"
        return dict(zip(self.labels, self.row.written or self.labels, strict=True))[prediction]

    def _split(self, split: str) -> Split:
        if split not in self.row.splits:
            raise DataError(
                f"{self.name} has no split '{split}'; {nearest(split, self.row.splits)}"
            )
        return self.row.splits[split]

    def _file(self, split: str) -> Path:
        places = [self.files[split]] if split in self.files else self._official_places(split)
        for place in places:
            for path in (place, place.with_name(f"{place.name}.gz")):
                if path.is_file():
                    return path
        mend = (
            "name a file that is there"
            if split in self.files
            else "--data DIR (or FINETUNE_DATA) names the folder that holds glue_data/"
        )
        raise DataError(
            f"expected the {split} file of {self.name} at {places[0]} (or .gz), found none; {mend}"
        )

    def _official_places(self, split: str) -> list[Path]:
        data = self.data or Path()
        inside = Path(self.row.folder) / self._split(split).file
        # GLUE's own script names the outer folder `glue_data`: it may be what was given.
        return [data / "glue_data" / inside, data / inside]


def _id(cell: str | None, number: int) -> int | str:
    """The data's own id, as a number where it is one; the row's number where there is none."""
    if not cell:
        return number
    return int(cell) if cell.isdecimal() else cell


@functools.lru_cache
def _hub_split(name: str, split: str) -> Any:
    """Load a split from the hub or its local cache, once a process."""
    mend = "give --data DIR or set FINETUNE_DATA to a folder with glue_data/"
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"without a data folder glue/{name} needs `datasets`; {mend}") from error
    try:
        return datasets.load_dataset(HUB, name, split=split)
    except Exception as error:  # the hub's clients raise errors of a dozen unrelated classes
        reason = str(error).partition("\n")[0]
        raise DataError(f"could not load {HUB} {name} {split} ({reason}); {mend}") from error
