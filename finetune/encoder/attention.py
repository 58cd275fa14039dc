"""Attention: project, split into heads, score, mask, softmax, mix, merge.

A score that is a product takes torch's fused kernel, which never stores the (T, T) weights.
The explicit path serves the other scores, and callers that ask for the weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.cache import KeyValues
from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.embeddings import Rotation, rotate
from finetune.encoder.layout import PADDED, Padded
from finetune.encoder.relative import RelativePositions
from finetune.encoder.scores import SCORES, ProductScore
from finetune.encoder.slabs import mix_in_slabs, saves_memory
from finetune.encoder.tiles import Tiles
from finetune.encoder.varlen import Varlen


class SelfAttention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2.2) with a choice of score.

    Queries, keys and values are of the same tokens; with a memory, keys and values are of the
    memory's (cross-attention).
    """

    def __init__(self, config: EncoderConfig, memory_size: int | None = None) -> None:
        """Make the four projections D -> D and the score.

        Args:
            config: The encoder's.
            memory_size: Width of the memory, where there is one; None = D.
        """
        super().__init__()
        size, heads = config.hidden_size, config.num_attention_heads
        source = size if memory_size is None else memory_size
        self.num_heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(source, size)
        self.value = nn.Linear(source, size)
        self.score = SCORES[config.attention_score](heads, config.head_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.output = nn.Linear(size, size)
        is_relative = config.position == "relative" and memory_size is None
        self.relative = RelativePositions(config) if is_relative else None

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor | Tiles | None = None,
        rotary: Rotation | None = None,
        distances: Tensor | None = None,
        *,
        queries: Padded | None = None,
        layout: Padded = PADDED,
        output_attentions: bool = False,
        memory: Tensor | None = None,
        past: KeyValues | None = None,
        earlier: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let each token gather from the tokens it may see.

        Args:
            hidden: (B, T, D), or (N, D) in an unpadded layout.
            bias: What `mask_bias` gave, which broadcasts to (B, H, T, T), or the tiles of local
                attention.
            rotary: Rotary positions of the tokens, if there are any.
            distances: What `distance_table` gave, where positions are relative.
            queries: Layout of the Q tokens that gather, out of a padded layout; None = all T.
            layout: How the tokens lie in the hidden states.
            output_attentions: Whether the weights are wanted; it costs the fused path.
            memory: States of other tokens that keys and values are made of, (B, S, memory_size):
                then the bias broadcasts to (B, H, T, S), and nothing is rotated.
            past: Keys and values of S earlier tokens, which these T see too; extended by theirs.
                The bias broadcasts to (B, H, T, S + T) then. Of a memory they are computed once.
            earlier: States of M tokens before these T, (B, M, D), whose keys and values are seen
                too. Bias and rotary positions are of M + T tokens then.

        Returns:
            Hidden states (B, Q, D) or (N, D), and the weights (B, H, Q, T) before dropout, or None.
        """
        wanted = queries or layout
        query = wanted.split_heads(self.query(wanted.take(hidden)), self.num_heads)  # (B, H, Q, K)
        if rotary is not None:
            before = 0 if earlier is None else earlier.shape[1]
            cosine, sine = (wanted.rows(part[..., before:, :]) for part in rotary)
            query = rotate(query, (cosine, sine))
        if past is not None and memory is not None and past.pair is not None:
            key, value = past.pair  # of this very memory, which never grows
        else:
            source = hidden if memory is None else memory
            source = source if earlier is None else torch.cat([earlier, source], dim=1)
            key, value = self._keys_and_values(source, rotary, layout)
            key, value = (key, value) if past is None else past.extend(key, value)
        if isinstance(bias, Tiles):
            mixed = bias.mix(query, key, value, self._mix_cheaply)
            return self.output(wanted.merge_heads(mixed)), None
        if isinstance(layout, Varlen) and isinstance(self.score, ProductScore):
            mixed = layout.mix(self.score.fold(query), key, value, self.score.scale)
            return self.output(wanted.merge_heads(mixed)), None
        dense = None if bias is None else wanted.rows(bias)
        if self.relative is not None and distances is not None:
            tokens, keys = layout.length(hidden), key.shape[2]
            by_position = self.relative(query, distances, tokens, keys)
            dense = by_position if dense is None else by_position + dense
            query = self.relative.content_query(query)
        if output_attentions:
            mixed, weights = self._mix(query, key, value, dense)
        else:
            mixed, weights = self._mix_cheaply(query, key, value, dense), None
        return self.output(wanted.merge_heads(mixed)), weights

    def _keys_and_values(
        self, source: Tensor, rotary: Rotation | None, layout: Padded
    ) -> tuple[Tensor, Tensor]:
        """Project and divide among the heads, twice (B, H, T, K)."""
        key = layout.split_heads(self.key(source), self.num_heads)
        # Values are mixed and not compared: they need no positions.
        key = key if rotary is None else rotate(key, rotary)
        return key, layout.split_heads(self.value(source), self.num_heads)

    def _drops_on_cpu(self, device: torch.device) -> bool:
        """With dropout torch has no fused kernel for the CPU, and its plain one is slower."""
        return self.training and self.dropout.p > 0 and device.type == "cpu"

    def _mix_cheaply(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Mix the values in the way that costs least where the weights are not asked for."""
        if not isinstance(self.score, ProductScore):
            return self._mix(query, key, value, bias)[0]
        if not self._drops_on_cpu(query.device):
            return self._mix_fused(self.score, query, key, value, bias)
        if saves_memory(query, key):
            scaled = self.score.fold(query) * self.score.scale
            return mix_in_slabs(scaled, key, value, bias, self.dropout.p)
        return self._mix(query, key, value, bias)[0]

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.score(query, key)  # (B, H, T, T)
        if bias is not None:
            logits = logits + bias
        weights = logits.softmax(dim=-1)  # without dropout, after which they would not sum to 1
        return self.dropout(weights) @ value, weights  # (B, H, T, K), (B, H, T, T)

    def _mix_fused(
        self, score: ProductScore, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            score.fold(query),
            key,
            value,
            attn_mask=bias,
            # The function has no mode of its own: it would drop in evaluation too.
            dropout_p=self.dropout.p if self.training else 0.0,
            scale=score.scale,  # torch's default is 1/√K, which suits one score only
        )
