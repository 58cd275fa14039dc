"""Preparing a corpus, in MB of text a second, beside `tokenizers` alone. Rows of `bench.py`.

Ours reads the files, tokenizes, finds the words' starts, counts, and writes shards with checksums.
`tokenizers` splits the same documents, which are in memory, and makes lists of their ids.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from turns import Contest, Settings, Turn

ALGORITHMS = ("wordpiece", "bpe")
AT_ONCE = 1000
"""Documents that `tokenizers` is given at once."""


def contests(files: list[Path], vocab_size: int, rounds: int) -> list[Contest]:
    """Preparing, and opening what is prepared, by each algorithm; then training a tokenizer."""
    settings: Settings = {"files": [str(file) for file in files], "vocab_size": vocab_size}
    size = sum(file.stat().st_size for file in files) / 1e6
    works = [(f"corpus, {name}", name, "prepare", "encode") for name in ALGORITHMS]
    works += [("corpus, prepared before", ALGORITHMS[0], "reopen", "encode")]
    works += [(f"tokenizer training, {name}", name, "train", "train_alone") for name in ALGORITHMS]
    return [
        Contest(
            title,
            {"ours": f"corpus:{ours}", "tokenizers": f"corpus:{theirs}"},
            unit="MB/s",
            amount=size,
            rounds=rounds,
            settings={**settings, "algorithm": algorithm},
        )
        for title, algorithm, ours, theirs in works
    ]


def made_file(folder: Path, megabytes: float) -> Path:
    """Write a text of made words, whose frequencies fall as those of words do."""
    import numpy as np

    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = ["".join(random.choice(letters, random.integers(2, 9))) for _ in range(30_000)]
    rank = np.arange(1, len(words) + 1)
    file = folder / "made.txt"
    with file.open("w") as stream:
        while stream.tell() < megabytes * 1e6:
            chosen = random.choice(len(words), 2000, p=(1 / rank) / (1 / rank).sum())
            stream.write(" ".join(words[number] for number in chosen) + ".\n\n")
    return file


def prepare(settings: Settings) -> Turn:
    """Make a turn of ours: the corpus is prepared in an empty cache, by a worker for each core."""
    build = _build(settings)

    def turn() -> float:
        with tempfile.TemporaryDirectory() as cache:
            return _seconds(lambda: build(cache))

    return turn


def reopen(settings: Settings) -> Turn:
    """Make a turn of ours where the corpus is in the cache."""
    build = _build(settings)
    build(settings["folder"])
    return lambda: _seconds(lambda: build(settings["folder"]))


def encode(settings: Settings) -> Turn:
    """Make a turn of `tokenizers` alone."""
    documents, backend = _documents(settings), _trained(settings).backend

    def work() -> None:
        rest: Iterator[str] = iter(documents)
        while chunk := list(islice(rest, AT_ONCE)):
            for encoding in backend.encode_batch_fast(chunk, add_special_tokens=False):
                _ = encoding.ids

    return lambda: _seconds(work)


def train(settings: Settings) -> Turn:
    """Make a turn of ours: a vocabulary is learned from the files."""
    return lambda: _seconds(lambda: _trained(settings))


def train_alone(settings: Settings) -> Turn:
    """Make a turn of `tokenizers`' own classes, which learn from the documents in memory."""
    import tokenizers

    documents, size = _documents(settings), settings["vocab_size"]

    def work() -> None:
        if settings["algorithm"] == "wordpiece":
            made: Any = tokenizers.BertWordPieceTokenizer()
        else:
            made = tokenizers.ByteLevelBPETokenizer(add_prefix_space=True, lowercase=True)
        made.train_from_iterator(documents, vocab_size=size, show_progress=False)

    return lambda: _seconds(work)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _build(settings: Settings) -> Callable[[str], object]:
    from finetune.text import CorpusConfig, build_corpus

    tokenizer = _trained(settings)
    config = CorpusConfig(tokenize_workers=settings["threads"])
    return lambda cache: build_corpus(settings["files"], tokenizer, config, 1, cache)


def _documents(settings: Settings) -> list[str]:
    from finetune.text import corpus_sources, read_documents

    return list(read_documents(corpus_sources(settings["files"])))


def _trained(settings: Settings) -> Any:
    from finetune.text import TokenizerConfig, corpus_sources, read_documents, train_tokenizer

    config = TokenizerConfig(algorithm=settings["algorithm"], vocab_size=settings["vocab_size"])
    return train_tokenizer(read_documents(corpus_sources(settings["files"])), config)
