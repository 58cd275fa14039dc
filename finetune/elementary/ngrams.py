"""An n-gram language model: interpolated modified Kneser-Ney (Chen and Goodman, 1999, section 3).

It stands beside a causal encoder, which predicts the same tokens from those before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ORDER = 4
"""Tokens of an n-gram at most; fewer where the vocabulary is so large that 63 bits are too few."""
MOST_TOKENS = 20_000_000
"""Training tokens at most: gigabytes and seconds stay few."""
USUAL = (0.5, 1.0, 1.5)
"""Discounts where there are too few n-grams to estimate them."""


class _Level(NamedTuple):
    """The n-grams of one length n, their last token predicted from the n - 1 before it."""

    keys: Ints
    """The n-grams, ascending (G,)."""
    discounted: Floats
    """Count of each less its discount (G,)."""
    contexts: Ints
    """What the last token is predicted from, ascending (H,)."""
    totals: Floats
    """Sum of the counts after each context (H,)."""
    left: Floats
    """Sum of the discounts after each context, which goes to the shorter n-grams (H,)."""


class NGrams:
    """Probabilities of tokens given those before them in their block.

    >>> import numpy as np
    >>> from finetune.elementary.ngrams import NGrams
    >>> model = NGrams(np.array([[0, 1, 2, 1, 2, 3]]), vocab_size=4)
    >>> float(np.exp(model.log_probabilities(np.array([[0, 1, 2]]))[0, 1])) > 0.5
    True
    """

    def __init__(self, blocks: npt.NDArray[Any], vocab_size: int, order: int = ORDER) -> None:
        """Count the n-grams of training blocks.

        Args:
            blocks: Token ids (B, T); no n-gram crosses the end of a block.
            vocab_size: V.
            order: Tokens of the longest n-gram, at least 1.
        """
        while vocab_size**order >= 2**63:
            order -= 1
        self.vocab_size = vocab_size
        blocks = np.asarray(blocks, dtype=np.int64)
        keys, counts = np.unique(self._windows(blocks, order), return_counts=True)
        levels = [_level(keys, counts, vocab_size)]
        for length in range(order - 1, 0, -1):
            # How many different tokens are before it; a block's first n-gram has none there, and
            # keeps its count, but a first token is never predicted.
            first = self._windows(blocks[:, :length], length) if length > 1 else keys[:0]
            keys, counts = np.unique(
                np.concatenate([keys % vocab_size**length, first]), return_counts=True
            )
            levels.append(_level(keys, counts, vocab_size))
        self._levels = levels[::-1]  # the shortest first

    def _windows(self, blocks: Ints, length: int) -> Ints:
        """Each n-gram as one number, block after block."""
        width = blocks.shape[1] - length + 1
        parts = [blocks[:, place : place + width] for place in range(length)]
        keys = parts[0]
        for part in parts[1:]:
            keys = keys * self.vocab_size + part
        return keys.reshape(-1)

    def log_probabilities(self, blocks: npt.NDArray[Any]) -> Floats:
        """Natural logarithm of the probability of each token but the first of a block.

        Args:
            blocks: Token ids (B, T).

        Returns:
            (B, T - 1).
        """
        blocks = np.asarray(blocks, dtype=np.int64)
        probabilities = np.full((len(blocks), blocks.shape[1] - 1), 1 / self.vocab_size)
        for length, level in enumerate(self._levels, start=1):
            skipped = max(0, length - 2)  # predictions with too few tokens before them
            keys = self._windows(blocks[:, 1:] if length == 1 else blocks, length)
            known = probabilities[:, skipped:]
            known[:] = _interpolated(level, keys, self.vocab_size, known.reshape(-1)).reshape(
                known.shape
            )
        return np.asarray(np.log(probabilities))


def _level(keys: Ints, counts: Ints, vocab_size: int) -> _Level:
    discounts = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]
    contexts, starts = np.unique(keys // vocab_size, return_index=True)
    totals, left = (np.add.reduceat(one, starts) for one in (counts.astype(float), discounts))
    return _Level(keys, counts - discounts, contexts, totals, left)


def _discounts(counts: Ints) -> tuple[float, float, float]:
    """What is taken from counts of 1, 2, and 3 or more (equation 17)."""
    n1, n2, n3, n4 = (int((counts == size).sum()) for size in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return USUAL
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    # Small corpora can give discounts that are no part of their count.
    is_part = all(0 <= one <= size for size, one in enumerate(found, start=1))
    return found if is_part else USUAL


def _interpolated(level: _Level, keys: Ints, vocab_size: int, shorter: Floats) -> Floats:
    """Probabilities of n-grams, mixed with those of the shorter ones; these where it is unseen."""
    place, is_known = _found(level.contexts, keys // vocab_size)
    total = np.where(is_known, level.totals[place], 1.0)
    left = np.where(is_known, level.left[place], 1.0)
    gram, is_seen = _found(level.keys, keys)
    seen = np.where(is_seen, level.discounted[gram], 0.0)
    return np.asarray((seen + left * shorter) / total)


def _found(ascending: Ints, wanted: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Where the wanted numbers are, and whether they are there."""
    place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return place, ascending[place] == wanted
