"""Random numbers by counter: each is a hash of its own coordinates, not of those drawn before it.

So the numbers of a block of text depend on nothing but (seed, epoch, block), whatever the order,
the batch or the worker (the idea of Salmon et al., 2011; the hash is SplitMix64 of Steele, Lea and
Flood, 2014).
"""

from __future__ import annotations

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
