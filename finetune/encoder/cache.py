"""Keys and values of tokens that were read before, so that a new token costs one row of attention.

Where a token sees no later ones, its keys and values never change: a model that writes token after
token computes them once. Without a cache every new token recomputes the whole text.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, cat

from finetune.encoder.config import EncoderConfig
from finetune.errors import ConfigError


class KeyValues:
    """Keys and values of one attention layer, (B, H, S, K) each, S tokens so far.

    Self-attention extends them by each step's tokens. Attention to a memory, the states of
    another text, fills them once and reads them from then on.

    >>> import torch
    >>> from finetune.encoder.cache import KeyValues
    >>> past = KeyValues()
    >>> key, value = past.extend(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
    >>> key, value = past.extend(torch.ones(1, 2, 1, 8), torch.ones(1, 2, 1, 8))
    >>> key.shape, past.length
    (torch.Size([1, 2, 4, 8]), 4)
    """

    def __init__(self) -> None:
        """Start with no tokens."""
        self.pair: tuple[Tensor, Tensor] | None = None
        """Keys, with their rotary positions in them, and values; None before the first tokens."""

    @property
    def length(self) -> int:
        """Tokens so far, S."""
        return 0 if self.pair is None else self.pair[0].shape[2]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the next tokens, (B, H, Q, K) each; returns all, (B, H, S + Q, K) each."""
        if self.pair is not None:
            key, value = cat([self.pair[0], key], dim=2), cat([self.pair[1], value], dim=2)
        self.pair = key, value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, int64 (B',), in this order: a beam's, or the unfinished."""
        if self.pair is not None:
            key, value = self.pair
            self.pair = key.index_select(0, rows), value.index_select(0, rows)


class Cache:
    """The keys and values of all blocks of a causal encoder; `Encoder.forward` fills it.

    >>> import torch
    >>> from finetune import Encoder, EncoderConfig
    >>> from finetune.encoder.cache import Cache
    >>> encoder = Encoder(EncoderConfig(vocab_size=100, hidden_size=16, num_hidden_layers=2,
    ...     num_attention_heads=2, intermediate_size=32, causal=True)).eval()
    >>> cache, ids = Cache(2), torch.tensor([[2, 17, 42, 3]])
    >>> first = encoder({"input_ids": ids[:, :3]}, cache=cache)
    >>> last = encoder({"input_ids": ids[:, 3:]}, cache=cache).last_hidden_state  # (1, 1, D)
    >>> torch.allclose(last, encoder({"input_ids": ids}).last_hidden_state[:, 3:], atol=1e-6)
    True
    """

    def __init__(self, num_hidden_layers: int) -> None:
        """Start with no tokens in any of L blocks."""
        self.blocks = [KeyValues() for _ in range(num_hidden_layers)]

    @property
    def length(self) -> int:
        """Tokens so far, S."""
        return self.blocks[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, int64 (B',), in this order."""
        for block in self.blocks:
            block.select(rows)

    def continued(self, batch: Mapping[str, Tensor], config: EncoderConfig) -> Mapping[str, Tensor]:
        """A batch with the positions behind those of the cache, unless it names its own.

        Raises:
            ConfigError: The encoder is not causal, or its learned positions end before.
        """
        ids = batch["input_ids"]
        if not config.causal:
            raise ConfigError(
                "a cache of keys and values needs a causal encoder: in one that reads in both "
                "directions they change with each new token; leave the cache out."
            )
        start, end = self.length, self.length + ids.shape[1]
        if "position_ids" in batch:
            return batch
        if config.position == "learned" and end > config.max_position_embeddings:
            raise ConfigError(
                f"learned positions reach {config.max_position_embeddings} tokens "
                f"(max_position_embeddings), got {end} with those in the cache; end earlier."
            )
        positions = torch.arange(start, end, device=ids.device).unsqueeze(0)  # (1, T)
        return {**batch, "position_ids": positions}
