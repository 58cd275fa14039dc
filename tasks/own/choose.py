"""The user's own multiple choice: a row a question, with any number of options from 2 to 26.

A row has a context, a question, options and an answer: `{"context": "…", "question": "…",
"options": ["…", "…"], "answer": "B"}`. Files of SWAG's form (Zellers et al., 2018) are read too:
`sent1`, `sent2`, `ending0` … and `label`; and those of ARC's, with named choices and an `answerKey`
(Clark et al., 2018). How many options there are is read off the first question of the training
data; every other one must have as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import CheckpointError, ConfigError, DataError, nearest
from finetune.task.interface import Example
from finetune.text.tokenizer.visible import is_empty
from tasks.own.option_checks import check_options, doubled_options
from tasks.own.options import ChoiceTask, field_of, letters, read_question, shown, unfolded

if TYPE_CHECKING:
    from finetune.text.features.pairs import Features

ANSWERS = ("answer", "label")
"""Fields that may hold the right option."""
SPLITS = ("train", "validation", "test")
_WITHHELD = (None, "", -1)
"""What stands in the place of an answer that is withheld; -1 in SWAG's test file."""


def choose_task(files: Mapping[str, Path], labels: Sequence[str] | None = None) -> ChooseTask:
    """Make a task of the user's files.

    Args:
        files: By split: `{"train": PATH, "validation": PATH, "test": PATH}`, or some of them;
            JSONL, CSV or TSV, or one of these with .gz.
        labels: The letters of the options in the order of a trained head's logits; None: read off
            the first question.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: There is no such split.
        CheckpointError: The labels are no letters of options.
    """
    for split, path in files.items():
        if split not in SPLITS:
            raise ConfigError(
                f"choose/own has no {split} split, got the file {path} for it; "
                f"{nearest(split, SPLITS)}"
            )
    if labels is not None and (not labels or sorted(labels) != sorted(letters(len(labels)))):
        raise CheckpointError(
            "choose/own: expected a head for the options A, B, …, got one for "
            f"{', '.join(labels) or 'no options'}; name a run that has learnt to choose"
        )
    return ChooseTask(files, None if labels is None else tuple(labels))


def chosen(answer: Any, options: Sequence[str], where: str) -> int:
    """Find which option an answer means.

    Args:
        answer: A letter, a number from 0 (also one written as a text), or the text of an option.
        options: The C options.
        where: `FILE:LINE`, for the message.

    Returns:
        Its number, from 0.

    Raises:
        DataError: It means none of the options, or may mean several.
    """
    names = letters(len(options))
    meant: set[int] = set()
    if isinstance(answer, int) and not isinstance(answer, bool):
        meant = {answer} & set(range(len(options)))
    elif isinstance(answer, str):
        written = answer.strip()
        meant = {number for number, text in enumerate(options) if text.strip() == written}
        meant |= {
            number for number in range(len(options)) if written in (names[number], str(number))
        }
    if len(meant) == 1:
        return meant.pop()
    expected = (
        f"an answer of {names[0]} to {names[-1]}, 0 to {len(options) - 1} or an option's text"
    )
    if not meant:
        raise DataError(f"{where}: expected {expected}, got {shown(answer)}")
    several = ", ".join(names[number] for number in sorted(meant))
    raise DataError(
        f"{where}: expected {expected}, got {shown(answer)}, which may be any of {several}; "
        "write its letter, or its number without quotes"
    )


@dataclass(frozen=True)
class ChooseTask(ChoiceTask):
    """Questions of the user's own files."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file."""
    order: tuple[str, ...] | None = None
    """The letters in the order of a trained head's logits; None: those of the first question."""

    name = "choose/own"

    @property
    def train_split(self) -> str | None:
        """`train`, if a file was named for it."""
        return "train" if "train" in self.files else None

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """`validation`, if a file was named for it."""
        return tuple(split for split in ("validation",) if split in self.files)

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`, if a file was named for it."""
        return tuple(split for split in ("test",) if split in self.files)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The letters of as many options as the first question has."""
        if self.order is not None:
            return self.order
        split = next((split for split in SPLITS if split in self.files), None)
        if split is None:
            raise ConfigError(
                "choose/own: expected a file of questions or a trained run, got neither"
            )
        where, row = next(self._rows(split))
        return letters(len(read_question(row, where)) - 2)

    def data_files(self, split: str) -> list[Path]:
        """The file of a split."""
        return [self._file(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        seen: dict[int | str, str] = {}
        examples = []
        rows = [(where, unfolded(row, where)) for where, row in self._rows(split)]
        check_options(rows, self._file(split))
        for number, (where, row) in enumerate(rows):
            example = self.example(row, where, number)
            if example.id in seen:
                raise DataError(
                    f"{where}: expected an id of its own, got '{example.id}', which is that of "
                    f"{seen[example.id]} too"
                )
            seen[example.id] = where
            label = self._answer(row, example.texts[2:], where, withheld=split == "test")
            examples.append(Example(example.id, example.texts, label))
        return examples

    def warnings(self, examples: Sequence[Example], features: Sequence[Features]) -> list[str]:
        """Questions that have an option twice."""
        return doubled_options(examples)

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """The usual facts, and how many passages and questions are empty."""
        facts = super().describe(examples)
        for name, side in (("empty_contexts", 0), ("empty_questions", 1)):
            if empty := sum(is_empty(example.texts[side]) for example in examples):
                facts[name] = empty
        return facts

    def _answer(
        self, row: Mapping[str, Any], options: Sequence[str], where: str, *, withheld: bool
    ) -> str | None:
        """The letter of the right option; None where a test file does not say."""
        if withheld and all(row.get(name) in _WITHHELD for name in ANSWERS):
            return None
        answer = row[field_of(row, ANSWERS, where)]
        return letters(len(options))[chosen(answer, options, where)]

    def _rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        from finetune.text.features.rows import read_rows

        rows = read_rows(self._file(split))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{self._file(split)}: expected rows of questions, got none")
        yield first
        yield from rows

    def _file(self, split: str) -> Path:
        if split not in self.files:
            raise DataError(f"choose/own has no {split} file; {nearest(split, self.files)}")
        path = self.files[split]
        if not path.is_file():
            raise DataError(
                f"expected the {split} file of choose/own at {path}, got none; name a file that "
                "is there"
            )
        return path
