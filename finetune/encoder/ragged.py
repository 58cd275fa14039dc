"""Real tokens as rows, without the padding between them.

Projections, norms and the feed-forward part work on each token alone, so they need no padding; only
attention needs sequences side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Where the real tokens of a batch stand.

    Attributes:
        places: Number of each row's token among all B T places, int64 (N,); the last rows may
            repeat a token, so that N is a multiple of what kernels compute at a time.
        tokens: How many of the rows are tokens and no repetition.
        shape: B and T.
    """

    places: Tensor
    tokens: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor, multiple: int) -> Ragged:
        """Find the real tokens of a batch.

        Args:
            mask: True where there is a token, bool (B, T); one at least.
            multiple: N is a multiple of this, twice as much at least.
        """
        places = mask.reshape(-1).nonzero().squeeze(1)
        extra = max(-len(places) % multiple, 2 * multiple - len(places))
        repeated = torch.cat([places, places[:1].expand(extra)])
        return cls(repeated, len(places), (mask.shape[0], mask.shape[1]))

    def rows(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (B, T, ...) -> (N, ...)."""
        return hidden.flatten(0, 1).index_select(0, self.places)

    def padded(self, rows: Tensor) -> Tensor:
        """Put them back, (N, ...) -> (B, T, ...), with zeros at padded places."""
        count, length = self.shape
        places = rows.new_zeros(count * length, *rows.shape[1:])
        places.index_copy_(0, self.places[: self.tokens], rows[: self.tokens])
        return places.view(count, length, *rows.shape[1:])
