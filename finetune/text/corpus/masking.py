"""Which tokens are masked and what replaces them (Devlin et al., 2019, section 3.1).

Tokens, whole words and spans are masked by one rule: every word has a random priority, and words
are taken by priority until the budget is spent. In token masking each token is a word. In span
masking (Joshi et al., 2020, SpanBERT, section 3.1) each word begins a span of geometric length and
passes its priority to the words of the span.

Eight tokens, masked by whole words at a rate of 0.5. Six of them may be masked, so the budget is 3:

    token     [CLS]   the kitten   ##s  play   all   day [SEP]
    id            2    11     12    13    14    15    16     3
    priority         0.80   0.06        0.24  0.10  0.75        lowest first: kitten ##s, all
    draw                    0.41  0.11        0.84              < 0.8: [MASK]; < 0.9: random id
    result        2    11      4     4    14    13    16     3
    label      -100  -100     12    13  -100    15  -100  -100

>>> import numpy as np
>>> ids, labels = mask_blocks(
...     np.array([[2, 11, 12, 13, 14, 15, 16, 3]]),
...     np.array([[True, True, True, False, True, True, True, True]]),
...     MaskingConfig(masking="word", mask_rate=0.5),
...     seed=34, epoch=0, block_indices=[0],
...     vocab_size=20, mask_token_id=4, special_ids=frozenset(range(5)),
... )
>>> ids.tolist()
[[2, 11, 4, 4, 14, 13, 16, 3]]
>>> labels.tolist()
[[-100, -100, 12, 13, -100, 15, -100, -100]]

These are pure functions. All random numbers come from a hash of (seed, epoch, block index,
position), so the masks of a block are the same in any batch, order, worker or rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.ranges import MOST_TOKENS, check_values, within
from finetune.text.corpus.counter_rng import mix, random_bits, uniform
from finetune.text.features.pairs import IGNORED

MASKING = ("token", "word", "span")
MASKS = ("dynamic", "static")
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)
# Which number of a position is drawn; a name each, so that the draws are independent.
_PRIORITY, _SPAN_LENGTH, _ROUNDING, _REPLACEMENT, _RANDOM_TOKEN = range(5)


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are masked, and what replaces them.

    >>> from finetune import MaskingConfig, PretrainRun
    >>> run = PretrainRun(["data/corpus.txt"], "runs/a", masks=MaskingConfig("span"))
    >>> run.masks.mask_rate
    0.15
    """

    masking: str = field(default="token", metadata={"words": MASKING})
    """Unit that is masked as a whole: token, word or span."""
    mask_rate: float = within(0, 1, above=True, default=0.15)
    """Fraction of the tokens that are masked, in (0, 1]."""
    replace_mask_share: float = within(0, 1, default=0.8)
    """Fraction of the masked tokens that become [MASK], in [0, 1]."""
    replace_random_share: float = within(0, 1, default=0.1)
    """Fraction of the masked tokens that become a random token; the rest are unchanged."""
    masks: str = field(default="dynamic", metadata={"words": MASKS})
    """dynamic: new masks in each epoch; static: the same masks in all epochs."""
    span_geometric_p: float = within(0, 1, above=True, default=0.2)
    """Span masking: probability that a span ends after each of its words, in (0, 1]."""
    span_max: int = within(1, MOST_TOKENS, default=10)
    """Span masking: longest span, in words."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: A name is unknown or a number out of its range.
        """
        check_values(self)
        fractions = (self.replace_mask_share, self.replace_random_share)
        if sum(fractions) > 1:
            raise ConfigError(
                "replace_mask_share and replace_random_share must together be at most 1, got "
                f"{fractions[0]} and {fractions[1]}"
            )


class BlockRandom(NamedTuple):
    """Where the random numbers of some blocks come from."""

    seed: int
    """Seed of the run."""
    epoch: int
    """Epoch, from 0."""
    block_indices: NDArray[np.int64]
    """Number of each block in its split, int64 (B,)."""

    def bits(self, draw: int, length: int) -> NDArray[np.uint64]:
        """Draw 64 bits for each position of the blocks, uint64 (B, length)."""
        return random_bits(
            self.seed, self.epoch, self.block_indices[:, None], draw, np.arange(length)[None]
        )


def mask_blocks(
    input_ids: NDArray[np.int64],
    word_starts: NDArray[np.bool_],
    config: MaskingConfig,
    *,
    seed: int,
    epoch: int,
    block_indices: Sequence[int] | NDArray[np.int64],
    vocab_size: int,
    mask_token_id: int,
    special_ids: frozenset[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask blocks of token ids.

    Args:
        input_ids: Token ids, int64 (B, T).
        word_starts: True where a token starts a word, bool (B, T).
        config: What and how much to mask.
        seed: Seed of the run.
        epoch: Epoch, from 0; without effect if masks are static.
        block_indices: Number of each block in its split (B,).
        vocab_size: V.
        mask_token_id: Id of `[MASK]`.
        special_ids: Ids that are neither masked nor put in at random.

    Returns:
        The ids with masked tokens replaced, and the labels: the original id where a token is
        masked, -100 elsewhere; both int64 (B, T).
    """
    random = BlockRandom(seed, epoch if config.masks == "dynamic" else 0, np.asarray(block_indices))
    special, ordinary = _vocabulary(vocab_size, special_ids)
    maskable = ~special[input_ids]
    chosen, draw = choose_tokens(maskable, word_starts, config, random)
    labels = np.where(chosen, input_ids, IGNORED)
    random_ids = ordinary[
        _random_indices(random.bits(_RANDOM_TOKEN, input_ids.shape[1]), len(ordinary))
    ]
    fraction = uniform(draw)  # one draw decides between three: they cannot overlap
    keep_or_random = np.where(
        fraction < config.replace_mask_share + config.replace_random_share, random_ids, input_ids
    )
    replaced = np.where(fraction < config.replace_mask_share, mask_token_id, keep_or_random)
    return np.where(chosen, replaced, input_ids), labels


@lru_cache(maxsize=8)  # V numbers, the same for every batch
def _vocabulary(
    vocab_size: int, special_ids: frozenset[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which ids are special, bool (V,), and the others, int64."""
    special = np.zeros(vocab_size, dtype=np.bool_)
    special[list(special_ids)] = True
    return special, np.flatnonzero(~special)


def _random_indices(bits: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    return np.asarray(uniform(bits) * limit, dtype=np.int64)


def choose_tokens(
    maskable: NDArray[np.bool_],
    word_starts: NDArray[np.bool_],
    config: MaskingConfig,
    random: BlockRandom,
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Choose the tokens to mask, by whole words; on average the rate, and at least one.

    Args:
        maskable: True where a token may be masked, bool (B, T).
        word_starts: True where a token starts a word, bool (B, T).
        config: What and how much to mask.
        random: Where chance comes from.

    Returns:
        True where a token is masked, bool (B, T), and the bits that decide what replaces each
        token, uint64 (B, T): in span masking the same for a whole span, as in SpanBERT.
    """
    length = maskable.shape[1]
    words = _number_words(maskable, word_starts, config.masking)
    sizes = _word_sizes(maskable, words)
    budget = config.mask_rate * maskable.sum(axis=1)  # (B,), not whole numbers: rounded by chance
    priority = np.where(sizes > 0, random.bits(_PRIORITY, length), _NEVER)
    draw = random.bits(_REPLACEMENT, length)
    if config.masking == "span":
        priority = _priority_of_spans(priority, _span_lengths(config, random, length))
        # Mixed, because the priority of a word that was chosen is low: it would always be [MASK].
        draw = np.take_along_axis(mix(priority), words, axis=1)
    taken = _words_within_budget(priority, sizes, budget, uniform(random.bits(_ROUNDING, 1))[:, 0])
    return np.take_along_axis(taken, words, axis=1) & maskable, draw


def _number_words(
    maskable: NDArray[np.bool_], word_starts: NDArray[np.bool_], masking: str
) -> NDArray[np.int64]:
    """Number the words of each block; a special token is a word of its own, int64 (B, T)."""
    if masking == "token":
        return np.broadcast_to(np.arange(maskable.shape[1]), maskable.shape)
    starts = word_starts | ~maskable
    starts[:, 1:] |= ~maskable[:, :-1]  # behind a special token a word begins, even a cut one
    starts[:, 0] = True
    return np.cumsum(starts, axis=1) - 1


def _word_sizes(maskable: NDArray[np.bool_], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the maskable tokens of each word, 0 beyond the last word, int64 (B, T)."""
    rows, length = words.shape
    flat = words + np.arange(rows)[:, None] * length
    return np.bincount(flat[maskable], minlength=rows * length).reshape(rows, length)


def _words_within_budget(
    priority: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    budget: NDArray[np.float64],
    rounding: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Take words by rising priority until the budget is spent, at least one.

    The word that crosses the budget is taken if its middle is within, and the budget is rounded
    up or down by chance, so that the mean is right. A word longer than the whole budget is taken
    only if there is no shorter one.

    Args:
        priority: Priority of each word, uint64 (B, W).
        sizes: Tokens of each word, 0 for no word, int64 (B, W).
        budget: Tokens to take in each block (B,).
        rounding: Random numbers of [0, 1) (B,).

    Returns:
        True for the words taken, bool (B, W).
    """
    too_long = sizes > np.maximum(1, np.rint(budget))[:, None]
    # The top bit puts what is too long behind all else; the lowest bit of chance is lost.
    rank = (priority >> np.uint64(1)) | (too_long.astype(np.uint64) << np.uint64(63))
    order = np.argsort(rank, axis=1, kind="stable")  # words of a span tie, and stay in their order
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    # rounding - 0.5 is 0 on average: a budget of 2.3 takes 3 one-token words in 3 of 10 blocks.
    within = before + ordered / 2 <= (budget + rounding - 0.5)[:, None]
    taken: NDArray[np.bool_] = np.empty_like(within)
    np.put_along_axis(taken, order, (within | (before == 0)) & (ordered > 0), axis=1)
    return taken


def _span_lengths(config: MaskingConfig, random: BlockRandom, length: int) -> NDArray[np.int64]:
    """Draw the words of the span that begins at each word: geometric, cut at the longest."""
    lengths = np.arange(1, config.span_max + 1)
    weights = config.span_geometric_p * (1 - config.span_geometric_p) ** (lengths - 1)
    thresholds = np.cumsum(weights / weights.sum())[:-1]
    return np.searchsorted(thresholds, uniform(random.bits(_SPAN_LENGTH, length)), side="right") + 1


def _priority_of_spans(
    priority: NDArray[np.uint64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Give each word the best priority of all spans that cover it.

    Args:
        priority: Priority of the span that begins at each word, uint64 (B, W); the highest number
            where there is no word to mask, and no span goes across that.
        lengths: Words in it, int64 (B, W).

    Returns:
        Priority of each word, uint64 (B, W); the same number for the words of a span.
    """
    best, carried = priority.copy(), priority
    masked = priority != _NEVER
    for step in range(1, int(lengths.max(initial=1))):
        reaches = (lengths[:, :-step] > step) & masked[:, step:]
        carried = np.where(reaches, carried[:, :-1], _NEVER)
        np.minimum(best[:, step:], carried, out=best[:, step:])
    return best
