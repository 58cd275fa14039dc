"""What a token is (word), where it stands (position) and which text it belongs to (segment)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout, LockedDropout
from finetune.encoder.norms import make_norm
from finetune.errors import ConfigError


def position_angles(positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    """Turn positions into angles whose wavelengths grow from 2π to theta · 2π.

    Args:
        positions: int64 (..., T).
        width: Even number of values wanted; each angle serves two.
        theta: Base of the geometric row of wavelengths.

    Returns:
        position / theta^(2i / width) for i in 0 .. width/2 - 1, float32 (..., T, width/2).
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    # float32 in any precision: bfloat16 skips whole numbers above 256.
    return positions.unsqueeze(-1).float() * theta**-exponents


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Fixed position embeddings: sines and cosines in turn (Vaswani et al., 2017, section 3.5).

    Args:
        positions: int64 (..., T).
        width: Even width of an embedding.

    Returns:
        float32 (..., T, width).
    """
    angles = position_angles(positions, width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, each float32 (1 or B, 1, T, K/2)."""


def rotation(positions: Tensor, head_size: int, theta: float) -> Rotation:
    """Prepare rotary positions (Su et al., 2021, section 3.2) for all heads and blocks.

    Args:
        positions: int64 (1 or B, T).
        head_size: K, even.
        theta: Base of the wavelengths.

    Returns:
        Cosines and sines of the angles, each float32 (1 or B, 1, T, K/2).
    """
    angles = position_angles(positions, head_size, theta).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(inputs: Tensor, by: Rotation) -> Tensor:
    """Turn queries or keys by their position, so that products depend on the distance alone.

    Number i makes a pair with number i + K/2, as in most published weights (the paper pairs
    neighbours; the two differ only by the order of the numbers in a head).

    Args:
        inputs: (B, H, T, K).
        by: What `rotation` gave.

    Returns:
        (B, H, T, K), in the dtype of the inputs.
    """
    cosine, sine = by
    first, second = inputs.chunk(2, dim=-1)  # 2 x (B, H, T, K/2)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    # Cosines in float32 have widened half-precision inputs, and values must have the same dtype.
    return torch.cat(turned, dim=-1).to(inputs.dtype)


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised (Devlin et al., 2019, figure 2).

    With `embedding_size` the sum is projected to the hidden size (Lan et al., 2020, section 3.1).
    Rotary positions are no part of the sum: they turn queries and keys in each block.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make the tables that the config asks for."""
        super().__init__()
        size = config.word_embedding_size
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.norm = make_norm(config, size) if config.embedding_norm else nn.Identity()
        self.word_dropout = Dropout(config.word_dropout_prob)
        dropout = LockedDropout if config.locked_dropout else Dropout
        self.dropout = dropout(config.embedding_dropout)
        if size != config.hidden_size:
            self.projection: nn.Module = nn.Linear(size, config.hidden_size)
        else:
            self.projection = nn.Identity()

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Embed a batch.

        Args:
            batch: `input_ids` int64 (B, T); optionally `token_type_ids` int64 (B, T), otherwise
                all of segment 0, and `position_ids` int64 (B, T), otherwise 0 .. T - 1.

        Returns:
            (B, T, D).

        Raises:
            ConfigError: The batch is longer than learned positions reach.
        """
        embedded = self._words(batch["input_ids"])  # (B, T, E)
        if self.config.type_vocab_size:
            embedded = embedded + self._segments(batch.get("token_type_ids"))
        if self.config.position in ("learned", "sinusoidal"):
            embedded = embedded + self._positions(embedded, batch.get("position_ids"))
        # Projected last, as in ALBERT and ELECTRA: norm and dropout work on E numbers.
        hidden: Tensor = self.projection(self.dropout(self.norm(embedded)))
        return hidden

    def _words(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.word_embeddings(input_ids)  # (B, T, E)
        if not self.training or self.word_dropout.p == 0.0:
            return embedded
        # A row of the table for all its tokens in the batch (Merity et al., 2018, section 4.3).
        factors = self.word_dropout(embedded.new_ones(self.config.vocab_size))
        thinned: Tensor = embedded * factors[input_ids].unsqueeze(-1)
        return thinned

    def _segments(self, token_type_ids: Tensor | None) -> Tensor:
        if token_type_ids is None:
            return self.token_type_embeddings.weight[0]  # (E): one row broadcasts, no look-up
        segments: Tensor = self.token_type_embeddings(token_type_ids)
        return segments

    def _positions(self, embedded: Tensor, position_ids: Tensor | None) -> Tensor:
        length, size = embedded.shape[-2:]
        if self.config.position == "learned":
            return self._learned_positions(length, position_ids)
        if position_ids is None:
            position_ids = torch.arange(length, device=embedded.device)
        # Sines and cosines have a mean square of 1/2. Scaled down to the words' size at the
        # start, they do not drown them (the paper scales the words up instead).
        amplitude = self.config.initializer_range * 2**0.5
        return (sinusoids(position_ids, size) * amplitude).to(embedded.dtype)

    def _learned_positions(self, length: int, position_ids: Tensor | None) -> Tensor:
        if position_ids is not None:
            positions: Tensor = self.position_embeddings(position_ids)  # (B, T, E)
            return positions
        longest = self.config.max_position_embeddings
        if length > longest:
            raise ConfigError(
                f"learned positions reach {longest} tokens (max_position_embeddings), "
                f"got a sequence of {length}; lower max_length or choose another position."
            )
        return self.position_embeddings.weight[:length]  # (T, E)
