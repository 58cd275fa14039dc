"""What every multiple-choice task shares: how a question meets its options, and its answers.

A question with a blank, `_`, is filled with the option (RACE: Lai et al., 2017); another question
and its option are joined by a space. Options go by the letters A, B, C, …
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from finetune.errors import DataError
from finetune.metrics import accuracy
from finetune.task.answers.classes import class_answers, constant_answers
from finetune.task.interface import Answer, Example, Outputs, most_frequent
from tasks.own.long_texts import LongTextTask

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features
    from finetune.text.tokenizer.tokenizer import Tokenizer

PASSAGES = ("context", "passage", "article", "sent1")
QUESTIONS = ("question", "sent2")
OPTIONS = ("options", "choices", "endings")
IDS = ("id", "example_id")
"""Fields of a row, under their usual names; SWAG's (Zellers et al., 2018) are `sent1`, `sent2`,
`ending0`, `ending1`, …"""
FEWEST_OPTIONS, MOST_OPTIONS = 2, len(string.ascii_uppercase)

_BLANK = re.compile("_+")
_ENDING = re.compile(r"ending\d+")


def letters(count: int) -> tuple[str, ...]:
    """Names of so many options, at most 26: A for the first one."""
    return tuple(string.ascii_uppercase[:count])


def with_option(question: str, option: str) -> str:
    """Fill the question's blanks with an option, or join the two by a space.

    Underscores that touch each other are one blank. Where there are several blanks and the option
    has as many parts, separated by semicolons (`sofa; bed`), each takes its part; otherwise each
    takes the whole option. A blank that touches a word is set off by a space.
    """
    blanks = len(_BLANK.findall(question))
    if not blanks:
        return f"{question} {option}"
    parts = [part.strip() for part in option.split(";")]
    fillings = iter(parts if len(parts) == blanks > 1 else [option] * blanks)

    def filled(blank: re.Match[str]) -> str:
        before, after = question[: blank.start()][-1:], question[blank.end() :][:1]
        return f"{' ' * before.isalnum()}{next(fillings)}{' ' * after.isalnum()}"

    return _BLANK.sub(filled, question)


def read_question(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Read passage, question and options of a row.

    Args:
        row: Field -> value; the fields under any of their usual names.
        where: `FILE:LINE`, for the message.

    Returns:
        The passage, the question, and 2 to 26 options.

    Raises:
        DataError: A field is missing or of another type, or there are too few options or too many.
    """
    row = unfolded(row, where)
    options = options_of(row, where)
    if not all(isinstance(option, str) for option in options):
        raise DataError(f"{where}: expected options as a list of texts, got {shown(options)}")
    if not FEWEST_OPTIONS <= len(options) <= MOST_OPTIONS:
        raise DataError(
            f"{where}: expected {FEWEST_OPTIONS} to {MOST_OPTIONS} options, got {len(options)}"
        )
    return _text(row, PASSAGES, where), _text(row, QUESTIONS, where), *options


def unfolded(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Bring a question in the form of ARC, OpenBookQA and CommonsenseQA into the usual one.

    There the options have names of their own, by which the answer goes: `"choices": [{"label":
    "A", "text": "…"}, …]`, or `"choices": {"label": […], "text": […]}` as on the hub; question and
    options may stand together in `question`, as `stem` and `choices`; and there is no passage.

    Args:
        row: Field -> value.
        where: `FILE:LINE`, for the message.

    Returns:
        The row with plain `question`, `options` and, where it is known, `answer`, a letter; a row
        of another form as it is.

    Raises:
        DataError: The options have no names or texts, or the answer is none of the names.
    """
    inner = row.get("question")
    if isinstance(inner, dict) and "choices" in inner:
        row = {**row, "question": inner.get("stem"), "choices": inner["choices"]}
    choices = row.get("choices")
    if not _is_named(choices):
        return row
    sides = choices if isinstance(choices, dict) else _sides(choices or ())
    names, texts = sides.get("label"), sides.get("text")
    if not (isinstance(names, list) and isinstance(texts, list) and len(names) == len(texts)):
        raise DataError(
            f"{where}: expected choices with a label and a text each, got {shown(choices)}"
        )
    rest = {name: value for name, value in row.items() if name not in ("choices", "answerKey")}
    plain = {"context": "", **rest, "options": texts}
    if row.get("answerKey") in (None, ""):
        return plain
    if names.count(row["answerKey"]) != 1:
        raise DataError(
            f"{where}: expected an answerKey of {', '.join(map(str, names))}, got "
            f"{shown(row['answerKey'])}"
        )
    return {**plain, "answer": string.ascii_uppercase[names.index(row["answerKey"])]}


def _is_named(choices: Any) -> bool:
    if isinstance(choices, list):
        return bool(choices) and all(isinstance(choice, dict) for choice in choices)
    return isinstance(choices, dict)


def _sides(choices: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [choice.get(name) for choice in choices] for name in ("label", "text")}


def _text(row: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    value = row[field_of(row, names, where)]
    if not isinstance(value, str):
        raise DataError(
            f"{where}: expected '{field_of(row, names, where)}' to be a text, got {shown(value)}"
        )
    return value


def options_of(row: Mapping[str, Any], where: str) -> list[Any]:
    """The options of a row, under any of their usual names; what is in them is not checked.

    Empty cells behind the last `ending` are options that the question does not have.

    Raises:
        DataError: There are none, or they are no list.
    """
    endings = [name for name in row if _ENDING.fullmatch(name)]
    if endings and not any(name in row for name in OPTIONS):
        expected = [f"ending{number}" for number in range(len(endings))]
        if sorted(expected) != sorted(endings):
            raise DataError(
                f"{where}: expected the fields {', '.join(expected)}, got {', '.join(endings)}"
            )
        options: Any = [row[name] for name in expected]
        while options and options[-1] in ("", None):  # a table has the columns of all questions
            options.pop()
    else:
        options = row[field_of(row, OPTIONS, where)]
    if not isinstance(options, list):
        raise DataError(f"{where}: expected options as a list of texts, got {shown(options)}")
    return options


def field_of(row: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    """Find the name under which a row has a field.

    Raises:
        DataError: It has the field under none of the names.
    """
    for name in names:
        if name in row:
            return name
    fields = ", ".join(row) or "none"
    raise DataError(f"{where}: expected a field {' or '.join(names)}, got the fields {fields}")


def shown(value: Any) -> str:
    """A value as JSON writes it, cut to fit into a message."""
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


class ChoiceTask(LongTextTask):
    """Questions with C options or fewer; the texts of an example are passage, question, options."""

    monitor = "accuracy"
    fixed_answer = None
    head_kind = "choice"
    may_have_fewer = False
    """Whether a question may have fewer than C options."""

    @property
    def sequences_per_example(self) -> int:
        """C: each option is a sequence of its own."""
        return len(self.labels)

    @property
    def feature_settings(self) -> str:
        """The order in which the options are encoded, and how long passages are read."""
        return " ".join(filter(None, ("options", *self.labels, self.long.key)))

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read a question to answer; see `Task.example`."""
        texts = self.checked(read_question(row, where), where)
        given = next((row[name] for name in IDS if row.get(name) not in (None, "")), number)
        if isinstance(given, bool) or not isinstance(given, (int, str)):
            raise DataError(f"{where}: expected a text or a number as id, got {shown(given)}")
        return Example(id=given, texts=texts)

    def checked(self, texts: tuple[str, ...], where: str) -> tuple[str, ...]:
        """The same texts, if they are those of a question with C options, or fewer where it may.

        Raises:
            DataError: There are more options, or fewer where all questions have C.
        """
        count, most = len(texts) - 2, self.sequences_per_example
        if count > most or (count < most and not self.may_have_fewer):
            listed = f"({', '.join(sorted(self.labels))})"
            usual = f"at most {most} options {listed}"
            if not self.may_have_fewer:
                usual = f"{most} options {listed} for every question"
            raise DataError(f"{where}: expected {usual}, got {count}")
        return texts

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Questions of each level, where there are levels, and the fractions filled and joined."""
        filled = sum(bool(_BLANK.search(example.texts[1])) for example in examples)
        fraction = filled / max(1, len(examples))
        levels = Counter(example.group for example in examples if example.group is not None)
        return {
            **{f"questions_{level}": count for level, count in sorted(levels.items())},
            "questions_filled": round(fraction, 4),
            "questions_joined": round(1 - fraction, 4),
        }

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, *, training: bool
    ) -> list[Features]:
        """Encode the passage with each option; C features an example, each with its label.

        A label that is withheld is -100 where others are known; an option that a question lacks is
        a sequence without tokens.
        """
        from finetune.heads import IGNORED
        from finetune.text.features.choices import encode_choices
        from finetune.text.features.units import examples_of

        seconds = [
            [
                with_option(example.texts[1], example.texts[position]) if is_there else None
                for position, is_there in zip(self._positions, row, strict=True)
            ]
            for example, row in zip(examples, self._choices(examples), strict=True)
        ]
        passages = [example.texts[0] for example in examples]
        features = encode_choices(tokenizer, passages, seconds, max_length, self.long)
        unknown = IGNORED if any(example.label is not None for example in examples) else None
        for number, feature in examples_of(features, self.sequences_per_example):
            label = examples[number].label
            feature.label = self.labels.index(label) if isinstance(label, str) else unknown
        return features

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `MultipleChoice` head over C options."""
        from finetune.heads import MultipleChoice

        return MultipleChoice(config, head, self.sequences_per_example)

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """The letter of the best option, with the probabilities of all that the question has."""
        choices = self._choices(examples)
        if choices.all():
            return class_answers(outputs, examples, self.labels)
        # Also here: the outputs may be of a baseline, or of an exported graph.
        answers = class_answers(np.where(choices, outputs, -np.inf), examples, self.labels)
        for answer, row in zip(answers, choices, strict=True):
            named = zip(answer["probabilities"].items(), row, strict=True)
            answer["probabilities"] = dict(pair for pair, is_there in named if is_there)
        return answers

    @property
    def _positions(self) -> list[int]:
        """Where the option of each output stands among an example's texts, (C,)."""
        return [2 + letters(self.sequences_per_example).index(one) for one in self.labels]

    def _choices(self, examples: Sequence[Example]) -> npt.NDArray[np.bool_]:
        """Which options each question has, in the order of the outputs, (N, C)."""
        counts = np.array([len(example.texts) for example in examples])
        return np.array(self._positions) < counts[:, None]

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """The most frequent letter of the training data (A without any) for every question."""
        labels = [example.label for example in train if example.label is not None]
        return constant_answers(most_frequent(labels) if labels else letters(1)[0], examples)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Accuracy.

        Raises:
            DataError: Some answers carry no label, or there are none.
        """
        if not answers or any("label" not in answer for answer in answers):
            raise DataError(
                f"{self.name}: expected answers with labels, got some without; score a split "
                "whose file says the right options"
            )
        predictions = [answer["prediction"] for answer in answers]
        return {"accuracy": accuracy(predictions, [answer["label"] for answer in answers])}
