"""Examples as token ids with special tokens, batches of like length, and padding into tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.text.features.long_texts import CUT, LongConfig, pieces_of_pair
from finetune.text.tokenizer.tokenizer import Template, Tokenizer, tokenizer_threads

if TYPE_CHECKING:
    from torch import Tensor

Batch = dict[str, "Tensor"]
"""Tensors of one step, by BERT's names; see `collate`."""

IGNORED = -100
"""Label that the loss leaves out, as of a token that is not masked: the default of torch."""
# Batches whose examples are sorted by length together: more gives less padding, less chance.
_POOL_BATCHES = 100


Span = tuple[int, int]
Ids = Sequence[int] | NDArray[np.int32]
"""Small numbers, one a token: a list, or a view of an array of many sequences."""


@dataclass(slots=True, eq=False)
class Features:
    """One sequence as the encoder takes it: an example, a window of one, or one of its options."""

    input_ids: Ids
    """Token ids, special tokens included (T,)."""
    token_type_ids: Ids
    """Segment of each token: 0 for the first text, 1 for the second (T,)."""
    label: int | float | Span | list[float] | None = None
    """Class number; a number to predict; first and last position of an answer, (0, 0) where there
    is none and (-100, -100) where it is not to be learned; 0.0 or 1.0 for each class; None if
    unknown."""
    trimmed: int = 0
    """Tokens of its texts that did not fit and are in no sequence."""
    example: int | None = None
    """The number of its example, where an example may have several units; None: its own number."""
    context: Span | None = None
    """First position that an answer may take, and the one after the last."""
    offsets: NDArray[np.int32] | None = None
    """Start and end character in the context of each position in `context` (n, 2)."""
    target: Ids | None = None
    """What is to be written, from its start token to its end token (1 + S,)."""

    def __eq__(self, other: object) -> bool:
        """Compare by value, lists and arrays of the same numbers being equal."""
        if not isinstance(other, Features):
            return NotImplemented
        arrays = zip(self._arrays(), other._arrays(), strict=True)
        return self._values() == other._values() and all(
            np.array_equal(array, other_array) for array, other_array in arrays
        )

    def _values(self) -> tuple[object, ...]:
        absent = self.offsets is None, self.target is None
        return (self.label, self.trimmed, self.example, self.context, *absent)

    def _arrays(self) -> tuple[Any, ...]:
        optional = (() if one is None else one for one in (self.offsets, self.target))
        return (self.input_ids, self.token_type_ids, *optional)


def encode_pairs(
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str] | None,
    max_length: int,
    long: LongConfig = CUT,
) -> list[Features]:
    """Encode texts or pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    What is too long loses tokens at its end, the longer text of a pair first (`longest_first`),
    unless long texts are read in another way.

    Args:
        tokenizer: Splits the texts and knows its special tokens.
        firsts: N texts.
        seconds: N texts, or None.
        max_length: Tokens that a sequence may have, special tokens included.
        long: What is read of longer texts.

    Returns:
        N features without labels; of texts in windows one for each of them, in order.

    Raises:
        ConfigError: `max_length` leaves no space for a token of each text, or for windows that
            overlap so far.
    """
    template = tokenizer.template(pair=seconds is not None)
    space = max_length - template.size
    check_space(space, max_length, template, 1 if seconds is None else 2)
    long.check_space(space if seconds is None else space - space // 2, max_length)
    with tokenizer_threads():
        first_ids = tokenizer.encode_ids(firsts)
        if seconds is None:
            pieces = [long.pieces(ids, space) for ids in first_ids]
            return in_sequences([_single(*one, template) for one in pieces], long)
        second_ids = tokenizer.encode_ids(seconds)
    both = zip(first_ids, second_ids, strict=True)
    pairs = [pieces_of_pair(a, b, space, long) for a, b in both]
    return in_sequences([_pairs(*one, template) for one in pairs], long)


def check_space(space: int, max_length: int, template: Template, least: int) -> None:
    """Refuse sequences without space for the tokens of a text.

    Raises:
        ConfigError: There is space for less than the least number of tokens.
    """
    if space < least:
        raise ConfigError(
            f"max_length {max_length} leaves no space for text: {template.size} tokens are special"
        )


def in_sequences(examples: Iterable[list[Features]], long: LongConfig) -> list[Features]:
    """All sequences in order, each with its example's number where there may be several."""
    if not long.has_windows:
        return list(chain.from_iterable(examples))
    sequences = []
    for number, of_example in enumerate(examples):
        for feature in of_example:
            feature.example = number
        sequences += of_example
    return sequences


def _single(pieces: Sequence[list[int]], lost: int, template: Template) -> list[Features]:
    rows = [[*template.prefix, *piece, *template.suffix] for piece in pieces]
    made = [Features(row, [0] * len(row)) for row in rows]
    made[0].trimmed = lost  # once an example
    return made


def _pairs(
    pairs: Sequence[tuple[list[int], list[int]]], lost: int, template: Template
) -> list[Features]:
    made = [joined(first, second, template) for first, second in pairs]
    made[0].trimmed = lost
    return made


def joined(first: list[int], second: list[int], template: Template) -> Features:
    """One sequence of two texts and the special tokens around them."""
    before = [*template.prefix, *first, *template.middle]
    after = [*second, *template.suffix]
    return Features(before + after, [0] * len(before) + [template.second_type] * len(after))


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
    generator = np.random.default_rng([seed, epoch])  # nothing drawn before has a part in it
    order = generator.permutation(count)
    batches = [
        batch
        for pool in _cut(order, batch_size * _POOL_BATCHES)
        for batch in _cut(pool[np.argsort(lengths[pool], kind="stable")], batch_size)
    ]
    # Shuffled again: sorted pools would train on short texts first and on long ones last.
    return [batches[number] for number in generator.permutation(len(batches))]


def deal_by_length(
    batch: NDArray[np.int64], lengths: NDArray[np.int64], parts: int
) -> list[NDArray[np.int64]]:
    """Divide a batch into parts of like lengths, with about as many tokens.

    Args:
        batch: Numbers of examples.
        lengths: Tokens of every example (N,).
        parts: One gives the batch as it is.

    Returns:
        The numbers of each part; sizes differ by one at most.
    """
    if parts == 1:
        return [batch]
    by_length = batch[np.argsort(-lengths[batch], kind="stable")]
    # Back and forth: in the same direction, the first part would have the longest of each turn.
    turn = np.arange(len(batch)) % (2 * parts)
    part = np.minimum(turn, 2 * parts - 1 - turn)
    return [by_length[part == number] for number in range(parts)]


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
    *,
    rows: int = 1,
    starts: NDArray[np.int64] | None = None,
) -> Batch:
    """Pad units into one batch of tensors.

    Args:
        features: All sequences: `rows` of them for each unit, one after the other; or as many for
            each window of a unit.
        indices: Numbers of the units of this batch (B,).
        pad_token_id: Fills the rows.
        multiple: Round T, the length of the longest sequence, up to a multiple of this.
        rows: R, the sequences of a unit, or of a window.
        starts: First sequence of each unit, and the number of all sequences (U + 1,), where windows
            are read together; None: a unit has R sequences.

    Returns:
        `index` int64 (B,): the units' numbers;
        `input_ids` int64 (B R, T);
        `token_type_ids` int64 (B R, T);
        `attention_mask` bool (B R, T), True = may be attended to; left out where no row is padded,
        because the encoder is fastest without a mask;
        `labels` int64 or float32, (B,), or (B, 2) or (B, C) where a label has so many numbers;
        left out where the units have none;
        `decoder_input_ids` int64 (B, S) and `labels` int64 (B S,) where units have a target: its
        tokens but the last, and the one that follows each of them, -100 behind its end;
        `context` int64 (B, 2): first position that an answer may take and the one after the last;
        left out where the units have none;
        `choices` bool (B, R), True = the unit has this option; left out where all have R. An option
        that a question lacks is a sequence without tokens, of which one of padding may be attended
        to: a softmax over nothing would be no number;
        `rows` int64 (S,), where windows are read together: numbers of the S sequences, in place of
        B R; and `window_of` int64 (S,), if a unit has several: number in 0 … B R - 1 of the text
        that each is a window of.
    """
    import torch

    units = np.asarray(indices, dtype=np.int64)
    bounds = _bounds(units, rows, starts)
    numbers = [row for begin, end in bounds for row in range(begin, end)]
    sequences = [features[row] for row in numbers]
    lengths = np.array([len(sequence.input_ids) for sequence in sequences])
    filled = np.arange(_round_up(int(lengths.max()), multiple)) < lengths[:, None]  # (B R, T)
    batch = {
        "index": torch.as_tensor(units),
        "input_ids": _fill([sequence.input_ids for sequence in sequences], filled, pad_token_id),
        "token_type_ids": _fill([sequence.token_type_ids for sequence in sequences], filled, 0),
    }
    if not lengths.all():  # the options of a question are those of its first window
        firsts = np.cumsum([0, *(end - begin for begin, end in bounds)])[:-1]
        batch["choices"] = torch.from_numpy(lengths[firsts[:, None] + np.arange(rows)] > 0)
    if starts is not None:
        batch |= _windows(numbers, bounds, rows)
    filled[lengths == 0, 0] = True
    if not filled.all():
        batch["attention_mask"] = torch.from_numpy(filled)
    # Label and context belong to a unit, not to each sequence.
    first_of_unit = [features[begin] for begin, _ in bounds]
    if first_of_unit[0].label is not None:
        batch["labels"] = torch.tensor([sequence.label for sequence in first_of_unit])
    if first_of_unit[0].target is not None:
        batch |= _shifted(
            [one.target for one in first_of_unit if one.target is not None], pad_token_id
        )
    if first_of_unit[0].context is not None:
        batch["context"] = torch.tensor([sequence.context for sequence in first_of_unit])
    return batch


def _bounds(
    units: NDArray[np.int64], rows: int, starts: NDArray[np.int64] | None
) -> list[tuple[int, int]]:
    """First sequence of each unit and the one after its last."""
    if starts is None:
        return [(unit * rows, (unit + 1) * rows) for unit in units.tolist()]
    return list(zip(starts[units].tolist(), starts[units + 1].tolist(), strict=True))


def _windows(numbers: Sequence[int], bounds: Sequence[tuple[int, int]], rows: int) -> Batch:
    """Which sequences these are, and which text each is a window of, if one has several."""
    import torch

    batch = {"rows": torch.tensor(numbers)}
    if any(end - begin > rows for begin, end in bounds):
        batch["window_of"] = torch.tensor(
            [
                unit * rows + row % rows
                for unit, (begin, end) in enumerate(bounds)
                for row in range(end - begin)
            ]
        )
    return batch


def _shifted(targets: Sequence[Ids], pad_token_id: int) -> Batch:
    """What a decoder reads of right targets, and what it is to say: the same, a token later."""
    lengths = np.array([len(target) - 1 for target in targets])
    filled = np.arange(lengths.max()) < lengths[:, None]  # (B, S)
    return {
        "decoder_input_ids": _fill([target[:-1] for target in targets], filled, pad_token_id),
        "labels": _fill([target[1:] for target in targets], filled, IGNORED).flatten(),
    }


def _fill(rows: Sequence[Ids], filled: NDArray[np.bool_], padding: int) -> Tensor:
    import torch

    padded = np.full(filled.shape, padding, dtype=np.int64)
    padded[filled] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(padded)
