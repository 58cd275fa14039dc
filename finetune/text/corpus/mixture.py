"""Several corpora drawn with weights, such as 70 % of one and 30 % of another.

Which block stands at a place of the training is a function of the place alone: the pattern of the
weights says which corpus, and a permutation keyed by (seed, corpus, pass) which of its blocks. So
every block of a corpus is read once before one is read again, and a run goes on exactly where it
stopped, whatever the number of processes. No table grows with the corpora.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.text.corpus.counter_rng import permuted
from finetune.text.corpus.packing import Block, Blocks, Packing
from finetune.text.corpus.sources import split_weight

ROUND = 1 << 14
"""Places after which the pattern of the weights begins again: the precision of a weight."""


def weights_of(names: Sequence[str | Path]) -> list[float] | None:
    """The weights of a corpus's inputs, which sum to 1; None if they have none.

    Args:
        names: `PATH` or `PATH:WEIGHT` of each input.

    Raises:
        ConfigError: A weight is not a positive number, is too small beside the others, or only some
            inputs have one.
    """
    weights = [split_weight(str(name))[1] for name in names]
    given = [weight for weight in weights if weight is not None]
    if not given:
        return None
    if len(given) < len(weights):
        without = names[weights.index(None)]
        raise ConfigError(
            f"corpus: expected a weight for every input or for none, got none for '{without}'; "
            f"add one, such as '{without}:1'"
        )
    total = sum(given)
    for name, weight in zip(names, given, strict=True):
        if weight / total * ROUND < 1:
            raise ConfigError(
                f"corpus: expected weights of at least 1/{ROUND} of their sum, got '{name}' in a "
                f"sum of {total:g}; leave this input out"
            )
    return [weight / total for weight in given]


def pattern(weights: Sequence[float]) -> NDArray[np.int64]:
    """Which input each place of a round is drawn from, evenly spread.

    Args:
        weights: Of N inputs; they sum to 1.

    Returns:
        Numbers from 0 to N - 1, int64 (ROUND,), each as often as its weight says.
    """
    exact = np.asarray(weights) * ROUND
    counts = np.floor(exact).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: ROUND - counts.sum()]
    counts[largest] += 1
    owners = np.repeat(np.arange(len(counts)), counts)
    # The places of each input are evenly spaced; where two meet, the first input goes first.
    wanted = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return owners[np.argsort(wanted, kind="stable")]


@dataclass(frozen=True)
class MixedBlocks:
    """Blocks of several corpora in the proportions of their weights, as a sequence.

    An epoch has as many blocks as all corpora together. It begins where the one before ended.
    """

    parts: tuple[Blocks | MixedBlocks, ...]
    """The blocks of each corpus."""
    weights: tuple[float, ...]
    """Fraction of the drawn blocks that are of each; they sum to 1."""
    seed: int
    """Keys the order in which the blocks of a corpus are drawn."""
    length: int
    """Blocks of an epoch."""
    epoch: int = field(default=0, kw_only=True)
    """Which epoch this is."""

    def of_epoch(self, epoch: int) -> MixedBlocks:
        """The blocks of an epoch."""
        return replace(self, epoch=epoch)

    @property
    def packing(self) -> Packing:
        """How the blocks are put together."""
        return self.parts[0].packing

    @property
    def documents(self) -> int:
        """Number of documents in all corpora."""
        return sum(part.documents for part in self.parts)

    def __len__(self) -> int:
        """Number of blocks of an epoch."""
        return self.length

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks of the epoch in the order of their numbers."""
        return (self.block(index) for index in range(len(self)))

    def block(self, index: int) -> Block:
        """Compute one block, arrays (T,)."""
        block = self.blocks([index])
        return Block(block.input_ids[0], block.word_starts[0], block.document_ids[0])

    def blocks(self, indices: Sequence[int] | NDArray[np.int64]) -> Block:
        """Compute several blocks of the epoch at once.

        Args:
            indices: Numbers from 0 to `len(self) - 1` (B,).

        Returns:
            The blocks stacked, arrays (B, T).

        Raises:
            IndexError: A number is not from 0 to `len(self) - 1`.
            DataError: A file of the cache was cut short since it was opened.
        """
        owners, numbers = self.drawn(np.asarray(indices, dtype=np.int64))
        shape = (len(owners), self.packing.max_length)
        mixed = Block(
            np.empty(shape, np.int64), np.empty(shape, np.bool_), np.empty(shape, np.int64)
        )
        for owner in np.unique(owners):
            rows = owners == owner
            block = self.parts[owner].blocks(numbers[rows])
            for name in ("input_ids", "word_starts", "document_ids"):
                getattr(mixed, name)[rows] = getattr(block, name)
        return mixed

    def drawn(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Say which blocks stand at some places of the epoch.

        Args:
            indices: Places from 0 to `len(self) - 1`, int64 (B,).

        Returns:
            Number of the corpus, and of its block, int64 (B,) each.

        Raises:
            IndexError: A place is not from 0 to `len(self) - 1`.
        """
        if indices.size and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"blocks go from 0 to {len(self) - 1}, got {indices.tolist()}")
        owner_at, rank_at, counts = self._pattern
        rounds, places = np.divmod(indices + self.epoch * self.length, ROUND)
        owners = owner_at[places]
        draws = rounds * counts[owners] + rank_at[places]  # of the same corpus before
        numbers = np.empty_like(draws)
        for owner in np.unique(owners):
            rows = owners == owner
            length = len(self.parts[owner])
            passes, within = np.divmod(draws[rows], length)
            numbers[rows] = permuted(within, length, self.seed, owner, passes)
        return owners, numbers

    @cached_property
    def _pattern(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Corpus of each place of a round, its places before, and places of each corpus."""
        owners = pattern(self.weights)
        ranks = np.empty_like(owners)
        for owner in range(len(self.weights)):
            ranks[owners == owner] = np.arange(np.count_nonzero(owners == owner))
        return owners, ranks, np.bincount(owners, minlength=len(self.weights))


def mixed(
    parts: Sequence[Blocks | MixedBlocks], weights: Sequence[float], seed: int
) -> MixedBlocks:
    """Mix the training blocks of corpora: an epoch has as many as all of them together."""
    return MixedBlocks(tuple(parts), tuple(weights), seed, sum(map(len, parts)))


def mixed_once(
    parts: Sequence[Blocks | MixedBlocks], weights: Sequence[float], seed: int
) -> MixedBlocks:
    """Mix the held-out blocks of corpora, as many as there are without reading one twice."""
    counts = np.bincount(pattern(weights), minlength=len(parts))
    lengths = np.array([len(part) for part in parts])
    rounds = int((lengths // counts).min())
    rest = _places_until(pattern(weights), lengths - rounds * counts)
    return MixedBlocks(tuple(parts), tuple(weights), seed, rounds * ROUND + rest)


def _places_until(owners: NDArray[np.int64], lengths: NDArray[np.int64]) -> int:
    """Places of a pattern before the first one whose input has no block left."""
    ends = [
        places[length] if length < len(places := np.flatnonzero(owners == owner)) else len(owners)
        for owner, length in enumerate(lengths)
    ]
    return int(min(ends))
