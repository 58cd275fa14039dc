"""Which documents are held out for validation, and the split's order as index files.

A document's side is a hash of (seed, its text): it does not change when other documents are added
or the files are renamed, and copies of a text are never on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from finetune.text.corpus.counter_rng import random_bits, uniform
from finetune.text.corpus.shards import Tokens

SIDES = ("train", "validation")


@dataclass(frozen=True)
class Split:
    """How the documents are to be divided."""

    seed: int
    """Draws the held-out documents."""
    fraction: float
    """Fraction of the documents that is held out, 0 to below 1."""
    skipped: int
    """Leading tokens of a stored document that its stream leaves out: 1 (`[CLS]`) for joined
    documents, 0 for separate ones."""
    block: int
    """Tokens of the stream that fill a block."""


def write_split(tokens: Tokens, split: Split, threshold: float, folder: Path) -> None:
    """Write `SIDE.sources` and `SIDE.starts` for both sides; see `packing.Blocks`.

    Args:
        tokens: The documents.
        split: How to divide them.
        threshold: From `choose_threshold`.
        folder: Where the four files go.
    """
    with ExitStack() as stack:
        sides = [_IndexWriter(folder / side, stack) for side in SIDES]
        for bounds, held_out in _sides(tokens, split.seed, threshold):
            for side, chosen in zip(sides, (~held_out, held_out), strict=True):
                side.add(bounds[:-1][chosen] + split.skipped, bounds[1:][chosen])


class _IndexWriter:
    """Appends documents to the index files of one side."""

    def __init__(self, index: Path, stack: ExitStack) -> None:
        self.sources: BinaryIO = stack.enter_context(index.with_suffix(".sources").open("wb"))
        self.starts: BinaryIO = stack.enter_context(index.with_suffix(".starts").open("wb"))
        self.length = 0
        self.starts.write(np.int64(0).tobytes())

    def add(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.sources.write(begins.tobytes())
        stops = self.length + np.cumsum(ends - begins)
        self.starts.write(stops.tobytes())
        self.length = int(stops[-1]) if len(stops) else self.length


def _sides(
    tokens: Tokens, seed: int, threshold: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    for bounds, digests in tokens.document_slices():
        yield bounds, _draws(seed, digests) < threshold


def _draws(seed: int, digests: NDArray[np.uint64]) -> NDArray[np.float64]:
    return uniform(random_bits(seed, digests))


def choose_threshold(tokens: Tokens, split: Split) -> float:
    """Find the number below which a document's draw puts it on the validation side.

    That is the fraction itself, unless a side would then have less than a block. Then just enough
    documents are held out for one block; and none, where training would be left without a block.

    Args:
        tokens: The documents.
        split: How to divide them.
    """
    total = held_out = 0
    for bounds, digests in tokens.document_slices():
        lengths = np.diff(bounds) - split.skipped
        total += int(lengths.sum())
        held_out += int(lengths[_draws(split.seed, digests) < split.fraction].sum())
    if split.fraction == 0:
        return 0.0
    if held_out >= split.block and total - held_out >= split.block:
        return split.fraction
    return _smallest_threshold(tokens, split, total)


def _smallest_threshold(tokens: Tokens, split: Split, total: int) -> float:
    slices = [
        (_draws(split.seed, digests), np.diff(bounds) - split.skipped)
        for bounds, digests in tokens.document_slices()
    ]
    draws, lengths = (np.concatenate(arrays) for arrays in zip(*slices, strict=True))
    order = np.argsort(draws)  # the smallest draws are held out first, whatever the fraction
    held_out = np.cumsum(lengths[order])
    last = int(np.searchsorted(held_out, split.block))
    if last >= len(order):
        return 0.0
    # Just above: what is held out is drawn below the threshold, and copies draw alike.
    threshold = float(np.nextafter(draws[order[last]], 1.0))
    training = total - int(lengths[draws < threshold].sum())
    return threshold if training >= split.block else 0.0


def count_training_tokens(
    tokens: Tokens, split: Split, threshold: float, vocab_size: int
) -> NDArray[np.int64]:
    """Count how often each token occurs in the training documents.

    Args:
        tokens: The documents.
        split: How they are divided.
        threshold: From `choose_threshold`.
        vocab_size: V.

    Returns:
        Counts, int64 (V,), those of the documents' `[CLS]` and `[SEP]` included.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for bounds, held_out in _sides(tokens, split.seed, threshold):
        for first, ids in tokens.id_slices(int(bounds[0]), int(bounds[-1])):
            clipped = np.clip(bounds, first, first + len(ids))
            inside = clipped[1:] - clipped[:-1]  # ids of this slice in each document
            counts += np.bincount(ids[~np.repeat(held_out, inside)], minlength=vocab_size)
    return counts
