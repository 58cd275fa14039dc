"""The sliding window: the option whose words lie closest together in the passage; no training.

The algorithm of Richardson et al. (2013, section 4.1), as Lai et al. (2017, section 4) apply it to
RACE: the words of the question and an option are looked for in each window of the passage, a rare
word of the passage counts more. In place of one length of a window the best matches of all lengths
are summed (after Smith et al., 2015), so that none has to be chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from finetune.elementary.bags import words
from finetune.task.interface import Example, Outputs

LENGTHS = range(2, 31)
"""Words of a window."""


def sliding_window(examples: Sequence[Example], names: Sequence[str]) -> Outputs:
    """Score the options of each question by the best windows of its passage.

    Args:
        examples: N examples: a passage, a question and C options, or fewer.
        names: The letters of the options in the order of the outputs; an example has its options
            in the order of the alphabet.

    Returns:
        (N, C).
    """
    positions = [2 + sorted(names).index(name) for name in names]
    weighted = lru_cache(maxsize=8)(_weighted)  # the questions of a passage stand together

    def scores(texts: Sequence[str]) -> list[float]:
        passage, question = weighted(texts[0]), set(words(texts[1]))
        return [
            _match(passage, question.union(words(texts[one]))) if one < len(texts) else 0.0
            for one in positions  # an example may have fewer options than others
        ]

    return np.array([scores(example.texts) for example in examples])


def _weighted(passage: str) -> list[tuple[str, float]]:
    """The words of a passage in order, each with log(1 + 1 / its count there)."""
    found = words(passage)
    weights = {word: math.log(1 + 1 / count) for word, count in Counter(found).items()}
    return [(word, weights[word]) for word in found]


def _match(passage: Sequence[tuple[str, float]], wanted: AbstractSet[str]) -> float:
    """The sum over the lengths of a window of the most that one of them has of the wanted words."""
    weights = [weight if word in wanted else 0.0 for word, weight in passage]
    sums = np.concatenate([[0.0], np.cumsum(weights)])  # (words + 1,)
    return sum(_best(sums, length) for length in LENGTHS)


def _best(sums: npt.NDArray[np.float64], length: int) -> float:
    length = min(length, len(sums) - 1)
    return float((sums[length:] - sums[: len(sums) - length]).max())
