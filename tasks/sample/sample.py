"""The embedded sample: the made world of `tasks/sample/world.py` in the official file formats.

A text to pretrain on, and small labelled files whose training part mentions a quarter of the
invented words, while validation and test draw on all of them. What the text taught about the others
is what can help there. The same seed writes the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.files.writing import new_folder, write_text
from tasks.sample import sample_choices, sample_spans
from tasks.sample.sample_choices import race_files
from tasks.sample.sample_pairs import pair_lines
from tasks.sample.sample_spans import draw_passage, questions_alone, squad_file
from tasks.sample.world import (
    KINDS,
    MEASURES,
    MOODS,
    PEOPLE,
    REGIONS,
    THINGS,
    Attributes,
    Words,
    World,
    documents,
    fill,
    make_world,
)

CORPUS_DOCUMENTS = 2_400
EXAMPLES = {"train": 600, "dev": 400, "test": 80}
"""Rows of each file of a GLUE task, and questions of each part of SQuAD and RACE."""
VOCAB_SIZE = 640
"""As many tokens as the text of any seed can give; nearly every word is then one token."""

Row = Mapping[str, str]
"""Column -> cell."""


def _cola(world: World, rng: random.Random) -> Row:
    """Does the word before the noun go with it, as in `a bottle` and `much milk`?"""
    measure, noun = _two(MEASURES, rng)
    sentence = fill(
        "The {person} {did} {measure} {noun}.",
        rng,
        {
            "person": PEOPLE,
            "did": ("bought", "found", "gave away"),
            "measure": MEASURES[measure],
            "noun": world.nouns[noun],
        },
    )
    acceptable = measure == noun
    return {
        "sentence": sentence,
        "label": str(int(acceptable)),
        "mark": "" if acceptable else "*",
    }


def _sst2(world: World, rng: random.Random) -> Row:
    """Are the two adjectives praise or blame?"""
    mood = rng.choice(list(MOODS))
    template = rng.choice(
        (
            "a {adjective} and {adjective} {thing} ",
            "the {thing} was {adjective} , and {adjective} too ",
        )
    )
    sentence = fill(template, rng, {"adjective": world.adjectives[mood], "thing": THINGS})
    return {"sentence": sentence, "label": str(int(mood == "praise"))}


def _stsb(world: World, rng: random.Random) -> Row:
    """How alike are the adjectives: the same, both praise or both blame, or one of each?"""
    moods = _two(MOODS, rng, same=0.4)  # even odds: exclusive or, on which small nets get stuck
    thing = rng.choice(THINGS)
    first, other = (rng.choice(world.adjectives[mood]) for mood in moods)
    second = first if moods[0] == moods[1] and rng.random() < 0.25 else other
    score = 5.0 if first == second else 3.75 if moods[0] == moods[1] else 0.0
    return {
        "sentence1": f"The {thing} was {first}.",
        "sentence2": f"The {thing} was {second}.",
        "score": f"{score:.3f}",
    }


def _rte(world: World, rng: random.Random) -> Row:
    """Is the animal of the kind that the hypothesis says?"""
    kind, claimed = _two(KINDS, rng)
    slots = {
        "did": ("lives near", "was born in", "was seen in", "has left"),
        "town": world.towns[rng.choice(list(REGIONS))],
    }
    rest = fill("{did} {town}.", rng, slots)
    return {
        "sentence1": f"The {rng.choice(world.animals[kind])} {rest}",
        "sentence2": f"The {claimed} {rest}",
        "label": "entailment" if kind == claimed else "not_entailment",
    }


def _two(attributes: Attributes, rng: random.Random, same: float = 0.5) -> tuple[str, str]:
    """Draw two attributes, with probability `same` the same one twice."""
    first = rng.choice(list(attributes))
    if rng.random() < same:
        return first, first
    return first, rng.choice([other for other in attributes if other != first])


@dataclass(frozen=True)
class Layout:
    """The official form of a task's files, and what fills it."""

    draw: Callable[[World, random.Random], Row]
    """Makes a labelled example of a world's words."""
    labelled: Words
    """The columns of train.tsv and dev.tsv."""
    test: Words
    """The columns of test.tsv, which has no labels."""
    header: bool = True
    """Whether the labelled files have a header line; test.tsv always has."""


_STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2")
_PAIR = ("sentence1", "sentence2")

GLUE_LAYOUTS: dict[str, Layout] = {
    "CoLA": Layout(_cola, ("source", "label", "mark", "sentence"), ("index", "sentence"), False),
    "SST-2": Layout(_sst2, ("sentence", "label"), ("index", "sentence")),
    "STS-B": Layout(_stsb, (*_STSB, *_PAIR, "score"), (*_STSB, *_PAIR)),
    "RTE": Layout(_rte, ("index", *_PAIR, "label"), ("index", *_PAIR)),
}
"""Folder in glue_data/ -> layout."""


def _table(layout: Layout, rows: Sequence[Row], *, test: bool) -> Iterator[str]:
    columns = layout.test if test else layout.labelled
    if test or layout.header:
        yield "\t".join(columns) + "\n"
    for index, row in enumerate(rows):
        cells = {"index": str(index), **row}
        yield "\t".join(cells.get(column, "made") for column in columns) + "\n"


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file whole or not at all."""
    write_text(path, "".join(lines))


def _write_folder(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write name -> text into a folder, all of them or none, in the place of an older one.

    Half of RACE's passages would be taken for a small RACE, and old labels for those of new texts.
    """
    with new_folder(folder) as made:
        for name, text in files:
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class SamplePaths:
    """Where a sample was written."""

    corpus: Path
    """The text to pretrain on, for --corpus."""
    data: Path
    """The folder with glue_data/, squad/ and race/, for --data."""
    questions: Path
    """Some of SQuAD's validation questions without their answers, for predict --input."""
    pairs: Path
    """Minimal pairs, for inspect pairs --file."""


def write_sample(folder: Path, seed: int = 0) -> SamplePaths:
    """Write the text and the labelled files: those of a task whole or not at all.

    Args:
        folder: Gets `corpus.txt`, `questions.jsonl`, `minimal_pairs.jsonl`, `glue_data/`, `squad/`
            and `race/`; it is made if need be.
        seed: Draws the words, their attributes and every sentence.

    Returns:
        The paths for --corpus, --data and --input.
    """
    world = make_world(seed)
    names = ("questions.jsonl", "minimal_pairs.jsonl")
    paths = SamplePaths(folder / "corpus.txt", folder, *(folder / name for name in names))
    texts = documents(world, random.Random(f"{seed} corpus"), CORPUS_DOCUMENTS)
    _write(paths.corpus, (f"{text}\n\n" for text in texts))
    _write(paths.pairs, pair_lines(world, seed))
    _write_glue(folder / "glue_data", world, seed)
    _write_squad(folder / "squad", paths.questions, world, seed)
    _write_race(folder / "race" / "RACE", world, seed)
    return paths


def _words_of(world: World, split: str) -> World:
    return world.quarter() if split == "train" else world


def _write_glue(folder: Path, world: World, seed: int) -> None:
    for name, layout in GLUE_LAYOUTS.items():
        _write_folder(folder / name, _tables(layout, world, random.Random(f"{seed} {name}")))


def _tables(layout: Layout, world: World, rng: random.Random) -> Iterator[tuple[str, str]]:
    for split, count in EXAMPLES.items():
        words = _words_of(world, split)
        rows = [layout.draw(words, rng) for _ in range(count)]
        yield f"{split}.tsv", "".join(_table(layout, rows, test=split == "test"))


def _write_squad(folder: Path, questions: Path, world: World, seed: int) -> None:
    rng, numbers = random.Random(f"{seed} squad"), _passages(sample_spans.QUESTIONS)
    for split in ("train", "dev"):  # the official test set is hidden
        passages = [draw_passage(_words_of(world, split), rng, number) for number in numbers[split]]
        _write(folder / f"{split}-v2.0.json", [squad_file(passages)])
    _write(questions, [questions_alone(passages[0])])


def _write_race(folder: Path, world: World, seed: int) -> None:
    rng = random.Random(f"{seed} race")
    for split, numbers in _passages(2 * sample_choices.QUESTIONS).items():  # of two levels
        _write_folder(folder / split, race_files(_words_of(world, split), rng, numbers))


def _passages(questions: int) -> dict[str, range]:
    """Number the passages of each split, from 1, so that there are questions as in EXAMPLES."""
    numbers, first = {}, 1
    for split, count in EXAMPLES.items():
        numbers[split] = range(first, first + count // questions)
        first = numbers[split].stop
    return numbers
