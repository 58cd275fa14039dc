"""The sample's questions with four options, in the official form of RACE.

A passage of the middle school names an animal and a town, and the options are what their like does
or has. One of the high school names animals of all four kinds, and they are the options.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tasks.sample.world import KINDS, PEOPLE, REGIONS, Attributes, World, fill, one_each

QUESTIONS = 4
"""On each passage."""

LETTERS = "ABCD"
_FOUR_ANIMALS = (
    "The {person} saw the {animal} and the {animal}. The {person} bought the {animal} and the "
    "{animal}."
)


class Question(NamedTuple):
    """A question, its options in order, and the right one."""

    text: str
    options: Sequence[str]
    right: str


RaceFile = tuple[str, str]
"""Name and content."""


def race_files(world: World, rng: random.Random, numbers: Iterable[int]) -> Iterator[RaceFile]:
    """Draw the passages of a split, as many of the one level as of the other.

    Args:
        world: The words that they mention.
        rng: Draws passages and questions.
        numbers: Of the passages, from 1; each is that of a file of both levels.

    Yields:
        Name below the folder of the split, such as `middle/1.txt`, and JSON.
    """
    for number in numbers:
        for level, draw in (("middle", _middle), ("high", _high)):
            article, questions = draw(world, rng)
            passage = {
                "answers": [LETTERS[one.options.index(one.right)] for one in questions],
                "options": [one.options for one in questions],
                "questions": [one.text for one in questions],
                "article": article,
                "id": f"{level}{number}.txt",
            }
            yield f"{level}/{number}.txt", json.dumps(passage) + "\n"


def _middle(world: World, rng: random.Random) -> tuple[str, list[Question]]:
    kind, region = rng.choice(list(KINDS)), rng.choice(list(REGIONS))
    animal, town = rng.choice(world.animals[kind]), rng.choice(world.towns[region])
    person = rng.choice(PEOPLE)
    kinds = [f"a {other}" for other in KINDS if other != kind]
    return f"The {person} saw the {animal} and left for {town}.", [
        _question(f"What did the {person} see?", f"a {kind}", kinds, rng),
        _question(f"The {animal} _.", *_company(KINDS, kind, rng), rng),
        _question(f"What has {town}?", *_company(REGIONS, region, rng), rng),
        _question(f"Now the {person} is at the _.", *_company(REGIONS, region, rng), rng),
    ]


def _company(attributes: Attributes, right: str, rng: random.Random) -> tuple[str, Sequence[str]]:
    """Draw a word that keeps company with an attribute, and three that keep it with others."""
    others = [word for name, words in attributes.items() if name != right for word in words]
    return rng.choice(attributes[right]), rng.sample(others, len(LETTERS) - 1)


def _high(world: World, rng: random.Random) -> tuple[str, list[Question]]:
    animals = one_each(world.animals, QUESTIONS, rng)
    slots = {"person": PEOPLE, "animal": tuple(animals.values())}
    questions = []
    for kind, animal in animals.items():
        others = [other for other in animals.values() if other != animal]
        text = rng.choice((f"What is a {kind}?", f"The _ {rng.choice(KINDS[kind])}."))
        questions.append(_question(text, animal, others, rng))
    return fill(_FOUR_ANIMALS, rng, slots), questions


def _question(text: str, right: str, wrong: Sequence[str], rng: random.Random) -> Question:
    return Question(text, rng.sample([right, *wrong], len(LETTERS)), right)
