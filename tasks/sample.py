"""The embedded sample: a small made world, written in the official file formats.

Four kinds of invented words carry one hidden attribute each: an adjective is a word of praise or of
blame, an animal is of some kind, a town lies in some region, a noun can be counted or not. Nothing
in the spelling shows which. The corpus never says so of most words either, but it uses each among
the company that its attribute keeps: the birds near nests and feathers, the towns of the coast near
tides and nets. The labelled files are small and mention a quarter of the words only, while their
validation and test files draw on all of them: what the corpus taught is what can help.

Everything is drawn from a seed, so the same seed gives the same bytes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

Words = tuple[str, ...]
Attributes = Mapping[str, Words]
"""Attribute -> the invented words that have it."""

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

CORPUS_DOCUMENTS = 3_000
EXAMPLES = {"train": 600, "dev": 400, "test": 100}
"""Rows of each GLUE file."""

PEOPLE: Words = ("miller", "teacher", "sailor", "weaver", "doctor", "baker", "smith", "painter")
THINGS: Words = ("play", "song", "supper", "tale", "fair", "journey", "letter", "lesson", "market")

ANIMAL_SENTENCES: Words = (
    "The {animal} {does} and the {animal} {does}.",
    "A {kind} {does}, a {animal} {does}.",
    "One {animal} {does} when the {kind} {does}.",
)
TOWN_SENTENCES: Words = (
    "The {person} left the {town} {place} for the {town} {place}.",
    "The {town} {place} is larger than the {town} {place}.",
    "We saw the {town} {place} and the {town} {place}.",
)
MOOD_SENTENCES: Words = (
    "The {thing} was {very} {adjective}, the {thing} {very} {adjective}.",
    "It was a {very} {adjective} {thing} and a {very} {adjective} {thing}.",
    "What a {very} {adjective} and {adjective} {thing}!",
)
NOUN_SENTENCES: Words = (
    "The {person} bought {a} {counted} and {some} {measured}.",
    "We saw {some} {measured} and {a} {counted}.",
)


@dataclass(frozen=True)
class World:
    """The invented words, by attribute."""

    adjectives: Attributes
    animals: Attributes
    towns: Attributes
    nouns: Attributes

    def quarter(self) -> World:
        """The part of the world that labelled training files mention."""
        return World(*(_quarter(words) for words in vars(self).values()))


@dataclass(frozen=True)
class SamplePaths:
    """Where a sample was written."""

    corpus: Path
    """The text to pretrain on: a blank line ends a document."""
    data: Path
    """The folder for --data: it holds glue_data/."""


def write_sample(folder: Path, seed: int = 0) -> SamplePaths:
    """Write the corpus and the labelled files.

    Args:
        folder: Where to write `corpus.txt` and `glue_data/`; it is made if need be.
        seed: Draws the words, their attributes and every sentence.

    Returns:
        The paths for --corpus and --data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world(random.Random(f"{seed} world"))
    paths = SamplePaths(corpus=folder / "corpus.txt", data=folder)
    documents = corpus(world, random.Random(f"{seed} corpus"), CORPUS_DOCUMENTS)
    _write(paths.corpus, (" ".join(document) + "\n\n" for document in documents))
    for name, layout in GLUE_LAYOUTS.items():
        rng = random.Random(f"{seed} {name}")
        for split, count in EXAMPLES.items():
            source = world.quarter() if split == "train" else world
            rows = [layout.draw(source, rng) for _ in range(count)]
            _write(folder / "glue_data" / name / f"{split}.tsv", _table(layout, split, rows))
    return paths


def make_world(rng: random.Random) -> World:
    """Invent the words; spelling and attribute are drawn apart."""
    taken: set[str] = set()

    def invent(attributes: Attributes, count: int, endings: Words) -> Attributes:
        return {key: tuple(_word(rng, endings, taken) for _ in range(count)) for key in attributes}

    towns = invent(REGIONS, 8, ("holm", "wick", "mere", "stead", "combe"))
    return World(
        adjectives=invent(MOODS, 20, ("elly", "umic", "avish", "orant", "iply")),
        animals=invent(KINDS, 8, ("ibbit", "onk", "uff", "arro", "eel")),
        towns={region: tuple(map(str.capitalize, names)) for region, names in towns.items()},
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


def _quarter(attributes: Attributes) -> Attributes:
    return {key: words[: len(words) // 4] for key, words in attributes.items()}


def corpus(world: World, rng: random.Random, count: int) -> Iterator[list[str]]:
    """Draw documents, each with one kind of animal, one region and one mood.

    Args:
        world: The words.
        rng: Where chance comes from.
        count: Documents to draw.

    Yields:
        The sentences of a document.
    """
    groups = (ANIMAL_SENTENCES, TOWN_SENTENCES, MOOD_SENTENCES, NOUN_SENTENCES)
    for _ in range(count):
        templates = [rng.choice(group) for group in groups for _ in range(2)]
        rng.shuffle(templates)
        yield [_fill(template, rng, _slots(world, rng)) for template in templates]


def _slots(world: World, rng: random.Random) -> Attributes:
    """Choose a kind, a region and a mood, and say which words may stand where."""
    kind, region, mood = (rng.choice(list(table)) for table in (KINDS, REGIONS, MOODS))
    return {
        "animal": world.animals[kind],
        "kind": (kind,),
        "does": KINDS[kind],
        "town": world.towns[region],
        "region": (region,),
        "place": REGIONS[region],
        "adjective": world.adjectives[mood],
        "very": MOODS[mood],
        "a": MEASURES["counted"],
        "some": MEASURES["measured"],
        **world.nouns,
        "person": PEOPLE,
        "thing": THINGS,
    }


def _fill(template: str, rng: random.Random, slots: Attributes) -> str:
    """Put words into `{slots}`; a slot that comes twice gets two different words."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    words = {name: iter(rng.sample(slots[name], names.count(name))) for name in names}
    return re.sub(r"{(\w+)}", lambda match: next(words[match[1]]), template)


Row = dict[str, str]
"""Column -> cell."""


def _cola(world: World, rng: random.Random) -> Row:
    """Is the noun used as it may be: `much milk` but `a bottle`?"""
    before, noun = rng.choice(list(MEASURES)), rng.choice(list(MEASURES))
    measure, word = rng.choice(MEASURES[before]), rng.choice(world.nouns[noun])
    verb = rng.choice(("bought", "found", "gave away"))
    return {
        "sentence": f"The {rng.choice(PEOPLE)} {verb} {measure} {word}.",
        "label": str(int(before == noun)),
        "mark": "" if before == noun else "*",
    }


def _sst2(world: World, rng: random.Random) -> Row:
    """Do the two adjectives praise or blame?"""
    mood = rng.choice(list(MOODS))
    template = rng.choice(
        (
            "a {adjective} and {adjective} {thing} ",
            "the {thing} was {adjective} , and {adjective} too ",
        )
    )
    sentence = _fill(template, rng, {"adjective": world.adjectives[mood], "thing": THINGS})
    return {"sentence": sentence, "label": str(int(mood == "praise"))}


def _stsb(world: World, rng: random.Random) -> Row:
    """How much do two sentences share: the kind of animal, the region?"""
    animals, towns = _pair(world.animals, rng), _pair(world.towns, rng)
    return {
        "sentence1": f"The {animals.first} lives in {towns.first}.",
        "sentence2": f"The {animals.second} lives in {towns.second}.",
        "score": f"{2.5 * (animals.same + towns.same):.3f}",
    }


@dataclass(frozen=True)
class _Pair:
    first: str
    second: str
    same: bool
    """Whether the two words have the same attribute."""


def _pair(attributes: Attributes, rng: random.Random) -> _Pair:
    keys = list(attributes)
    key = rng.choice(keys)
    same = rng.random() < 0.5
    other = key if same else rng.choice([other for other in keys if other != key])
    return _Pair(rng.choice(attributes[key]), rng.choice(attributes[other]), same)


def _rte(world: World, rng: random.Random) -> Row:
    """Is the animal of the kind that the hypothesis says?"""
    kind = rng.choice(list(KINDS))
    entailed = rng.random() < 0.5
    claimed = kind if entailed else rng.choice([other for other in KINDS if other != kind])
    town, animal = (
        rng.choice(world.towns[rng.choice(list(REGIONS))]),
        rng.choice(world.animals[kind]),
    )
    where = rng.choice(("lives near", "was born in", "was seen in", "has left"))
    return {
        "sentence1": f"The {animal} {where} {town}.",
        "sentence2": f"The {claimed} {where} {town}.",
        "label": "entailment" if entailed else "not_entailment",
    }


@dataclass(frozen=True)
class Layout:
    """The official form of one task's files, and what fills it."""

    draw: Callable[[World, random.Random], Row]
    labelled: Words
    """The columns of train.tsv and dev.tsv."""
    test: Words
    """The columns of test.tsv, which has no labels."""
    header: bool = True
    """Whether the labelled files have a header line; test files always do."""


_STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2")
_TEXTS = ("sentence1", "sentence2")

GLUE_LAYOUTS: dict[str, Layout] = {
    "CoLA": Layout(_cola, ("source", "label", "mark", "sentence"), ("index", "sentence"), False),
    "SST-2": Layout(_sst2, ("sentence", "label"), ("index", "sentence")),
    "STS-B": Layout(_stsb, (*_STSB, *_TEXTS, "score"), (*_STSB, *_TEXTS)),
    "RTE": Layout(_rte, ("index", *_TEXTS, "label"), ("index", *_TEXTS)),
}
"""Folder in glue_data/ -> layout."""


def _table(layout: Layout, split: str, rows: Sequence[Row]) -> Iterator[str]:
    columns = layout.test if split == "test" else layout.labelled
    if layout.header or split == "test":
        yield "\t".join(columns) + "\n"
    for index, row in enumerate(rows):
        cells = {"index": str(index), **row}
        yield "\t".join(cells.get(column, "made") for column in columns) + "\n"


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
