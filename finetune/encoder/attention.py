"""Self-attention: project, split into heads, score, mask, softmax, mix, merge.

A score that is a product takes torch's fused kernel, which never stores the (T, T) weights.
The explicit path serves the other scores, and whoever wants to see the weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.embeddings import Rotation, rotate
from finetune.encoder.ragged import Ragged
from finetune.encoder.scores import SCORES, ProductScore


def _first(rotary: Rotation) -> Rotation:
    """The turns of the first token alone, each (1 or B, 1, 1, K/2)."""
    cosine, sine = rotary
    return cosine[..., :1, :], sine[..., :1, :]


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017, section 3.2.2) with a choice of score."""

    def __init__(self, config: EncoderConfig) -> None:
        """Make the four projections D -> D and the score."""
        super().__init__()
        size, heads = config.hidden_size, config.num_attention_heads
        self.num_heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.score = SCORES[config.attention_score](heads, config.head_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.output = nn.Linear(size, size)

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor | None = None,
        rotary: Rotation | None = None,
        *,
        output_attentions: bool = False,
        first_only: bool = False,
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let each token gather from the tokens it may see.

        Args:
            hidden: (B, T, D).
            bias: What `mask_bias` gave; broadcasts to (B, H, T, T).
            rotary: Rotary positions of the tokens, if there are any.
            output_attentions: Whether the weights are wanted; it costs the fused path.
            first_only: Whether only the first token gathers: Q is 1 then, and T otherwise.
            ragged: Where real tokens stand; the hidden states are their rows then, (N, D).

        Returns:
            Hidden states (B, Q, D) or (N, D), and the weights (B, H, Q, T) before dropout, or None.
        """
        asking = hidden[:, :1] if first_only else hidden
        query, key, value = self.query(asking), self.key(hidden), self.value(hidden)
        if ragged is not None:
            query, key, value = map(ragged.padded, (query, key, value))
        query, key, value = map(self._split, (query, key, value))  # 3 x (B, H, Q or T, K)
        if rotary is not None:
            query, key = (
                rotate(query, _first(rotary) if first_only else rotary),
                rotate(key, rotary),
            )
        if first_only and bias is not None:
            bias = bias[..., :1, :]
        explicit = output_attentions or self._drops_on_cpu(query.device)
        if isinstance(self.score, ProductScore) and not explicit:
            mixed, weights = self._mix_fused(self.score, query, key, value, bias), None
        else:
            mixed, weights = self._mix(query, key, value, bias)
        merged = mixed.transpose(1, 2).flatten(2)  # (B, Q, D)
        if ragged is not None:
            merged = ragged.rows(merged)  # (N, D)
        return self.output(merged), weights if output_attentions else None

    def _split(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, self.num_heads, -1).transpose(1, 2)  # (B, H, T, K)

    def _drops_on_cpu(self, device: torch.device) -> bool:
        """With dropout torch has no fused kernel for the CPU, and its plain one is slower."""
        return self.training and self.dropout.p > 0 and device.type == "cpu"

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.score(query, key)  # (B, H, T, T)
        if bias is not None:
            logits = logits + bias
        weights = logits.softmax(dim=-1)
        return self.dropout(weights) @ value, weights  # (B, H, T, K), (B, H, T, T)

    def _mix_fused(
        self, score: ProductScore, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            score.fold(query),
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout.p if self.training else 0.0,
            scale=score.scale,
        )
