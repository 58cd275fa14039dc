"""A tiny run of each kind of head, shaped as BERT is, trained through the command line."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.__main__ import main
from tests.cli.conftest import PRETRAIN, sentences
from tests.cli.families import write_families

MAX_LENGTH = 24
"""Below the 32 positions of the encoders, so that the two cannot be mistaken."""

TEXTS = sentences(7, 5)
"""Texts of several lengths that no run was trained on."""


def _rows(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def _several(text: str) -> str:
    """Which of three words a text has: several, one or none."""
    return ";".join(word for word in ("the", "cat", "red") if word in text.split())


def _tables(folder: Path, label: Callable[[str], object], name: str) -> list[object]:
    """The words that name a table to train on and one to validate on."""
    words: list[object] = []
    for split, seed, count in (("train", 1, 40), ("validation", 2, 16)):
        rows = [[text, label(text)] for text in sentences(seed, count)]
        path = _rows(folder / f"{name}-{split}.csv", ["text", "label"], rows)
        words += [f"--{split}", path]
    return words


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of head -> RUN; `pretraining`; and `seeds`, a classification by two seeds."""
    root: Path = tmp_path_factory.mktemp("export")
    files = write_families(root)
    (root / "corpus.txt").write_text("\n\n".join(sentences(0, 300)) + "\n", encoding="utf-8")
    # Ten times the usual: or else a tiny net hardly tells one text from another.
    last = "  max_position_embeddings: 32\n"
    (root / "pretrain.yaml").write_text(PRETRAIN.replace(last, f"{last}  initializer_range: 0.2\n"))
    own = files.data / "own"
    made = {"pretraining": root / "pretraining"}

    def run(*words: object) -> None:
        given = [*words, "--cache-dir", root / "cache", "--max-length", MAX_LENGTH]
        assert main([str(word) for word in given]) == 0

    def tune(kind: str, *words: object) -> None:
        made[kind] = root / kind
        start = [
            "--config",
            files.span_config if kind == "span" else files.config,
            "--max-epochs",
            1,
        ]
        run(*words, *start, "--encoder", made["pretraining"], "--out", made[kind])

    config = ["--config", root / "pretrain.yaml", "--corpus", root / "corpus.txt"]
    run("pretrain", *config, "--out", made["pretraining"])
    tune("classification", "classify", *_tables(own, lambda text: "the" in text.split(), "yes-no"))
    several = _tables(own, _several, "several")
    tune("multi_label", "classify", *several, "--separator", ";", "--kind", "multi_label")
    tune("regression", "classify", *_tables(own, lambda text: len(text) / 7, "length"))
    for kind, command, name in (("span", "answer", "answers"), ("choice", "choose", "choices")):
        pair = ["--train", own / f"train-{name}.jsonl"]
        tune(kind, command, *pair, "--validation", own / f"validation-{name}.jsonl")
    tune("seeds", "classify", *_tables(own, lambda text: text[0], "first"), "--seeds", "1,2")
    return made
