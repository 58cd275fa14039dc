"""Do single heads of attention follow syntax (Clark et al., 2019, section 4.2)?

    python benchmarks/syntax_heads.py runs/tiny DIR_OF_A_BERT

There is no treebank here: sentences are made from templates, so that who belongs to whom is known.
Adjectives and phrases of any number stand between, or else a head that looks at a fixed distance
would do; the best fixed distance is in the table. For each relation the head whose largest weight,
[CLS] and [SEP] aside, most often goes where it should is chosen on one half of the sentences and
scored on the other. The same is done with fresh weights, as some of many heads is always lucky.
Words of several tokens are left out with their sentence.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.encoder import Encoder
from finetune.inspection.pairs import wilson
from finetune.jobs.sources import Model, load_model
from finetune.training.randomness import seed_weights

ADJECTIVES = ("old", "young", "small", "large", "new", "great", "black", "white", "strong", "local")
NOUNS = ("city", "church", "river", "team", "song", "book", "house", "ship", "game", "army", "road")
MEN, WOMEN = ("king", "man", "father", "son", "brother"), ("queen", "woman", "mother", "daughter")
VERBS = ("saw", "left", "found", "made", "took", "held", "built", "won", "lost", "called")
PLACES = ("near", "behind", "with", "from")


class Sentence(NamedTuple):
    """Words, and which of them belong together."""

    words: list[str]
    relations: list[tuple[str, int, int]]
    """Name, the word that is asked, and the word that it should attend to."""


def _phrase(words: list[str], noun: str, rng: random.Random) -> tuple[int, int]:
    """Append a noun phrase; the places of its determiner and its noun."""
    start = len(words)
    words += [rng.choice(("the", "a")), *rng.sample(ADJECTIVES, rng.choice((0, 1, 2))), noun]
    return start, len(words) - 1


def _clause(rng: random.Random) -> Sentence:
    """Subject, verb and object."""
    words: list[str] = []
    first, second, third = rng.sample(NOUNS, 3)
    phrases = [_phrase(words, first, rng)]
    subject = phrases[0][1]
    if rng.random() < 0.5:
        words.append(rng.choice(PLACES))
        phrases.append(_phrase(words, third, rng))
    verb = len(words)
    words.append(rng.choice(VERBS))
    phrases.append(_phrase(words, second, rng))
    relations = [("determiner → noun", *phrase) for phrase in phrases]
    relations += [("subject → verb", subject, verb), ("object → verb", phrases[-1][1], verb)]
    return Sentence([*words, "."], relations)


def _anaphor(rng: random.Random) -> Sentence:
    """A man or a woman beside another person, and himself or herself."""
    words: list[str] = []
    sides = [(rng.choice(MEN), "himself"), (rng.choice(WOMEN), "herself")]
    rng.shuffle(sides)
    _, person = _phrase(words, sides[0][0], rng)
    if rng.random() < 0.5:
        words.append(rng.choice(PLACES))
        _phrase(words, sides[1][0], rng)
    words += [rng.choice(VERBS), sides[0][1], "."]
    return Sentence(words, [("himself, herself → person", len(words) - 2, person)])


def _repetition(rng: random.Random) -> Sentence:
    """A noun that stands twice."""
    words: list[str] = []
    noun, other = rng.sample(NOUNS, 2)
    _, first = _phrase(words, noun, rng)
    words.append(rng.choice(VERBS))
    _phrase(words, other, rng)
    words.append("and")
    _, again = _phrase(words, noun, rng)
    return Sentence([*words, rng.choice(VERBS), "."], [("noun → the same noun", again, first)])


TEMPLATES = (_clause, _anaphor, _repetition)


class Looks(NamedTuple):
    """Where the heads look from the words of one relation, over N words."""

    right: Tensor
    """Whether a head looks where it should, bool (N, L H)."""
    distances: list[int]
    """From each word to the right one."""


@torch.no_grad()
def look(model: Model, sentences: Sequence[Sentence]) -> dict[str, Looks]:
    """Ask all heads about all relations."""
    right: dict[str, list[Tensor]] = defaultdict(list)
    distances: dict[str, list[int]] = defaultdict(list)
    template = model.tokenizer.template(pair=False)
    before, behind = list(template.prefix), list(template.suffix)
    for sentence in sentences:
        ids = model.tokenizer.encode_ids([" ".join(sentence.words)])[0]
        if len(ids) != len(sentence.words):
            continue
        batch = {"input_ids": torch.tensor([[*before, *ids, *behind]])}
        weights = torch.cat(model.encoder(batch, output_attentions=True).attentions, dim=1)[0]
        inside = weights[:, len(before) :, len(before) : len(before) + len(ids)]  # (L H, T, T)
        for name, word, goal in sentence.relations:
            right[name].append(inside[:, word].argmax(-1) == goal)
            distances[name].append(goal - word)
    return {name: Looks(torch.stack(rows), distances[name]) for name, rows in right.items()}


def best(looks: Looks) -> tuple[int, float, int]:
    """The head chosen on the even words, its fraction right of the odd ones, and their number."""
    chosen = int(looks.right[::2].float().mean(0).argmax())
    other = looks.right[1::2, chosen]
    return chosen, float(other.float().mean()), len(other)


def best_distance(looks: Looks) -> float:
    """The same of a fixed distance."""
    even, odd = looks.distances[::2], looks.distances[1::2]
    chosen = max(set(even), key=even.count)
    return odd.count(chosen) / len(odd)


def measure(model: Model, count: int, seed: int) -> list[list[str]]:
    """A row for each relation."""
    rng = random.Random(seed)
    sentences = [template(rng) for template in TEMPLATES for _ in range(count)]
    seed_weights(seed)
    fresh = Encoder(model.encoder.config).eval()
    learned, random_ones = look(model, sentences), look(replace(model, encoder=fresh), sentences)
    heads, rows = model.encoder.config.num_attention_heads, []
    for name, looks in learned.items():
        head, fraction, size = best(looks)
        low, high = wilson(round(fraction * size), size)
        rows.append(
            [
                name,
                f"{head // heads + 1}.{head % heads + 1}",
                f"{100 * fraction:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
                f"{100 * best_distance(looks):.1f}",
                f"{100 * best(random_ones[name])[1]:.1f}",
                f"{size:,}",
            ]
        )
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for each encoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("encoder", nargs="+", type=Path, help="run, checkpoint or folder of a BERT")
    parser.add_argument("--sentences", type=int, default=1000, help="of each template")
    parser.add_argument("--seed", type=int, default=1, help="of sentences and fresh weights")
    space = parser.parse_args(words)
    for place in space.encoder:
        model = load_model(place)
        rows = measure(model, space.sentences, space.seed)
        header = ["relation", "head", "right, %", "fixed distance, %", "fresh weights, %", "N"]
        print(f"{place}\n{table(rows, header, width=120)}", end="\n\n")


if __name__ == "__main__":
    main()
