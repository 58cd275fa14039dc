"""One block: attention and feed-forward, each with its residual and its normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from finetune.encoder.attention import SelfAttention
from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.embeddings import Rotation
from finetune.encoder.feedforward import feed_forward
from finetune.encoder.ragged import Ragged


class EncoderBlock(nn.Module):
    """A block of the encoder, normalised after or before its sublayers.

    post: norm(x + sublayer(x)) (Vaswani et al., 2017, section 3.1).
    pre: x + sublayer(norm(x)) (Xiong et al., 2020, figure 1b); the encoder then has a final norm.
    """

    def __init__(self, config: EncoderConfig, *, first: bool = False) -> None:
        """Make the two sublayers and their norms.

        Args:
            config: The encoder's.
            first: Whether this is the encoder's first block.
        """
        super().__init__()
        size = config.hidden_size
        self.pre_norm = config.norm_position == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm: nn.Module = nn.LayerNorm(size, eps=config.layer_norm_eps)
        if first and not config.first_attention_norm:
            self.attention_norm = nn.Identity()
        self.feedforward = feed_forward(size, config.intermediate_size, config.hidden_act)
        self.feedforward_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

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
        """Update each token's hidden state.

        Args:
            hidden: (B, T, D).
            bias: Added to the attention logits; broadcasts to (B, H, T, T).
            rotary: Rotary positions of the tokens, if there are any.
            output_attentions: Whether the attention weights are wanted.
            first_only: Whether only the first token's state is wanted, as by a head that reads no
                other from the last block: most of the block's work falls away.
            ragged: Where real tokens stand; the hidden states are their rows then, (N, D).

        Returns:
            Hidden states (B, T, D) and the attention weights (B, H, T, T) or None; of the first
            token alone (B, 1, D) and (B, H, 1, T).
        """
        inputs = self.attention_norm(hidden) if self.pre_norm else hidden
        attended, weights = self.attention(
            inputs,
            bias,
            rotary,
            output_attentions=output_attentions,
            first_only=first_only,
            ragged=ragged,
        )
        hidden = (hidden[:, :1] if first_only else hidden) + self.dropout(attended)
        hidden = hidden if self.pre_norm else self.attention_norm(hidden)

        inputs = self.feedforward_norm(hidden) if self.pre_norm else hidden
        hidden = hidden + self.dropout(self.feedforward(inputs))
        hidden = hidden if self.pre_norm else self.feedforward_norm(hidden)
        return hidden, weights
