"""A tiny run of each kind of head, shaped as BERT is, trained through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.__main__ import main
from tests.made.families import write_families
from tests.made.texts import has_the, sentences, which_words, write_corpus, write_tables
from tests.made.world import PRETRAIN

MAX_LENGTH = 24
"""Below the 32 positions of the encoders, so that the two cannot be mistaken."""

TEXTS = sentences(7, 5)
"""Texts of several lengths that no run was trained on."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of head -> RUN; `pretraining`; and `seeds`, a classification by two seeds."""
    root: Path = tmp_path_factory.mktemp("export")
    files = write_families(root)
    corpus = write_corpus(root / "corpus.txt")
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

    config = ["--config", root / "pretrain.yaml", "--corpus", corpus]
    run("pretrain", *config, "--out", made["pretraining"])
    tune("classification", "classify", *write_tables(own, has_the, "-yes-no"))
    several = write_tables(own, which_words, "-several")
    tune("multi_label", "classify", *several, "--separator", ";", "--kind", "multi_label")
    tune("regression", "classify", *write_tables(own, lambda text: len(text) / 7, "-length"))
    for kind, command, name in (("span", "answer", "answers"), ("choice", "choose", "choices")):
        pair = ["--train", own / f"train-{name}.jsonl"]
        tune(kind, command, *pair, "--validation", own / f"validation-{name}.jsonl")
    tune("seeds", "classify", *write_tables(own, lambda text: text[0], "-first"), "--seeds", "1,2")
    return made
