"""One block: attention and feed-forward, each with its residual and its normalisation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from finetune.encoder.attention import SelfAttention, first_tokens
from finetune.encoder.cache import KeyValues
from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.embeddings import Rotation
from finetune.encoder.feedforward import feed_forward
from finetune.encoder.layout import PADDED, Padded
from finetune.encoder.norms import make_norm


class EncoderBlock(nn.Module):
    """A block of the encoder, normalised after, before or at the end of its sublayers.

    post: norm(x + sublayer(x)) (Vaswani et al., 2017, section 3.1).
    pre: x + sublayer(norm(x)) (Xiong et al., 2020, figure 1b); the encoder then has a final norm.
    output: x + norm(sublayer(x)) (Liu et al., 2022, section 3.2), and a final norm too.

    Without `residual`, "x +" is left out: for the ablation (Dong et al., 2021, section 2).
    """

    def __init__(self, config: EncoderConfig, *, first: bool = False) -> None:
        """Make the two sublayers and their norms.

        Args:
            config: The encoder's.
            first: Whether this is the encoder's first block.
        """
        super().__init__()
        size = config.hidden_size
        self.norm_position, self.residual = config.norm_position, config.residual
        self.attention = SelfAttention(config)
        self.attention_norm: nn.Module = make_norm(config, size)
        if first and not config.first_attention_norm:
            # ModernBERT's first block: the embeddings have just been normalized.
            self.attention_norm = nn.Identity()
        self.feedforward = feed_forward(size, config.intermediate_size, config.hidden_act)
        self.feedforward_norm = make_norm(config, size)
        self.dropout = Dropout(config.hidden_dropout_prob)  # without state: both sublayers use it

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor | None = None,
        rotary: Rotation | None = None,
        *,
        queries: int | None = None,
        layout: Padded = PADDED,
        output_attentions: bool = False,
        past: KeyValues | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Update each token's hidden state.

        Args:
            hidden: (B, T, D), or (N, D) in an unpadded layout.
            bias: Added to the attention logits; broadcasts to (B, H, T, T).
            rotary: Rotary positions of the tokens, if there are any.
            queries: Q, the first tokens of a padded layout whose states are wanted; None = all T.
                Where a head reads one token, most of the last block's work falls away.
            layout: How the tokens lie in the hidden states.
            output_attentions: Whether the attention weights are wanted.
            past: Keys and values of earlier tokens; extended by those of these.

        Returns:
            Hidden states (B, Q, D) or (N, D), and the attention weights (B, H, Q, T) or None.
        """
        attended, weights = self.attention(
            self._inputs(hidden, self.attention_norm),
            bias,
            rotary,
            queries=queries,
            layout=layout,
            output_attentions=output_attentions,
            past=past,
        )
        hidden = self._add(first_tokens(hidden, queries), attended, self.attention_norm)
        changed = self.feedforward(self._inputs(hidden, self.feedforward_norm))
        return self._add(hidden, changed, self.feedforward_norm), weights

    def _inputs(self, hidden: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """What a sublayer reads."""
        return norm(hidden) if self.norm_position == "pre" else hidden

    def _add(self, hidden: Tensor, changed: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Join what a sublayer gave with the states before it."""
        changed = self.dropout(norm(changed) if self.norm_position == "output" else changed)
        joined = hidden + changed if self.residual else changed
        return norm(joined) if self.norm_position == "post" else joined
