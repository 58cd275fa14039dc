"""Which sequences belong together: those of an example, and those that a head reads for one output.

A *unit* is what one output of the head belongs to: an example or a window of one, with as many
sequences as a question has options; or, where windows are read together, all windows of an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finetune.text.features.pairs import Features

Indices = NDArray[np.int64]


def examples_of(features: Sequence[Features], rows: int) -> Iterator[tuple[int, Features]]:
    """Each sequence with the number of its example.

    Args:
        features: All sequences, those of an example together.
        rows: Sequences that are read side by side: the options of a question, or 1.
    """
    for number, feature in enumerate(features):
        yield (number // rows if feature.example is None else feature.example), feature


@dataclass(frozen=True)
class Units:
    """The sequences of each unit, which are numbered one after the other."""

    starts: Indices
    """First sequence of each unit, and how many sequences there are in all (U + 1,)."""
    uneven: bool
    """Whether units may have different numbers of sequences."""

    @classmethod
    def of(cls, features: Sequence[Features], rows: int, *, together: bool = False) -> Units:
        """Find the units of some sequences.

        Args:
            features: All sequences, those of an example together.
            rows: R, the sequences that are read side by side.
            together: The windows of an example are one unit.
        """
        if not together:
            return cls(np.arange(0, len(features) + 1, rows), False)
        owners = np.array([number for number, _ in examples_of(features, rows)], dtype=np.int64)
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(np.append(begins, len(features)), True)

    def __len__(self) -> int:
        """U, the number of units."""
        return len(self.starts) - 1

    def rows(self, units: Indices) -> Indices:
        """Numbers of the sequences of some units, in order, (B,) -> (S,)."""
        starts, ends = self.starts[units], self.starts[units + 1]
        if len(units) and not self.uneven:
            return np.asarray((starts[:, None] + np.arange(ends[0] - starts[0])).reshape(-1))
        ranges = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        return np.concatenate([np.empty(0, dtype=np.int64), *ranges])

    def sizes(self, lengths: Indices) -> Indices:
        """How long each unit takes, to sort by: the tokens of its longest sequence, or of all.

        Args:
            lengths: Tokens of each sequence.

        Returns:
            (U,).
        """
        if not len(self):
            return np.empty(0, dtype=np.int64)
        add = np.add if self.uneven else np.maximum
        return np.asarray(add.reduceat(lengths, self.starts[:-1]))
