"""Preparing a corpus, in MB of text a second of one core, beside `tokenizers` alone.

Ours reads the files, tokenizes, finds the words' starts, counts, and writes shards with checksums.
`tokenizers` splits the same documents, which are in memory, and makes lists of their ids. Then
how much memory a process took, and how long the prepared corpus takes to open.

    python benchmarks/corpus.py data/corpus/wikitext-2
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from finetune.text import (
    CorpusConfig,
    Tokenizer,
    TokenizerConfig,
    build_corpus,
    corpus_sources,
    read_documents,
    train_tokenizer,
)
from finetune.text.tokenizer.tokenizer import tokenizer_threads

AT_ONCE = 1000
"""Documents that `tokenizers` is given at once."""


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


def seconds_of(work: Callable[[], object]) -> float:
    """Processor seconds of this process and of those that it started."""
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def theirs(tokenizer: Tokenizer, documents: Sequence[str]) -> None:
    """Tokenize with `tokenizers` alone."""
    rest: Iterator[str] = iter(documents)
    while chunk := list(islice(rest, AT_ONCE)):
        encodings = tokenizer.backend.encode_batch_fast(chunk, add_special_tokens=False)
        for encoding in encodings:
            _ = encoding.ids


def compare(paths: list[str], algorithm: str, options: argparse.Namespace) -> str:
    """Measure both, in turns, with a vocabulary learned from the corpus."""
    sources = corpus_sources(paths)
    size = sum(source.stat().st_size for source in sources if isinstance(source, Path)) / 1e6
    documents = list(read_documents(sources))
    vocabulary = TokenizerConfig(algorithm=algorithm, vocab_size=options.vocab_size)
    tokenizer = train_tokenizer(documents, vocabulary)
    config = CorpusConfig(tokenize_workers=options.workers)
    rates: dict[str, list[float]] = {"ours": [], "tokenizers": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:

            def ours(cache: str = cache) -> object:
                return build_corpus(paths, tokenizer, config, 1, cache)

            rates["ours"].append(size / seconds_of(ours))
            started = time.perf_counter()
            ours()
            opened = time.perf_counter() - started
        rates["tokenizers"].append(size / seconds_of(lambda: theirs(tokenizer, documents)))
    mine, other = (median(rates[name]) for name in ("ours", "tokenizers"))
    return (
        f"{algorithm}: ours {mine:.2f} MB/s  tokenizers {other:.2f} MB/s  "
        f"ratio {mine / other:.2f}  opened again in {opened:.2f} s"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Compare for both algorithms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", nargs="*", help="files and folders; default: a made text")
    parser.add_argument("--megabytes", type=float, default=20, help="size of the made text")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--workers", type=int, default=1, help="processes that prepare")
    parser.add_argument("--vocab-size", type=int, default=8192, help="tokens of the vocabulary")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, tokenizer_threads(1):
        paths = options.corpus or [str(made_file(Path(folder), options.megabytes))]
        print(f"{', '.join(paths)}, {options.workers} worker(s), rates by processor time")
        for algorithm in ("wordpiece", "bpe"):
            print(compare(paths, algorithm, options))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB, the documents for tokenizers included")


if __name__ == "__main__":
    main()
