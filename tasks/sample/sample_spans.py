"""The sample's questions on passages, in the official form of SQuAD 2.0.

A passage names animals of three kinds and towns of two regions. A question asks for the one of a
kind or of a region, which it gives away only by the company that such words keep in the text. One
question in five is about what the passage lacks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.sample.world import KINDS, PEOPLE, REGIONS, World, fill, one_each

QUESTIONS = 5
"""On each passage; the last one has no answer."""
PASSAGES = 4
"""Under each title."""

Passage = dict[str, Any]
"""A paragraph of SQuAD 2.0."""

_SENTENCES = (
    "The {person} saw the {animal} and the {animal}.",
    "The {person} bought the {animal}.",
    "The {person} left {town} for {town}.",
)
# Words of the text again, so that a question is a few tokens.
_OF_KIND = ("What is a {kind}?", "What {does}?")
_OF_REGION = ("What has a {place}?",)


def squad_file(passages: Sequence[Passage]) -> str:
    """The JSON of SQuAD 2.0 with some passages."""
    tales = [passages[at : at + PASSAGES] for at in range(0, len(passages), PASSAGES)]
    data = [{"title": f"Tale_{number}", "paragraphs": tale} for number, tale in enumerate(tales, 1)]
    return json.dumps({"version": "v2.0", "data": data}) + "\n"


def questions_alone(passage: Passage) -> str:
    """The questions on a passage without their answers, as JSON Lines."""
    rows = [
        {"id": row["id"], "question": row["question"], "context": passage["context"]}
        for row in passage["qas"]
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def draw_passage(world: World, rng: random.Random, number: int) -> Passage:
    """Draw a passage with QUESTIONS questions.

    Args:
        world: The words that it mentions.
        rng: Draws everything.
        number: Its own, for the ids of the questions.

    Returns:
        `context` and `qas`.
    """
    animals, towns = one_each(world.animals, 3, rng), one_each(world.towns, 2, rng)
    slots = {"person": PEOPLE, "animal": tuple(animals.values()), "town": tuple(towns.values())}
    sentences = rng.sample(_SENTENCES, len(_SENTENCES))
    context = fill(" ".join(sentences), rng, slots)
    named = animals | towns
    asked = rng.sample(list(named), QUESTIONS - 1)
    asked.append(rng.choice([name for name in (*KINDS, *REGIONS) if name not in named]))
    questions = [
        {
            "question": _question(attribute, rng),
            "id": f"{QUESTIONS * number + index:024x}",
            **_answers(context, attribute, named),
        }
        for index, attribute in enumerate(asked)
    ]
    return {"qas": questions, "context": context}


def _question(attribute: str, rng: random.Random) -> str:
    if attribute in REGIONS:
        return fill(rng.choice(_OF_REGION), rng, {"place": REGIONS[attribute]})
    return fill(rng.choice(_OF_KIND), rng, {"kind": (attribute,), "does": KINDS[attribute]})


def _answers(context: str, attribute: str, named: Mapping[str, str]) -> dict[str, Any]:
    """The word of the attribute; where there is none, what might be taken for it."""
    if attribute in named:
        return {"answers": [_place(context, named[attribute])], "is_impossible": False}
    sort = KINDS if attribute in KINDS else REGIONS
    others = [_place(context, word) for name, word in named.items() if name in sort]
    return {"plausible_answers": others[:1], "answers": [], "is_impossible": True}


def _place(context: str, word: str) -> dict[str, Any]:
    start = context.index(f" {word}") + 1  # the space: a word may be the end of another
    return {"text": word, "answer_start": start}
