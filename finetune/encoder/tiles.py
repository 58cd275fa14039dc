"""Local attention in tiles: work and memory grow with T·w, and not with T².

Queries are cut into tiles of c tokens, c the window w or a little more. All that a tile sees lies
in itself and in the tiles beside it, so each is a small sequence of c queries and 3c keys (2c where
causal), and attention gets n sequences in place of one. A mask hides what lies outside the window.

Global tokens see all tokens and all see them (Beltagy et al., 2020, section 3.1): their keys are
put before those of each tile, and their own rows are computed with all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.encoder.config import EncoderConfig
from finetune.encoder.masks import PATTERNS, checked_mask, mask_bias
from finetune.encoder.relative import alibi_slopes

Mix = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Queries, keys, values and bias -> mixed values, as of one dense attention."""


@dataclass(frozen=True)
class Globals:
    """Tokens that all tokens see, and that see all: G at most in a sequence.

    Attributes:
        places: Which tokens they are, int64 (B, G); T where a sequence has fewer.
        is_there: Where it has one, bool (B, G).
        bias: Of their rows, which broadcasts to (B, H, G, T).
    """

    places: Tensor
    is_there: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, is_global: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Globals:
        """Number the global tokens of a batch, bool (B, T); the mask hides padding from them."""
        length, counts = is_global.shape[1], is_global.sum(dim=1)
        # The sort is stable: the global tokens first, in their order.
        order = (~is_global).long().argsort(dim=1, stable=True)[:, : int(counts.max())]
        is_there = torch.arange(order.shape[1], device=order.device) < counts[:, None]
        bias = None if mask is None else mask_bias(mask[:, None, None], dtype)
        return cls(order.masked_fill(~is_there, length), is_there, bias)

    def take(self, states: Tensor) -> Tensor:
        """Theirs out of those of all tokens, (B, H, T, K) -> (B, H, G, K)."""
        places = self.places.clamp(max=states.shape[2] - 1)
        return states.gather(2, self._index(places, states))

    def put(self, mixed: Tensor, rows: Tensor) -> Tensor:
        """Their rows, (B, H, G, K), in place of those among the first Q, (B, H, Q, K)."""
        count = mixed.shape[2]  # a row more takes what no token has
        places = self._index(self.places.clamp(max=count), rows)
        return F.pad(mixed, (0, 0, 0, 1)).scatter(2, places, rows)[:, :, :count]

    def _index(self, places: Tensor, states: Tensor) -> Tensor:
        return places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])


@dataclass(frozen=True)
class Tiles:
    """How a batch is cut; takes the place of the bias of local blocks.

    Attributes:
        size: Tokens of a tile, c.
        beside: Tiles before and behind a tile that it sees.
        bias: What hides the rest, (1 or B, n, 1 or H, c, S); S with the global tokens.
        tokens: The global ones, if there are any.
    """

    size: int
    beside: tuple[int, int]
    bias: Tensor
    tokens: Globals | None = None

    @classmethod
    def of(
        cls,
        config: EncoderConfig,
        mask: Tensor | None,
        is_global: Tensor | None,
        hidden: Tensor,
    ) -> Tiles:
        """Cut a batch.

        Args:
            config: Whose `is_tiled` holds.
            mask: As of `visible_tokens`, and (B, T) where tokens are global.
            is_global: bool (B, T); None: no token is.
            hidden: (B, T, D), for its sizes.
        """
        length, device, size = hidden.shape[1], hidden.device, config.tile_size
        beside = (1, 0) if config.causal else (1, 1)
        mask = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
        here = checked_mask(mask) if is_global is None else mask & ~is_global
        query = torch.arange(size, device=device)[:, None]
        key = torch.arange(-size, size * (1 + beside[1]), device=device)
        near = PATTERNS["window"](query, key, config.local_attention)  # (c, S)
        near = near & (key <= query) if config.causal else near
        cut = _documents_in_tiles if here.dim() == 3 else _row_in_tiles
        visible = cut(here, size, beside) & near  # (1 or B, n, c, S)
        tokens = None
        if is_global is not None:
            tokens = Globals.of(is_global, mask, hidden.dtype)
            # A first token is global also where it is padding, which no other sees.
            is_read = (mask & is_global).gather(1, tokens.places.clamp(max=length - 1))
            seen = (tokens.is_there & is_read)[:, None, None].expand(-1, *visible.shape[1:3], -1)
            visible = torch.cat([seen, visible.expand(len(seen), -1, -1, -1)], dim=3)
        # As in `visible_tokens`: one that may see nothing, such as padding, sees everything.
        visible = visible | ~visible.any(dim=-1, keepdim=True)
        bias = torch.zeros(visible.shape, dtype=hidden.dtype, device=device)
        bias = bias.masked_fill_(~visible, -torch.inf).unsqueeze(2)
        if config.position == "alibi":
            slopes = hidden.new_tensor(alibi_slopes(config.num_attention_heads))
            bias = bias - slopes[:, None, None] * (key - query).abs()
        return cls(size, beside, bias, tokens)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, mix: Mix) -> Tensor:
        """Attend in tiles.

        Args:
            query: Of the first Q tokens, (B, H, Q, K).
            key: (B, H, T, K).
            value: (B, H, T, K).
            mix: Attends in each tile.

        Returns:
            (B, H, Q, K).
        """
        batch, _, count, _ = query.shape
        tiles = _cut(query, self.size)  # (B, n, H, c, K), n of Q tokens
        number = tiles.shape[1]
        bias = self.bias[:, :number].expand(batch, -1, -1, -1, -1)
        keys, values = (self._seen(states, number) for states in (key, value))
        mixed = mix(*(part.flatten(0, 1) for part in (tiles, keys, values, bias)))
        mixed = mixed.view(batch, number, *mixed.shape[1:]).transpose(1, 2)  # (B, H, n, c, K)
        mixed = mixed.flatten(2, 3)[:, :, :count]
        if self.tokens is None:
            return mixed
        places = self.tokens
        if count < key.shape[2]:  # the first tokens alone are read: of the last block
            query = F.pad(query, (0, 0, 0, key.shape[2] - count))
        return places.put(mixed, mix(places.take(query), key, value, places.bias))

    def _seen(self, states: Tensor, number: int) -> Tensor:
        """What each of the first tiles sees, (B, H, T, K) -> (B, n, H, S, K)."""
        seen = _neighbours(_cut(states, self.size), self.beside, dim=3)[:, :number]
        if self.tokens is None:
            return seen
        to_all = self.tokens.take(states).unsqueeze(1).expand(-1, number, -1, -1, -1)
        return torch.cat([to_all, seen], dim=3)


def _cut(states: Tensor, size: int) -> Tensor:
    """(B, H, T, K) -> (B, n, H, c, K), zeros behind the last token."""
    padded = F.pad(states, (0, 0, 0, -states.shape[2] % size))
    batch, heads, length, width = padded.shape
    return padded.reshape(batch, heads, length // size, size, width).transpose(1, 2)


def _neighbours(tiles: Tensor, beside: tuple[int, int], dim: int) -> Tensor:
    """Put each tile of (B, n, …) between those beside it, along a dimension."""
    number = tiles.shape[1]
    padded = F.pad(tiles, (0, 0) * (tiles.dim() - 2) + beside)
    return torch.cat([padded[:, i : i + number] for i in range(1 + sum(beside))], dim=dim)


def _row_in_tiles(mask: Tensor, size: int, beside: tuple[int, int]) -> Tensor:
    """(B, T) -> which keys of a tile are tokens, (B, n, 1, S)."""
    tiles = F.pad(mask, (0, -mask.shape[1] % size)).view(len(mask), -1, size)
    return _neighbours(tiles, beside, dim=2).unsqueeze(2)


def _documents_in_tiles(mask: Tensor, size: int, beside: tuple[int, int]) -> Tensor:
    """(B, T, T) -> which keys a query of a tile may see, (B, n, c, S)."""
    more = -mask.shape[1] % size
    number = (mask.shape[1] + more) // size
    tiles = F.pad(mask, (0, more, 0, more)).view(len(mask), number, size, number, size)
    padded = F.pad(tiles, (0, 0, *beside))  # (B, n, c, n + 1 or 2, c)
    parts = [
        padded.diagonal(offset, 1, 3)[..., :number].movedim(3, 1)  # (B, n, c, c)
        for offset in range(1 + sum(beside))
    ]
    return torch.cat(parts, dim=3)
