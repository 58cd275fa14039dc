"""Texts of few words, and the files that hold them: a corpus, tables, SST-2, JSON."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

WORDS = (
    "the a cat dog bird sees hears likes red blue small old house tree river and but near".split()
)


def sentences(seed: int, count: int) -> list[str]:
    """Texts of 4 to 9 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]


@cache
def learned_tokenizer(vocab_size: int = 60) -> Tokenizer:
    """A tokenizer of these words."""
    return train_tokenizer(sentences(0, 300), TokenizerConfig(vocab_size=vocab_size))


@cache
def small_tokenizer() -> Tokenizer:
    """A tokenizer of 36 pieces: smaller than the tiny models' vocabularies."""
    texts = ["the cat sees the dog", "a dog sees a cat", "the old tree"] * 9
    return train_tokenizer(texts, TokenizerConfig(vocab_size=36))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file, and its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a JSON Lines file, and its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file, and its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return path


def write_corpus(path: Path, count: int = 300) -> Path:
    """Write a corpus of documents of one sentence each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(sentences(0, count)) + "\n", encoding="utf-8")
    return path


def write_tables(
    folder: Path,
    label: Callable[[str], object],
    suffix: str = "",
    train: int = 40,
    validation: int = 16,
) -> list[object]:
    """Write a table to train on and one to validate on; returns the words that name them."""
    words: list[object] = []
    for split, seed, count in (("train", 1, train), ("validation", 2, validation)):
        rows = [[text, label(text)] for text in sentences(seed, count)]
        path = write_csv(folder / f"{split}{suffix}.csv", ["text", "label"], rows)
        words += [f"--{split}", path]
    return words


def write_sst2(root: Path, label: Callable[[str], bool], train: int = 90, dev: int = 30) -> Path:
    """Write SST-2 in its official form, labelled by a rule; returns the folder for `--data`."""
    folder = root / "glue_data" / "SST-2"
    folder.mkdir(parents=True, exist_ok=True)
    for split, seed, count in (("train", 1, train), ("dev", 2, dev)):
        rows = [f"{text}\t{int(label(text))}" for text in sentences(seed, count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return root


def has_the(text: str) -> bool:
    """A label that needs all words: is `the` among them?"""
    return "the" in text.split()


def which_words(text: str) -> str:
    """Several labels, one or none: which of three words are among them?"""
    return ";".join(word for word in ("the", "cat", "red") if word in text.split())


def write_texts(folder: Path, labels: Sequence[str] = ("bad", "good")) -> None:
    """Write corpus.txt, and train.csv and validation.csv, whose label stands in the text."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(rng.choices([*WORDS, "good", "bad"], k=8)) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    for split, count in (("train", 64), ("validation", 16)):
        rows = []
        for number in range(count):
            words = rng.choices(WORDS, k=5)
            words.insert(rng.randrange(5), ("bad", "good")[number % 2])
            rows.append((" ".join(words), labels[number % 2]))
        write_csv(folder / f"{split}.csv", ("text", "label"), rows)
