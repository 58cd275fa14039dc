"""What looks like a mistake in questions on passages: answers that moved, or are too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from finetune.console.output import are, counted
from finetune.task.interface import Example
from finetune.text.features.pairs import Features
from tasks.squad.files import FoundAnswer, MovedAnswer

FAR = 20
"""Characters; an answer that moved further than this was hardly miscounted by a few."""
MOVED_SHARE = 0.05
"""Fraction of the answers; so many moves are no slips, even if each is a small one."""
LONG_SHARE = 0.01
"""Fraction of the answers; SQuAD has about as many that are longer than 30 tokens."""


def moved_answers(examples: Sequence[Example]) -> list[str]:
    """Say how many answers do not stand where their file says, if that may be more than slips."""
    total = sum(len(example.label) for example in examples if isinstance(example.label, tuple))
    moves = list(_moves(examples))
    far = sum(abs(answer.start - answer.stated) > FAR for _, answer in moves)
    unsure = sum(_places(example.texts[1], answer.text) > 1 for example, answer in moves)
    if not (far or unsure or len(moves) > MOVED_SHARE * total):
        return []
    example, answer = moves[0]
    return [
        f"{len(moves):,} of {counted(total, 'answer')} ({len(moves) / total:.0%}) "
        f"{are(len(moves))} not where answer_start says and "
        f"{'was' if len(moves) == 1 else 'were'} moved to the nearest place in their context: "
        f"{unsure:,} to one of several places with the same text, {far:,} by more than {FAR} "
        f"characters{_pattern([answer for _, answer in moves])}; the first is {answer.text[:40]!r} "
        f"of question {example.id!r}, said to be at {answer.stated}, taken at {answer.start}; "
        "check how answer_start was counted (characters of the context as it is in the file, "
        "from 0)"
    ]


def unsure_answers(examples: Sequence[Example]) -> list[str]:
    """Say how many answers are given as text alone that occurs several times."""
    labels = [example.label for example in examples if isinstance(example.label, tuple)]
    located = [one for label in labels for one in label if isinstance(one, FoundAnswer)]
    unsure = [answer for answer in located if answer.is_unsure]
    if not unsure:
        return []
    return [
        f"{len(unsure):,} of {counted(len(located), 'answer')} without answer_start "
        f"{'stands' if len(unsure) == 1 else 'stand'} at several places of the context, such as "
        f"{unsure[0].text[:40]!r}; the first one is taken; add answer_start where another is meant"
    ]


def _moves(examples: Sequence[Example]) -> Iterator[tuple[Example, MovedAnswer]]:
    for example in examples:
        for answer in example.label if isinstance(example.label, tuple) else ():
            if isinstance(answer, MovedAnswer):
                yield example, answer


def _places(context: str, text: str) -> int:
    """How often a text occurs, also where it overlaps itself; 2 stands for more."""
    first = context.find(text)
    return 1 if context.find(text, first + 1) < 0 else 2


def _pattern(moves: Sequence[MovedAnswer]) -> str:
    """What all moves have in common, which tells how the numbers came about."""
    distances = {answer.start - answer.stated for answer in moves}
    if len(moves) < 2:
        return ""
    if {answer.stated for answer in moves} == {0}:
        return ", and answer_start is 0 for all of them"
    if len(distances) == 1:
        return f", all of them by {distances.pop():+d} characters"
    return ""


def long_answers(
    examples: Sequence[Example], features: Sequence[Features], max_answer_length: int
) -> list[str]:
    """Say how many answers have more tokens than an answer may be given, if it is not a few.

    An answer that is in none of its windows as a whole is not counted: it has no length here.
    """
    lengths: dict[int, int] = {}
    for feature in features:
        label: Any = feature.label
        if isinstance(label, tuple) and feature.example is not None and label[0] > 0:
            lengths[feature.example] = label[1] - label[0] + 1
    answered = sum(bool(example.label) for example in examples)
    too_long = [length for length in lengths.values() if length > max_answer_length]
    if not too_long or len(too_long) <= LONG_SHARE * answered:
        return []
    return [
        f"{len(too_long):,} of {counted(answered, 'answer')} ({len(too_long) / answered:.0%}) "
        f"{'has' if len(too_long) == 1 else 'have'} more than {max_answer_length} tokens, "
        f"the longest {max(too_long)}, and can never be given; "
        f"raise --max-answer-length (to {max(too_long)} for all of them)"
    ]
