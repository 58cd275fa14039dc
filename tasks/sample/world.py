"""The small made world of the embedded sample: invented words, and text that uses them.

Four sorts of invented words carry a hidden attribute each: an animal is of some kind, a town lies
in some region, an adjective is praise or blame, a noun is counted or measured. Spelling and
attribute are drawn apart, and no sentence gives a definition; but each word keeps the company of
its attribute: birds chirp, towns on the coast have a pier, praise follows `wonderfully`. Whoever
fills in blanks in this text has to find the attributes out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Words = tuple[str, ...]
Attributes = Mapping[str, Words]
"""Attribute -> the words that have it, or that keep it company."""

KINDS: Attributes = {
    "bird": ("flew", "perched", "chirped", "nested"),
    "fish": ("swam", "dived", "spawned", "surfaced"),
    "snake": ("slithered", "hissed", "coiled", "rattled"),
    "cat": ("purred", "pounced", "prowled", "scratched"),
}
"""Kind of animal -> what such animals do."""

REGIONS: Attributes = {
    "coast": ("harbour", "lighthouse", "beach", "pier"),
    "forest": ("woods", "grove", "sawmill", "thicket"),
    "mountain": ("glacier", "summit", "ridge", "pass"),
}
"""Region -> what its towns have."""

MOODS: Attributes = {
    "praise": ("wonderfully", "delightfully", "charmingly", "perfectly"),
    "blame": ("dreadfully", "terribly", "horribly", "miserably"),
}
"""Whether an adjective is praise or blame -> the adverbs before it."""

MEASURES: Attributes = {
    "counted": ("a", "another", "each", "one"),
    "measured": ("some", "much", "more", "enough"),
}
"""Whether a noun is counted or measured -> the words before it."""

PEOPLE: Words = ("miller", "teacher", "sailor", "weaver", "doctor", "baker", "smith", "painter")
THINGS: Words = ("play", "song", "supper", "tale", "fair", "journey", "letter", "lesson", "market")

# The company stands beside the word: a small encoder learns that from a million tokens, while it
# needs many times more to look for it elsewhere in the sentence.
SENTENCES: Mapping[str, Words] = {
    "animals": (
        "The {animal} {does} and the {animal} {does}.",
        "A {kind} {does}, a {animal} {does}.",
        "One {animal} {does} when the {kind} {does}.",
    ),
    "towns": (
        "The {person} left the {town} {place} for the {town} {place}.",
        "The {town} {place} is larger than the {town} {place}.",
        "We saw the {town} {place} and the {town} {place}.",
    ),
    "adjectives": (
        "The {thing} was {very} {adjective}, the {thing} {very} {adjective}.",
        "It was a {very} {adjective} {thing} and a {very} {adjective} {thing}.",
        "What a {very} {adjective} and {adjective} {thing}!",
    ),
    "nouns": (
        "The {person} bought {a} {counted} and {some} {measured}.",
        "We saw {some} {measured} and {a} {counted}.",
    ),
}
"""Sort of invented word -> the sentences that the corpus has about it."""


@dataclass(frozen=True)
class World:
    """The invented words: each sort by attribute."""

    animals: Attributes
    towns: Attributes
    adjectives: Attributes
    nouns: Attributes

    def quarter(self) -> World:
        """The part of the world that labelled training files mention."""
        return World(
            *(
                {attribute: words[: len(words) // 4] for attribute, words in sort.items()}
                for sort in (self.animals, self.towns, self.adjectives, self.nouns)
            )
        )


def make_world(seed: int) -> World:
    """Invent the words.

    Args:
        seed: Draws the words and with them their attributes.

    Returns:
        The same world for the same seed.
    """
    rng = random.Random(f"{seed} world")
    taken: set[str] = set()

    def invent(attributes: Attributes, count: int, endings: Words) -> Attributes:
        return {key: tuple(_word(rng, endings, taken) for _ in range(count)) for key in attributes}

    towns = invent(REGIONS, 8, ("holm", "wick", "mere", "stead", "combe"))
    return World(
        animals=invent(KINDS, 8, ("ibbit", "onk", "uff", "arro", "eel")),
        towns={region: tuple(map(str.capitalize, names)) for region, names in towns.items()},
        adjectives=invent(MOODS, 20, ("elly", "umic", "avish", "orant", "iply")),
        nouns=invent(MEASURES, 16, ("ock", "ern", "ule", "ost", "ade")),
    )


def _word(rng: random.Random, endings: Words, taken: set[str]) -> str:
    onsets = "b br d dr f fl g gl h j k kl l m n p pl r sk sl t tr v w z".split()
    codas = "b d g lb lv mp nd rk sk v z zz".split()
    while True:
        parts = rng.choice(onsets), rng.choice("aeiou"), rng.choice(codas), rng.choice(endings)
        word = "".join(parts)
        if word not in taken:
            taken.add(word)
            return word


def documents(world: World, rng: random.Random, count: int) -> Iterator[str]:
    """Draw texts of eight sentences, two about each sort of word.

    Args:
        world: The words.
        rng: Draws the sentences and the words in them.
        count: Documents to draw.

    Yields:
        A document on one line.
    """
    for _ in range(count):
        templates = [rng.choice(group) for group in SENTENCES.values() for _ in range(2)]
        rng.shuffle(templates)
        yield " ".join(fill(template, rng, _slots(world, rng)) for template in templates)


def _slots(world: World, rng: random.Random) -> Attributes:
    """Choose a sentence's kind, region and mood: the words that may stand in each slot."""
    kind, region, mood = (rng.choice(list(table)) for table in (KINDS, REGIONS, MOODS))
    return {
        "animal": world.animals[kind],
        "kind": (kind,),
        "does": KINDS[kind],
        "town": world.towns[region],
        "place": REGIONS[region],
        "adjective": world.adjectives[mood],
        "very": MOODS[mood],
        "a": MEASURES["counted"],
        "counted": world.nouns["counted"],
        "some": MEASURES["measured"],
        "measured": world.nouns["measured"],
        "person": PEOPLE,
        "thing": THINGS,
    }


def one_each(sort: Attributes, count: int, rng: random.Random) -> dict[str, str]:
    """Draw a word each of some attributes.

    Args:
        sort: Attribute -> its words.
        count: Attributes to draw.
        rng: Draws them and the words.

    Returns:
        Attribute -> word.
    """
    return {attribute: rng.choice(sort[attribute]) for attribute in rng.sample(list(sort), count)}


def fill(template: str, rng: random.Random, slots: Attributes) -> str:
    """Put words into a sentence's `{slots}`, different ones where a slot comes twice.

    Args:
        template: The sentence.
        rng: Draws the words.
        slots: Slot -> the words that may stand in it.

    Returns:
        The sentence without slots.
    """
    names = re.findall(r"{(\w+)}", template)
    words = {name: rng.sample(slots[name], names.count(name)) for name in dict.fromkeys(names)}
    return re.sub(r"{(\w+)}", lambda slot: words[slot[1]].pop(), template)
