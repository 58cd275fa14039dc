"""How the tokens of a batch lie: sequences side by side with their padding, or without it.

Projections, norms and the feed-forward part work on each token alone, so they need no padding; only
what looks at other tokens (attention, recurrence, convolution) needs sequences side by side. The
last block computes only the tokens that are read of it: these (`First`, `Chosen`) have a layout of
their own, beside that of the keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from finetune.encoder.masks import checked_mask
from finetune.errors import ConfigError


class Padded:
    """Sequences side by side, (B, T, D): as batches come."""

    def unpad(self, hidden: Tensor) -> Tensor:
        """Bring hidden states (B, T, D) into this layout."""
        return hidden

    def pad(self, hidden: Tensor) -> Tensor:
        """Bring hidden states of this layout back to (B, T, D)."""
        return hidden

    def length(self, hidden: Tensor) -> int:
        """T of hidden states of this layout."""
        return hidden.shape[1]

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections of this layout among the heads, -> (B, H, T, K)."""
        batch, length, _ = projected.shape
        return projected.view(batch, length, num_heads, -1).transpose(1, 2)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (B, H, T, K) side by side again, in this layout."""
        return mixed.transpose(1, 2).flatten(2)

    def first(self) -> Padded:
        """The layout of the first token of each sequence, out of hidden states of this layout."""
        return First()

    def take(self, hidden: Tensor) -> Tensor:
        """Take the tokens of this layout out of the hidden states that a block gets."""
        return hidden

    def choose(self, positions: Tensor, batch: int, length: int) -> Padded:
        """The layout of the tokens of these numbers among all B T, out of hidden states of this."""
        return Chosen.from_positions(positions, batch, length)

    def rows(self, context: Tensor) -> Tensor:
        """Take their rows out of what blocks share, (1 or B, X, 1 or T, Y) -> (…, Q, Y)."""
        return context


PADDED = Padded()


@dataclass(frozen=True)
class First(Padded):
    """The first tokens of each sequence, (B, Q, D), out of hidden states (B, T, D).

    Attributes:
        count: Q.
    """

    count: int = 1

    def take(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (B, T, D) -> (B, Q, D)."""
        return hidden[..., : self.count, :]

    def rows(self, context: Tensor) -> Tensor:
        """Take their rows out, (…, 1 or T, Y) -> (…, 1 or Q, Y)."""
        return context[..., : self.count, :]


@dataclass(frozen=True)
class Chosen(Padded):
    """Some tokens of a batch one after the other, (N, D), out of hidden states (B, T, D).

    Attributes:
        positions: Of each, its row among those that a block gets, int64 (N,): its number among all
            B T, or without padding among the real tokens.
        places: Of each, its place among B Q rows of queries, int64 (N,).
        columns: Which token of its sequence each query is, int64 (B, Q); None where Q = T.
        shape: B and Q.
    """

    positions: Tensor
    places: Tensor
    columns: Tensor | None
    shape: tuple[int, int]

    @classmethod
    def from_positions(cls, positions: Tensor, batch: int, length: int) -> Chosen:
        """Find the place of each token.

        Args:
            positions: Numbers of the tokens among all B T, int64 (N,), none twice.
            batch: B.
            length: T.
        """
        # How many there are in the fullest row, the host would wait for a GPU to learn. There all T
        # are queries: a fused kernel costs little, and linear layers see the N tokens all the same.
        if positions.device.type != "cpu" or bool((positions.diff() <= 0).any()):
            return cls(positions, positions, None, (batch, length))
        sequence = positions // length
        counts = torch.bincount(sequence, minlength=batch)  # (B)
        most = max(1, int(counts.max()))
        number = torch.arange(len(positions)) - (counts.cumsum(0) - counts)[sequence]
        places = sequence * most + number
        columns = torch.zeros(batch * most, dtype=torch.int64)
        columns[places] = positions % length
        return cls(positions, places, columns.view(batch, most), (batch, most))

    def take(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (B, T, D) or without padding (M, D) -> (N, D)."""
        return hidden.flatten(0, -2).index_select(0, self.positions)

    def rows(self, context: Tensor) -> Tensor:
        """Take their rows out, (1 or B, X, 1 or T, Y) -> (…, 1 or Q, Y)."""
        if self.columns is None or context.shape[-2] == 1:
            return context
        index = self.columns[:, None, :, None].expand(-1, context.shape[1], -1, context.shape[3])
        return context.expand(len(index), -1, -1, -1).gather(2, index)

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections (N, D) among the heads, -> (B, H, Q, K), zeros where none is."""
        batch, most = self.shape
        rows = projected.new_zeros(batch * most, projected.shape[-1])
        rows = rows.index_copy(0, self.places, projected)
        return super().split_heads(rows.view(batch, most, -1), num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (B, H, Q, K) side by side again, -> (N, D)."""
        return super().merge_heads(mixed).flatten(0, 1).index_select(0, self.places)


@dataclass(frozen=True)
class Unpadded(Padded):
    """Real tokens one after the other, (N, D), without the padding between them.

    Attributes:
        indices: Of each row, the number of its token among all B T, int64 (N,); the last rows may
            repeat a token, so that N is a multiple of what kernels compute at a time.
        tokens: How many of the rows are tokens and no repetition.
        shape: B and T.
    """

    indices: Tensor
    tokens: int
    shape: tuple[int, int]

    @classmethod
    def from_mask(cls, mask: Tensor, multiple: int) -> Unpadded:
        """Find the real tokens of a batch.

        Args:
            mask: True where there is a token, bool (B, T); one at least.
            multiple: N is a multiple of this, twice as much at least.
        """
        indices = mask.reshape(-1).nonzero().squeeze(1)
        # Twice the multiple at least: so it was measured, as of two sequences (`prefix/states.py`).
        extra = max(-len(indices) % multiple, 2 * multiple - len(indices))
        repeated = torch.cat([indices, indices[:1].expand(extra)])
        return cls(repeated, len(indices), (mask.shape[0], mask.shape[1]))

    def unpad(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (B, T, D) -> (N, D)."""
        return hidden.flatten(0, 1).index_select(0, self.indices)

    def pad(self, hidden: Tensor) -> Tensor:
        """Put the tokens back, (N, D) -> (B, T, D), with zeros at padding."""
        batch, length = self.shape
        padded = hidden.new_zeros(batch * length, *hidden.shape[1:])
        # Without the repetitions: which of two writes to one index stays, torch does not promise.
        padded.index_copy_(0, self.indices[: self.tokens], hidden[: self.tokens])
        return padded.view(batch, length, *hidden.shape[1:])

    def first(self) -> Padded:
        """The layout of the first token of each sequence, which must be a real one."""
        return FirstOf(torch.searchsorted(self.indices[: self.tokens], self._starts()))

    def choose(self, positions: Tensor, batch: int, length: int) -> Padded:
        """The layout of some tokens, which must be real ones: (M, D)."""
        chosen = Chosen.from_positions(positions, batch, length)
        rows = torch.searchsorted(self.indices[: self.tokens], positions)
        return replace(chosen, positions=rows)

    def _starts(self) -> Tensor:
        batch, length = self.shape
        return torch.arange(0, batch * length, length, device=self.indices.device)

    def length(self, hidden: Tensor) -> int:
        """T of the batch that these tokens are of."""
        return self.shape[1]

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections (N, D) among the heads, -> (B, H, T, K)."""
        return super().split_heads(self.pad(projected), num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (B, H, T, K) side by side again, -> (N, D)."""
        return self.unpad(super().merge_heads(mixed))


@dataclass(frozen=True)
class FirstOf(Padded):
    """The first token of each sequence, (B, 1, D), out of unpadded hidden states (N, D).

    Attributes:
        starts: Row of each among the N, int64 (B,).
    """

    starts: Tensor

    def take(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (N, D) -> (B, 1, D)."""
        return hidden.index_select(0, self.starts).unsqueeze(1)

    def rows(self, context: Tensor) -> Tensor:
        """Take their rows out, (…, 1 or T, Y) -> (…, 1, Y)."""
        return context[..., :1, :]


MUCH = 1 / 3
"""Fraction of padding from which a training batch is computed without it. MiniLM's step on a CPU is
1.2 times as fast at a quarter and 1.8 times at a half, but no faster below a twentieth; and batches
of like lengths, as fine-tuning makes them, have one or two hundredths."""


def without_padding(mask: Tensor | None) -> Padded:
    """The layout of a batch to train on: without its padding where that is much.

    Args:
        mask: As of `visible_tokens`.
    """
    # To count the tokens the host would wait for a GPU.
    if mask is None or mask.dim() != 2 or mask.device.type != "cpu":
        return PADDED
    little = int(mask.sum()) >= (1 - MUCH) * mask.numel()
    # A head may read the first token, also where it is hidden.
    return PADDED if little or not bool(mask[:, 0].all()) else Unpadded.from_mask(mask, 1)


@dataclass(frozen=True)
class Rows:
    """Each sequence in a row of its own from its first token on, for what reads tokens in order.

    A row of the batch is a sequence, or with a mask (B, T, T) each document in it is one.

    Attributes:
        forward: Place of each token among all S L, the first token of a sequence first, int64
            (B, T). No two tokens have the same.
        backward: The same with the last token of a sequence first.
        is_read: True where there is a token and no padding, bool (B, T).
        shape: S, the number of sequences, and L, the length of the longest.
    """

    forward: Tensor
    backward: Tensor
    is_read: Tensor
    shape: tuple[int, int]

    @classmethod
    def from_mask(cls, mask: Tensor) -> Rows:
        """Find the sequences of a batch.

        Args:
            mask: True where a token is read, bool (B, T); or bool (B, T, T), True where two tokens
                belong to one document.

        Raises:
            ConfigError: The mask is of another kind, or says something else than documents.
        """
        return _documents(mask) if checked_mask(mask).dim() == 3 else _texts(mask)

    def place(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Put each token (B, T, D) at its place, -> (S, L, D), with zeros elsewhere."""
        hidden = hidden.masked_fill(~self.is_read.unsqueeze(-1), 0.0)
        sequences, longest = self.shape
        rows = hidden.new_zeros(sequences * longest, hidden.shape[-1])
        filled = rows.index_copy(0, places.flatten(), hidden.flatten(0, 1))
        return filled.view(sequences, longest, -1)

    def take(self, states: Tensor, places: Tensor) -> Tensor:
        """Take each token's state (S, L, D) from its place again, -> (B, T, D)."""
        taken = states.flatten(0, 1).index_select(0, places.flatten())
        return taken.view(*places.shape, -1)


def _texts(mask: Tensor) -> Rows:
    """One sequence a row: the tokens that are read in front, all others behind them."""
    batch, length = mask.shape
    number = mask.cumsum(dim=1) - 1  # of the tokens that are read, so that a mask may have gaps
    count = mask.sum(dim=1, keepdim=True)
    behind = count + (~mask).cumsum(dim=1) - 1
    row = torch.arange(batch, device=mask.device).unsqueeze(1) * length
    forward = torch.where(mask, number, behind) + row
    backward = torch.where(mask, count - 1 - number, behind) + row
    return Rows(forward, backward, mask, (batch, length))


def _documents(mask: Tensor) -> Rows:
    """One sequence a document; a token that nothing may see is one of its own."""
    begins = document_starts(mask)
    document = begins.flatten().cumsum(dim=0) - 1  # (B T)
    if not separates(mask, document.view(begins.shape)):
        raise ConfigError(
            "a block that reads tokens in order expects an attention_mask (B, T, T) that separates "
            "documents, got one that hides single tokens of a document; use block transformer"
        )
    starts = begins.flatten().nonzero().squeeze(1)  # (S)
    lengths = torch.diff(starts, append=starts.new_tensor([len(document)]))
    longest = int(lengths.max())
    number = torch.arange(len(document), device=mask.device) - starts[document]
    forward, backward = (
        (document * longest + place).view(begins.shape)
        for place in (number, lengths[document] - 1 - number)
    )
    return Rows(forward, backward, mask.diagonal(0, 1, 2), (len(starts), longest))


def document_starts(mask: Tensor) -> Tensor:
    """Where documents begin: tokens that do not see the one before, bool (B, T, T) -> (B, T)."""
    begins = torch.ones(mask.shape[:2], dtype=torch.bool, device=mask.device)
    begins[:, 1:] = ~mask.diagonal(-1, 1, 2)
    return begins


def separates(mask: Tensor, document: Tensor) -> bool:
    """Whether a mask is of documents alone.

    Args:
        mask: bool (B, T, T).
        document: Number of each token's document, (B, T).
    """
    is_read = mask.diagonal(0, 1, 2)
    together = document.unsqueeze(2) == document.unsqueeze(1)
    return torch.equal(mask, together & is_read.unsqueeze(2) & is_read.unsqueeze(1))
