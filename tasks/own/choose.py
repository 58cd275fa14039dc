"""The user's own multiple choice: a row a question, with any number of options from 2 to 26.

A row has a context, a question, options and an answer: `{"context": "…", "question": "…",
"options": ["…", "…"], "answer": "B"}`. Files of SWAG's form (Zellers et al., 2018) are read too:
`sent1`, `sent2`, `ending0` … and `label`; and those of ARC's, with named choices and an `answerKey`
(Clark et al., 2018). Questions may have unequally many options: C is the most that any
has, and an option that a question lacks has the probability 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import counted
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.task.interface import Example
from finetune.text.features.long_texts import CUT, LongConfig
from finetune.text.tokenizer.tokenizer import is_empty
from tasks.own.names import OWN
from tasks.own.options import (
    ChoiceTask,
    field_of,
    letters,
    options_of,
    shown,
    unfolded,
)
from tasks.sources.reader import (
    NamedSplits,
    UniqueIds,
    check_files,
    check_split,
    check_texts,
    first_of,
    line_list,
)

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features

ANSWERS = ("answer", "label")
"""Fields that may hold the right option."""
SPLITS = ("train", "validation", "test")
_WITHHELD = (None, "", -1)
"""What stands in the place of an answer that is withheld; -1 in SWAG's test file."""

Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""Where each row is, and its fields, unfolded."""


def choose_task(
    files: Mapping[str, Path], labels: Sequence[str] | None = None, name: str = OWN
) -> ChooseTask:
    """Make a task of the user's files.

    Args:
        files: By split: `{"train": PATH, "validation": PATH, "test": PATH}`, or some of them;
            JSONL, CSV or TSV, or one of these with .gz.
        labels: The letters of the options in the order of a trained head's logits; None: read off
            the first question.
        name: Of the data.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: There is no such split.
        CheckpointError: The labels are no letters of options.
    """
    check_files("choose/own", files, SPLITS)
    if labels is not None and (not labels or sorted(labels) != sorted(letters(len(labels)))):
        raise CheckpointError(
            "choose/own: expected a head for the options A, B, …, got one for "
            f"{', '.join(labels) or 'no options'}; name a run that has learnt to choose"
        )
    return ChooseTask(files, None if labels is None else tuple(labels), name)


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
class ChooseTask(NamedSplits, ChoiceTask):
    """Questions of the user's own files."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file."""
    order: tuple[str, ...] | None = None
    """The letters in the order of a trained head's logits; None: those of the files."""

    may_have_fewer = True

    given_name: str = OWN
    """What the user calls the data."""
    long: LongConfig = CUT
    """How passages longer than a sequence are read."""

    @property
    def name(self) -> str:
        """`choose/` and the name of the data."""
        return f"choose/{self.given_name}"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The letters of as many options as any question of the files has."""
        if self.order is not None:
            return self.order
        if not self._counts:
            raise ConfigError(
                "choose/own: expected a file of questions or a trained run, got neither"
            )
        return letters(max(self._counts))

    @cached_property
    def _counts(self) -> Counter[int]:
        """Number of options -> questions of all files that have so many."""
        rows = (row for split in SPLITS if split in self.files for row in self._rows(split))
        return Counter(len(options_of(unfolded(row, where), where)) for where, row in rows)

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `MultipleChoice` head over the most options that a question has."""
        from finetune.heads import MultipleChoice

        made = super().head(config, head)
        if isinstance(made, MultipleChoice) and self.order is None:
            made.uneven = len(self._counts) > 1
        return made

    def notes(self) -> list[str]:
        """How many options the questions have, where it is not one number."""
        if self.order is not None or len(self._counts) < 2:
            return []
        listed = ", ".join(f"{count} in {self._counts[count]:,}" for count in sorted(self._counts))
        return [f"options of a question: {listed}; options that it lacks have probability 0"]

    def data_files(self, split: str) -> list[Path]:
        """The file of a split."""
        return [self._file(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        ids = UniqueIds()
        examples = []
        rows = [(where, unfolded(row, where)) for where, row in self._rows(split)]
        _check_options(rows)
        for number, (where, row) in enumerate(rows):
            example = self.example(row, where, number)
            ids.add(example.id, where)
            label = self._answer(row, example.texts[2:], where, withheld=split == "test")
            examples.append(Example(example.id, example.texts, label))
        if split == self.train_split:
            check_texts(examples, self._file(split))
        return examples

    def warnings(self, examples: Sequence[Example], features: Sequence[Features]) -> list[str]:
        """Questions that have an option twice."""
        return _doubled_options(examples)

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
        check_split(self.name, split, self.files)
        missing = (
            f"expected the {split} file of choose/own at {self.files[split]}, got none; name a "
            "file that is there"
        )
        return first_of([self.files[split]], missing)


def _check_options(rows: Rows) -> None:
    """Refuse a file in which an option of a question lacks its text."""
    options = [(where, options_of(row, where)) for where, row in rows]
    holes = [where for where, texts in options if any(map(_is_hole, texts))]
    if holes:
        texts = next(texts for where, texts in options if where == holes[0])
        letter = next(
            name for name, text in zip(letters(len(texts)), texts, strict=False) if _is_hole(text)
        )
        raise DataError(
            f"{holes[0]}: expected a text for every option, got option {letter} empty, and an "
            f"empty one in {len(holes):,} of {len(rows):,} questions{line_list(holes)}; write "
            "the missing texts, or remove these questions"
        )


def _is_hole(option: Any) -> bool:
    return not isinstance(option, (str, int, list, dict)) or (
        isinstance(option, str) and is_empty(option)
    )


def _doubled_options(examples: Sequence[Example]) -> list[str]:
    """Say how many questions have an option twice: both of them are right, or both are wrong."""
    doubled = [
        (example, text)
        for example in examples
        for text, count in Counter(map(str.strip, example.texts[2:])).items()
        if count > 1
    ]
    if not doubled:
        return []
    example, text = doubled[0]
    questions = len({one.id for one, _ in doubled})
    return [
        f"{questions:,} of {counted(len(examples), 'question')} "
        f"{'has' if questions == 1 else 'have'} the same option twice, of which one "
        f"counts as wrong whatever it says; the first is {text[:40]!r} of question {example.id!r}; "
        "correct them, or remove these questions"
    ]
