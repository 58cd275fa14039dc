"""One block of the decoder: self-attention, cross-attention and feed-forward."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from finetune.encoder.attention import SelfAttention
from finetune.encoder.block import ResidualBlock
from finetune.encoder.cache import KeyValues
from finetune.encoder.config import EncoderConfig
from finetune.encoder.embeddings import Rotation
from finetune.encoder.feedforward import feed_forward
from finetune.encoder.norms import make_norm


class DecoderBlock(ResidualBlock):
    """A block of the decoder (Vaswani et al., 2017, section 3.1).

    Between the two sublayers of an encoder's block a third one looks at the encoder's states: the
    query is the decoder's state, keys and values are the encoder's, and the score is any of
    `encoder/scores.py`. With `additive` it is the attention of Bahdanau et al. (2015), with `dot`
    and `bilinear` that of Luong et al. (2015), many heads each. Sublayers are joined as in
    `ResidualBlock`.
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
        super().__init__(config)
        size = config.hidden_size
        score = cross_score or config.attention_score
        self.attention = SelfAttention(config)
        self.attention_norm: nn.Module = make_norm(config, size)
        if first and not config.first_attention_norm:
            self.attention_norm = nn.Identity()
        self.cross_attention = SelfAttention(
            dataclasses.replace(config, attention_score=score), memory_size
        )
        self.cross_attention_norm = make_norm(config, size)
        self.feedforward = feed_forward(size, config.intermediate_size, config.hidden_act)
        self.feedforward_norm = make_norm(config, size)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        memory_bias: Tensor | None = None,
        bias: Tensor | None = None,
        rotary: Rotation | None = None,
        distances: Tensor | None = None,
        *,
        output_attentions: bool = False,
        past: KeyValues | None = None,
        memory_past: KeyValues | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Update each token's hidden state.

        Args:
            hidden: (B, S, D).
            memory: The encoder's states, (B, T, memory_size).
            memory_bias: Added to the logits of cross-attention; broadcasts to (B, H, S, T).
            bias: Added to those of self-attention; broadcasts to (B, H, S, S).
            rotary: Rotary positions of the target's tokens, if there are any.
            distances: Sinusoids of all distances, where positions are relative.
            output_attentions: Whether the weights of cross-attention are wanted.
            past: Keys and values of earlier tokens of the targets; extended by those of these.
            memory_past: Keys and values of the memory, computed once.

        Returns:
            Hidden states (B, S, D), and the weights of cross-attention (B, H, S, T) or None.
        """
        inputs = self._inputs(hidden, self.attention_norm)
        attended, _ = self.attention(inputs, bias, rotary, distances, past=past)
        hidden = self._add(hidden, attended, self.attention_norm)
        context, weights = self.cross_attention(
            self._inputs(hidden, self.cross_attention_norm),
            memory_bias,
            memory=memory,
            output_attentions=output_attentions,
            past=memory_past,
        )
        hidden = self._add(hidden, context, self.cross_attention_norm)
        inputs = self._inputs(hidden, self.feedforward_norm)
        hidden = self._add(hidden, self.feedforward(inputs), self.feedforward_norm)
        return hidden, weights
