"""Random numbers by counter: each is a hash of its own coordinates, not of those drawn before it.

So the numbers of a block of text depend on nothing but (seed, epoch, block), whatever the order,
the batch or the worker (the idea of Salmon et al., 2011; the hash is SplitMix64 of Steele, Lea and
Flood, 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The golden ratio times 2**64 and the two multipliers of SplitMix64's finalizer.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit numbers, one to one.

    Args:
        values: Any numbers, uint64, any shape.

    Returns:
        Numbers in which every bit depends on every bit of the argument, uint64, the same shape.
    """
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)


def random_bits(*coordinates: ArrayLike) -> NDArray[np.uint64]:
    """Draw 64 random bits for each tuple of coordinates.

    Args:
        coordinates: Integers or arrays of integers that broadcast together.

    Returns:
        Bits, uint64, of the broadcast shape.
    """
    state = np.zeros(1, dtype=np.uint64)
    for coordinate in coordinates:
        # Mixed after each, so that (1, 2) and (2, 1) are different places.
        state = mix(state ^ np.atleast_1d(np.asarray(coordinate)).astype(np.uint64))
    return state


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn random bits into numbers of [0, 1).

    Args:
        bits: Random bits, uint64, any shape.

    Returns:
        The upper 53 bits as a fraction, float64, the same shape.
    """
    # 53 bits are what a float64 stores exactly: one more could round up to 1.
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def permuted(indices: NDArray[np.int64], length: int, *key: ArrayLike) -> NDArray[np.int64]:
    """Look numbers up in a random permutation that is computed and not stored.

    A Feistel network of four rounds permutes the numbers below a power of four; what falls on
    `length` or above goes through it again (cycle walking: Black and Rogaway, 2002, section 3).

    Args:
        indices: Numbers from 0 to `length - 1`, int64 (N,).
        length: What is permuted: 0 to `length - 1`.
        key: Integers, or arrays (N,) of integers, that choose the permutation.

    Returns:
        Where each number goes, int64 (N,).
    """
    half = np.uint64(max(1, (max(1, length - 1).bit_length() + 1) // 2))
    keys = np.broadcast_to(random_bits(*key), indices.shape)
    values = _feistel(indices.astype(np.uint64), half, keys)
    while (outside := values >= length).any():
        values[outside] = _feistel(values[outside], half, keys[outside])
    return values.astype(np.int64)


def _feistel(
    values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(4):
        left, right = right, left ^ (mix(mix(keys + np.uint64(number)) ^ right) & mask)
    return np.asarray((left << half) | right, dtype=np.uint64)


@dataclass(frozen=True)
class PermutedBatches(Sequence[NDArray[np.int64]]):
    """The batches of an epoch, in an order that is computed and not stored.

    The order is a function of the key and of a block's place, so it takes no memory however many
    blocks there are.
    """

    blocks: int
    """Blocks of the epoch."""
    batch_size: int
    """Blocks of a batch; the last one may be shorter."""
    key: int
    """Chooses the order."""
    behind: int = 0
    """Batches that are left out at the beginning."""

    def __len__(self) -> int:
        """Number of batches."""
        return max(0, -(-self.blocks // self.batch_size) - self.behind)

    @overload
    def __getitem__(self, index: int) -> NDArray[np.int64]: ...
    @overload
    def __getitem__(self, index: slice) -> PermutedBatches: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.int64] | PermutedBatches:
        """The blocks of a batch, or the batches from one on."""
        if isinstance(index, slice):
            return replace(self, behind=self.behind + range(len(self))[index].start)
        start = (self.behind + range(len(self))[index]) * self.batch_size
        places = np.arange(start, min(start + self.batch_size, self.blocks))
        return permuted(places, self.blocks, self.key)
