"""Minimal pairs of the made world, in BLiMP's form: one word keeps the wrong company.

They judge what the text of the sample teaches, without any labels: each pair is a sentence as the
corpus has them, and the same with one word exchanged for that of another attribute.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from tasks.sample.world import (
    KINDS,
    MEASURES,
    MOODS,
    PEOPLE,
    REGIONS,
    THINGS,
    Attributes,
    World,
    fill,
)

PAIRS = 100
"""Of each template."""
TEMPLATES = {
    "animal_action": ("The {word} {company}.", "One {word} {company} when the {word} {right}."),
    "town_place": ("We saw the {word} {company}.", "The {person} left the {word} {company}."),
    "adverb_mood": ("The {thing} was {company} {word}.", "What a {company} {word} {thing}!"),
    "determiner_noun": ("We saw {company} {word}.", "The {person} bought {company} {word}."),
}
"""Phenomenon -> its sentences: an invented word, and the company that fits it or does not."""


def pair_lines(world: World, seed: int) -> Iterator[str]:
    """Draw the pairs.

    Args:
        world: The words.
        seed: Draws the words and the sentences.

    Yields:
        A pair on one line, as JSON with the fields of BLiMP's files.
    """
    sorts = zip(
        (world.animals, world.towns, world.adjectives, world.nouns),
        (KINDS, REGIONS, MOODS, MEASURES),
        strict=True,
    )
    for (phenomenon, templates), (words, company) in zip(TEMPLATES.items(), sorts, strict=True):
        for number, template in enumerate(templates, start=1):
            rng = random.Random(f"{seed} {phenomenon} {number}")
            for pair in range(PAIRS):
                good, bad = _sentences(template, words, company, rng)
                row = {"sentence_good": good, "sentence_bad": bad, "field": "made_world"}
                row |= {"linguistics_term": phenomenon, "UID": f"{phenomenon}_{number}"}
                yield json.dumps(row | {"pairID": str(pair)}) + "\n"


def _sentences(
    template: str, words: Attributes, company: Attributes, rng: random.Random
) -> tuple[str, str]:
    """A sentence twice, with words drawn alike but for the company of another attribute."""
    fits, differs = rng.sample(list(company), 2)
    slots = {"word": words[fits], "right": company[fits], "person": PEOPLE, "thing": THINGS}
    draws = rng.random()
    good, bad = (
        fill(template, random.Random(draws), slots | {"company": company[attribute]})
        for attribute in (fits, differs)
    )
    return good, bad
