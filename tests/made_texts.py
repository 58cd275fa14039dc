"""A small corpus and a small table of labelled texts, for examples that run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

WORDS = (
    "the a cat dog bird sees hears likes red blue small old house tree river and but near".split()
)


def write_texts(folder: Path, labels: Sequence[str] = ("bad", "good")) -> None:
    """Write corpus.txt, and train.csv and validation.csv, whose label stands in the text."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(rng.choices([*WORDS, "good", "bad"], k=8)) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    for split, count in (("train", 64), ("validation", 16)):
        rows = ["text,label"]
        for number in range(count):
            words = rng.choices(WORDS, k=5)
            words.insert(rng.randrange(5), ("bad", "good")[number % 2])
            rows.append(f"{' '.join(words)},{labels[number % 2]}")
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
