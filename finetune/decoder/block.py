"""One block of the decoder: self-attention, cross-attention and feed-forward."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from finetune.encoder.attention import SelfAttention
from finetune.encoder.cache import KeyValues
from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.embeddings import Rotation
from finetune.encoder.feedforward import feed_forward


class DecoderBlock(nn.Module):
    """A block of the decoder (Vaswani et al., 2017, section 3.1).

    Between the two sublayers of an encoder's block a third one looks at the encoder's states: the
    query is the decoder's state, keys and values are the encoder's, and the score is any of
    `encoder/scores.py`. With `additive` it is the attention of Bahdanau et al. (2015), with `dot`
    and `bilinear` that of Luong et al. (2015), many heads each. Norms stand as in `EncoderBlock`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        memory_size: int,
        cross_score: str | None = None,
        *,
        first: bool = False,
    ) -> None:
        """Make the three sublayers and their norms.

        Args:
            config: The decoder's.
            memory_size: Width of the encoder's states.
            cross_score: Score of cross-attention; None = `attention_score`.
            first: Whether this is the decoder's first block.
        """
        super().__init__()
        size = config.hidden_size
        score = cross_score or config.attention_score
        self.pre_norm = config.norm_position == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = _norm(config, bare=first and not config.first_attention_norm)
        self.cross_attention = SelfAttention(
            dataclasses.replace(config, attention_score=score), memory_size
        )
        self.cross_attention_norm = _norm(config)
        self.feedforward = feed_forward(size, config.intermediate_size, config.hidden_act)
        self.feedforward_norm = _norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        rotary: Rotation | None = None,
        *,
        output_attentions: bool = False,
        past: KeyValues | None = None,
        memory_past: KeyValues | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Update each token's hidden state.

        Args:
            hidden: (B, S, D).
            memory: The encoder's states, (B, T, memory_size).
            bias: Added to the logits of self-attention; broadcasts to (B, H, S, S).
            memory_bias: Added to those of cross-attention; broadcasts to (B, H, S, T).
            rotary: Rotary positions of the target's tokens, if there are any.
            output_attentions: Whether the weights of cross-attention are wanted.
            past: Keys and values of earlier tokens of the targets; extended by those of these.
            memory_past: Keys and values of the memory, computed once.

        Returns:
            Hidden states (B, S, D), and the weights of cross-attention (B, H, S, T) or None.
        """
        inputs = self.attention_norm(hidden) if self.pre_norm else hidden
        hidden = hidden + self.dropout(self.attention(inputs, bias, rotary, past=past)[0])
        hidden = hidden if self.pre_norm else self.attention_norm(hidden)

        inputs = self.cross_attention_norm(hidden) if self.pre_norm else hidden
        context, weights = self.cross_attention(
            inputs,
            memory_bias,
            memory=memory,
            output_attentions=output_attentions,
            past=memory_past,
        )
        hidden = hidden + self.dropout(context)
        hidden = hidden if self.pre_norm else self.cross_attention_norm(hidden)

        inputs = self.feedforward_norm(hidden) if self.pre_norm else hidden
        hidden = hidden + self.dropout(self.feedforward(inputs))
        hidden = hidden if self.pre_norm else self.feedforward_norm(hidden)
        return hidden, weights


def _norm(config: EncoderConfig, *, bare: bool = False) -> nn.Module:
    return nn.Identity() if bare else nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
