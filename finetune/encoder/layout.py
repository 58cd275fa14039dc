"""How the tokens of a batch lie: sequences side by side with their padding, or without it.

Projections, norms and the feed-forward part work on each token alone, so they need no padding; only
attention needs sequences side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Padded:
    """Sequences side by side, (B, T, D): as batches come."""

    def unpad(self, hidden: Tensor) -> Tensor:
        """Bring hidden states (B, T, D) into this layout."""
        return hidden

    def pad(self, hidden: Tensor) -> Tensor:
        """Bring hidden states of this layout back to (B, T, D)."""
        return hidden

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections of this layout among the heads, -> (B, H, T, K)."""
        batch, length, _ = projected.shape
        return projected.view(batch, length, num_heads, -1).transpose(1, 2)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (B, H, T, K) side by side again, in this layout."""
        return mixed.transpose(1, 2).flatten(2)


PADDED = Padded()


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

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections (N, D) among the heads, -> (B, H, T, K)."""
        return super().split_heads(self.pad(projected), num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (B, H, T, K) side by side again, -> (N, D)."""
        return self.unpad(super().merge_heads(mixed))
