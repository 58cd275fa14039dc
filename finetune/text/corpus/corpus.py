"""A corpus for masked language modelling: files in, blocks of ids for training and validation out.

What is slow (reading and tokenizing) is stored in a folder of the cache, keyed by the content of
the files, the tokenizer and the settings that decide what a document is. The split and its
statistics are a folder inside, keyed by the seed and the other settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from finetune.console.output import are, counted
from finetune.errors import DataError
from finetune.files.cache_folder import named_by
from finetune.files.writing import write_json
from finetune.ranges import MOST_TOKENS, check_values, within
from finetune.text.corpus.cutting import cut_shards
from finetune.text.corpus.documents import Advance
from finetune.text.corpus.mixture import MixedBlocks, mixed, mixed_once, weights_of
from finetune.text.corpus.packing import FRAME, Blocks, Packing
from finetune.text.corpus.preparing import Preparation, copy_corpus, prepare
from finetune.text.corpus.shards import Tokens
from finetune.text.corpus.sources import HubSource, corpus_sources, digest
from finetune.text.corpus.split import (
    SIDES,
    Split,
    choose_threshold,
    count_training_tokens,
    write_split,
)
from finetune.text.corpus.statistics import (
    FREQUENCIES,
    CorpusStatistics,
    WeightedInput,
    count_statistics,
    mixed_statistics,
)
from finetune.text.corpus.tokens import file_identity, find_whole, write_manifest, written_whole
from finetune.text.tokenizer.tokenizer import Tokenizer

# Changes when the files of the cache change their form.
_FORMAT = 5
_SHARD = 64 << 20  # bytes of text: seconds of work that a kill loses, and files by the thousand
_DIGESTS = "digests.json"
_LARGE = 16 << 20  # bytes of a file that takes longer to hash than to look up
DOCUMENTS = {"joined": 1, "separate": 0}
"""How documents share a block -> leading tokens of a stored document that are left out."""


@dataclass(frozen=True)
class CorpusConfig:
    """How a corpus is read, split and packed.

    >>> from finetune import CorpusConfig, PretrainRun
    >>> run = PretrainRun(["data/corpus.txt"], "runs/a", data=CorpusConfig(max_length=256))
    >>> run.data.documents
    'joined'
    """

    text_field: str = "text"
    """Name of the field with the text (jsonl, parquet, hub)."""
    file_is_document: bool = False
    """Read each text file as one document; otherwise a blank line ends a document."""
    validation_fraction: float = within(0, 1, below=True, default=0.02)
    """Fraction of the documents held out for validation, in [0, 1)."""
    max_length: int = within(FRAME + 1, MOST_TOKENS, default=128)
    """Tokens in a training sequence, [CLS] and [SEP] included."""
    documents: str = field(default="joined", metadata={"words": tuple(DOCUMENTS)})
    """Documents in one sequence: joined (attend to each other) or separate (each to itself)."""
    tokenize_workers: int = within(0, 1024, default=0)
    """Processes that tokenize; 0 = one per core."""
    local_dir: str | None = None
    """Folder on each machine's own disk; the prepared corpus is copied there once and read there.
    none = read it from the cache folder."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: A setting is out of its range.
        """
        check_values(self)


@dataclass(frozen=True)
class Corpus:
    """A corpus ready for training."""

    train: Blocks | MixedBlocks
    """Blocks to train on; at least one."""
    validation: Blocks | MixedBlocks
    """Blocks of the held-out documents; none if the corpus is too small to hold one out."""
    statistics: CorpusStatistics
    """What is in it; also in `statistics.json` of its folder in the cache."""
    fingerprint: str
    """Hash of all that decides which blocks there are."""
    inputs: tuple[WeightedInput, ...] = ()
    """What is mixed; none where no weights are given."""
    folder: Path = Path()
    """Where its split is stored, unless it is mixed."""


def source_digests(paths: Sequence[str | Path], cache_dir: Path | None = None) -> dict[str, str]:
    """Hash each file and hub data set of a corpus: its name, in the order of reading -> digest.

    Args:
        paths: Files, folders and `hf://` addresses.
        cache_dir: Where the digests of large files are stored; such a file is read again only if
            it was changed since.

    Raises:
        DataError: A path does not exist or a file cannot be read.
    """
    sources = corpus_sources(paths)
    if cache_dir is None:
        return {str(source): digest(source) for source in sources}
    stored = _stored_digests(cache_dir / _DIGESTS)
    known = dict(stored)
    digests = {str(source): _known_digest(source, known) for source in sources}
    if known != stored:
        with suppress(OSError):  # the cache may be read-only
            write_json(cache_dir / _DIGESTS, known)
    return digests


def _stored_digests(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _known_digest(source: Path | HubSource, known: dict[str, Any]) -> str:
    if isinstance(source, HubSource) or source.stat().st_size < _LARGE:
        return digest(source)
    name, identity = str(source.resolve()), file_identity(source)
    if known.get(name, [None])[0] != identity:
        known[name] = [identity, digest(source)]
    return str(known[name][1])


def build_corpus(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    config: CorpusConfig,
    seed: int,
    cache_dir: str | Path,
    *,
    digests: Mapping[str, str] | None = None,
) -> Corpus:
    """Tokenize a corpus, or find it tokenized, and split it into blocks.

    Args:
        paths: Files, folders and `hf://` addresses; or each with a weight, `PATH:WEIGHT`, and
            their blocks are drawn in these proportions.
        tokenizer: Splits the documents.
        config: How they are read, split and packed.
        seed: Draws the validation documents.
        cache_dir: Where token folders are stored.
        digests: What `source_digests` gave for these paths; left out, it is asked now.

    Raises:
        DataError: A path does not exist, a file cannot be read, there is no text, or there is less
            than one block of it.
        ConfigError: A weight is not a positive number, or only some inputs have one.
    """
    weights = weights_of(paths)
    if digests is None:
        digests = source_digests(paths, Path(cache_dir))
    if weights is None:
        return _build(paths, tokenizer, config, seed, Path(cache_dir), digests)
    parts = [_build([path], tokenizer, config, seed, Path(cache_dir), digests) for path in paths]
    return _mix(paths, parts, weights, seed)


def _mix(
    paths: Sequence[str | Path], parts: Sequence[Corpus], weights: Sequence[float], seed: int
) -> Corpus:
    every = [part.statistics for part in parts]
    frequencies = [np.fromfile(part.folder / FREQUENCIES, np.int64) for part in parts]
    train = mixed([part.train for part in parts], weights, seed)
    validation = mixed_once([part.validation for part in parts], weights, seed)
    inputs = tuple(
        WeightedInput(str(path), weight, len(part.train), weight * len(train) / len(part.train))
        for path, weight, part in zip(paths, weights, parts, strict=True)
    )
    return Corpus(
        train,
        validation,
        mixed_statistics(every, frequencies, weights, (len(train), len(validation))),
        fingerprint=_hash([part.fingerprint for part in parts], list(weights)),
        inputs=inputs,
    )


def _build(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    config: CorpusConfig,
    seed: int,
    cache_dir: Path,
    digests: Mapping[str, str],
) -> Corpus:
    """Build a corpus whose inputs have no weights."""
    sources = corpus_sources(paths)
    # A file that two inputs name has one of their names.
    contents = [digests.get(str(source)) or digest(source) for source in sources]
    # Only what decides the documents: other settings need no new tokens.
    reading = [config.text_field, config.file_is_document]
    key = _hash(_FORMAT, _SHARD, contents, reading, tokenizer.fingerprint)
    folder = cache_dir / f"tokens-{key[:16]}"  # 64 bits: enough for the corpora of a disk
    local = None if config.local_dir is None else Path(config.local_dir)
    if local is not None:
        with named_by("local_dir", local):  # before hours of work
            local.mkdir(parents=True, exist_ok=True)
    with named_by("cache_dir", cache_dir):
        tokens = Tokens.open(folder) or _tokenize(sources, tokenizer, config, folder)
        _check_size(paths, tokens, config)
        corpus = _open_split(tokens, tokenizer, config, seed)
    if local is None:
        return corpus
    with named_by("local_dir", local):
        copy = copy_corpus(tokens, corpus.folder.name, local)
        return _open_split(copy, tokenizer, config, seed)


def _tokenize(
    sources: Sequence[Path | HubSource],
    tokenizer: Tokenizer,
    config: CorpusConfig,
    folder: Path,
) -> Tokens:
    field, whole = config.text_field, config.file_is_document
    shards = cut_shards(sources, _SHARD, text_field=field, file_is_document=whole)
    preparation = Preparation(folder, shards, tokenizer, field, whole)
    total = sum(map(preparation.size, preparation.missing()))
    with progress("tokenizing", total) as advance:
        return prepare(preparation, config.tokenize_workers, advance)


def _check_size(paths: Sequence[str | Path], tokens: Tokens, config: CorpusConfig) -> None:
    names = ", ".join(str(path) for path in paths)
    counts = tokens.counts
    if not counts.tokens:
        raise DataError(f"{names}: expected a corpus with text in it, got no words")
    if counts.unknown_tokens == counts.tokens:
        raise DataError(
            f"{names}: every word is unknown to the tokenizer, so there is nothing to learn: "
            f"{counts.unknown_cause}; train a tokenizer on this corpus"
        )
    length = counts.tokens + counts.documents * (FRAME - DOCUMENTS[config.documents])
    if length < config.max_length - FRAME:
        raise DataError(
            f"{names}: {counted(counts.tokens, 'token')} {are(counts.tokens)} less than one "
            f"block of max_length {config.max_length}; add text or lower max_length"
        )


def _open_split(tokens: Tokens, tokenizer: Tokenizer, config: CorpusConfig, seed: int) -> Corpus:
    split = Split(
        seed=seed,
        fraction=config.validation_fraction,
        skipped=DOCUMENTS[config.documents],
        block=config.max_length - FRAME,
    )
    key = _hash(tokens.path.name, asdict(split))
    folder = tokens.path / f"split-{key[:16]}"
    packing = Packing(config.max_length, tokenizer.cls_token_id, tokenizer.sep_token_id)
    if find_whole(folder) is None:
        with written_whole(folder) as temporary:
            threshold = choose_threshold(tokens, split)
            write_split(tokens, split, threshold, temporary)
            frequencies = count_training_tokens(tokens, split, threshold, tokenizer.vocab_size)
            frequencies[list(tokenizer.special_ids)] = 0  # never masked, so no part of the loss
            frequencies.tofile(temporary / FREQUENCIES)
            sides = [Blocks(tokens, temporary / side, packing) for side in SIDES]
            count_statistics(tokens.counts, sides, frequencies).write(temporary)
            write_manifest(temporary, asdict(split))
    train, validation = (Blocks(tokens, folder / side, packing) for side in SIDES)
    return Corpus(train, validation, CorpusStatistics.read(folder), key, folder=folder)


@contextmanager
def progress(name: str, total: int) -> Iterator[Advance]:
    """Show a bar with rate and time left on stderr while the block runs; none if no terminal.

    Args:
        name: What is done.
        total: Bytes of the corpus files; 0 if that is not known.

    Yields:
        A function that takes how many bytes more have been read.
    """
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total or None)
        yield lambda count: bar.advance(task, count)


def _hash(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
