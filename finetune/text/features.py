"""Examples as token ids with special tokens, batches of like length, and padding into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.text.parallel import tokenizer_threads
from finetune.text.tokenizer import Template, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Batch = dict[str, "Tensor"]
"""Tensors of one step, by BERT's names; see `collate`."""

# Batches whose examples are sorted by length together: more gives less padding, less chance.
_POOL_BATCHES = 100


@dataclass(slots=True)
class Features:
    """One example as the encoder takes it."""

    input_ids: list[int]
    """Token ids, special tokens included (T,)."""
    token_type_ids: list[int]
    """Segment of each token: 0 for the first text, 1 for the second (T,)."""
    label: int | float | None = None
    """Class number, or a number to predict; None if unknown."""


def encode_pairs(
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str] | None,
    max_length: int,
) -> list[Features]:
    """Encode texts or pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    What is too long loses tokens at its end, the longer text of a pair first (`longest_first`).

    Args:
        tokenizer: Splits the texts and knows its special tokens.
        firsts: N texts.
        seconds: N texts, or None.
        max_length: Tokens that an example may have, special tokens included.

    Returns:
        N features without labels.

    Raises:
        ConfigError: `max_length` leaves no room for a token of each text.
    """
    template = tokenizer.template(pair=seconds is not None)
    room = max_length - template.size
    if room < (1 if seconds is None else 2):
        raise ConfigError(
            f"max_length {max_length} leaves no room for text beside {template.size} special tokens"
        )
    with tokenizer_threads():
        first_ids = tokenizer.encode_ids(firsts)
        if seconds is None:
            return [_single(ids[:room], template) for ids in first_ids]
        second_ids = tokenizer.encode_ids(seconds)
    return [_pair(a, b, room, template) for a, b in zip(first_ids, second_ids, strict=True)]


def _single(ids: list[int], template: Template) -> Features:
    input_ids = [*template.prefix, *ids, *template.suffix]
    return Features(input_ids, [0] * len(input_ids))


def _pair(first: list[int], second: list[int], room: int, template: Template) -> Features:
    kept_first, kept_second = longest_first(len(first), len(second), room)
    before = [*template.prefix, *first[:kept_first], *template.middle]
    after = [*second[:kept_second], *template.suffix]
    return Features(before + after, [0] * len(before) + [template.second_type] * len(after))


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Say how many tokens of two texts are kept: the longer one is cut until both are as long.

    Args:
        first: Tokens of the first text.
        second: Tokens of the second text.
        room: Tokens that both may have together.

    Returns:
        Tokens kept of each; where the room is odd, the longer text (the second, if they are as
        long) keeps one more.
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    short = min(short, room // 2)
    long = room - short
    return (long, short) if first > second else (short, long)


def length_batches(
    lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int, shuffle: bool = True
) -> list[NDArray[np.int64]]:
    """Group examples of like length into batches; a pure function of its arguments.

    The examples are shuffled, cut into pools of 100 batches, sorted by length inside a pool, and
    the batches are shuffled.

    Args:
        lengths: Tokens of each example (N,).
        batch_size: Examples in a batch; one batch may have fewer.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        shuffle: False for evaluation: all sorted by length, the longest first (so that a batch
            which does not fit into memory is the first one).

    Returns:
        Numbers of the examples of each batch; each example is in one batch.
    """
    count = len(lengths)
    if not shuffle:
        return _cut(np.argsort(-np.asarray(lengths), kind="stable"), batch_size)
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(count)
    batches = [
        batch
        for pool in _cut(order, batch_size * _POOL_BATCHES)
        for batch in _cut(pool[np.argsort(lengths[pool], kind="stable")], batch_size)
    ]
    return [batches[place] for place in generator.permutation(len(batches))]


def _cut(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def padding_share(
    lengths: NDArray[np.int64], batches: Sequence[NDArray[np.int64]], multiple: int = 1
) -> float:
    """Say how much of the batches is padding.

    Args:
        lengths: Tokens of each example (N,).
        batches: Numbers of the examples of each batch.
        multiple: Batches are padded to a multiple of this.

    Returns:
        Padding tokens over all tokens, 0 to below 1.
    """
    real = sum(int(lengths[batch].sum()) for batch in batches)
    padded = sum(len(batch) * _round_up(int(lengths[batch].max()), multiple) for batch in batches)
    return 1 - real / padded if padded else 0.0


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def collate(
    features: Sequence[Features],
    indices: Sequence[int] | NDArray[np.int64],
    pad_token_id: int,
    multiple: int = 1,
) -> Batch:
    """Pad examples into one batch of tensors.

    Args:
        features: All examples (N of them).
        indices: Numbers of the examples of this batch (B,).
        pad_token_id: Fills the rows.
        multiple: Round T, the length of the longest row, up to a multiple of this.

    Returns:
        `index` int64 (B,): the examples' numbers;
        `input_ids` int64 (B, T);
        `token_type_ids` int64 (B, T);
        `attention_mask` bool (B, T), True = may be attended to; left out where no row is padded,
        because the encoder is fastest without a mask;
        `labels` int64 or float32 (B,), left out where the examples have none.
    """
    import torch

    rows = [features[index] for index in indices]
    lengths = np.array([len(row.input_ids) for row in rows])
    filled = np.arange(_round_up(int(lengths.max()), multiple)) < lengths[:, None]  # (B, T)
    batch = {
        "index": torch.as_tensor(np.asarray(indices, dtype=np.int64)),
        "input_ids": _fill([row.input_ids for row in rows], filled, pad_token_id),
        "token_type_ids": _fill([row.token_type_ids for row in rows], filled, 0),
    }
    if not filled.all():
        batch["attention_mask"] = torch.from_numpy(filled)
    if rows[0].label is not None:
        batch["labels"] = torch.tensor([row.label for row in rows])
    return batch


def _fill(rows: Sequence[Sequence[int]], filled: NDArray[np.bool_], padding: int) -> Tensor:
    import torch

    padded = np.full(filled.shape, padding, dtype=np.int64)
    padded[filled] = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
    return torch.from_numpy(padded)
