"""One block of each kind, its sublayers with their residual and their normalisation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from finetune.encoder.attention import SelfAttention
from finetune.encoder.cache import KeyValues
from finetune.encoder.config import EncoderConfig
from finetune.encoder.convolution import Convolution
from finetune.encoder.dropout import Dropout, LockedDropout
from finetune.encoder.embeddings import Rotation
from finetune.encoder.feedforward import feed_forward
from finetune.encoder.layout import PADDED, Padded, Rows
from finetune.encoder.norms import make_norm
from finetune.encoder.recurrent import Recurrent
from finetune.errors import ConfigError


class ResidualBlock(nn.Module):
    """A block of the encoder, normalised after, before or at the end of its sublayers.

    post: norm(x + sublayer(x)) (Vaswani et al., 2017, section 3.1).
    pre: x + sublayer(norm(x)) (Xiong et al., 2020, figure 1b); the encoder then has a final norm.
    output: x + norm(sublayer(x)) (Liu et al., 2022, section 3.2), and a final norm too.

    Without `residual`, "x +" is left out: for the ablation (Dong et al., 2021, section 2).
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Read how sublayers are joined."""
        super().__init__()
        self.norm_position, self.residual = config.norm_position, config.residual
        dropout = LockedDropout if config.locked_dropout else Dropout
        self.dropout = dropout(config.hidden_dropout_prob)  # no state: all sublayers use it

    def _inputs(self, hidden: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """What a sublayer reads."""
        return norm(hidden) if self.norm_position == "pre" else hidden

    def _add(self, hidden: Tensor, changed: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Join what a sublayer gave with the states before it."""
        changed = self.dropout(norm(changed) if self.norm_position == "output" else changed)
        joined = hidden + changed if self.residual else changed
        return norm(joined) if self.norm_position == "post" else joined


class EncoderBlock(ResidualBlock):
    """A block of the transformer: attention, then feed-forward."""

    def __init__(self, config: EncoderConfig, *, first: bool = False) -> None:
        """Make the two sublayers and their norms.

        Args:
            config: The encoder's.
            first: Whether this is the encoder's first block.
        """
        super().__init__(config)
        size = config.hidden_size
        self.attention = SelfAttention(config)
        self.attention_norm: nn.Module = make_norm(config, size)
        if first and not config.first_attention_norm:
            # ModernBERT's first block: the embeddings have just been normalized.
            self.attention_norm = nn.Identity()
        self.feedforward = feed_forward(size, config.intermediate_size, config.hidden_act)
        self.feedforward_norm = make_norm(config, size)

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor | None = None,
        rotary: Rotation | None = None,
        distances: Tensor | None = None,
        *,
        queries: Padded | None = None,
        layout: Padded = PADDED,
        output_attentions: bool = False,
        past: KeyValues | None = None,
        earlier: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Update each token's hidden state.

        Args:
            hidden: (B, T, D), or (N, D) in an unpadded layout.
            bias: Added to the attention logits; broadcasts to (B, H, T, T).
            rotary: Rotary positions of the tokens, if there are any.
            distances: Sinusoids of all distances, where positions are relative.
            queries: Layout of the Q tokens whose states are wanted, out of a padded layout; None =
                all T. Where a head reads few tokens, most of the last block's work falls away.
            layout: How the tokens lie in the hidden states.
            output_attentions: Whether the attention weights are wanted.
            past: Keys and values of earlier tokens; extended by those of these.
            earlier: States of M tokens before these, (B, M, D), that these attend to too.

        Returns:
            Hidden states (B, Q, D) or (N, D), and the attention weights (B, H, Q, T) or None.
        """
        attended, weights = self.attention(
            self._inputs(hidden, self.attention_norm),
            bias,
            rotary,
            distances,
            queries=queries,
            layout=layout,
            output_attentions=output_attentions,
            past=past,
            earlier=None if earlier is None else self._inputs(earlier, self.attention_norm),
        )
        hidden = self._add((queries or layout).take(hidden), attended, self.attention_norm)
        changed = self.feedforward(self._inputs(hidden, self.feedforward_norm))
        return self._add(hidden, changed, self.feedforward_norm), weights


class SequenceBlock(ResidualBlock):
    """A block that reads the tokens in order: one sublayer, and no feed-forward part."""

    def __init__(self, config: EncoderConfig, sublayer: Callable[[EncoderConfig], nn.Module]):
        """Make the sublayer and its norm.

        Args:
            config: The encoder's.
            sublayer: Hidden states (B, T, D) and `Rows` or None -> (B, T, D).
        """
        super().__init__(config)
        self.sublayer = sublayer(config)
        self.norm = make_norm(config, config.hidden_size)

    def forward(
        self,
        hidden: Tensor,
        rows: Rows | None = None,
        rotary: None = None,
        distances: None = None,
        *,
        queries: Padded | None = None,
        layout: Padded = PADDED,
        output_attentions: bool = False,
        past: KeyValues | None = None,
        earlier: None = None,
    ) -> tuple[Tensor, None]:
        """Update each token's hidden state.

        Args:
            hidden: (B, T, D), or (N, D) in an unpadded layout.
            rows: Where the sequences are; None where each row of the batch is one.
            rotary: None: such a block sees the order itself.
            distances: None, for the same reason.
            queries: Layout of the Q tokens whose states are wanted; None = all T.
            layout: How the tokens lie in the hidden states.
            output_attentions: Without effect: there are none.
            past: None: there are no keys and values.
            earlier: None: no memory is read.

        Returns:
            Hidden states (B, Q, D) or (N, D), and None.
        """
        inputs = layout.pad(self._inputs(hidden, self.norm))
        outputs = layout.unpad(self.sublayer(inputs, rows))
        return (queries or layout).take(self._add(hidden, outputs, self.norm)), None


def transformer_block(config: EncoderConfig, number: int) -> nn.Module:
    """Attention and feed-forward."""
    return EncoderBlock(config, first=number == 0)


def lstm_block(config: EncoderConfig, number: int) -> nn.Module:
    """An LSTM in each direction."""
    return SequenceBlock(config, Recurrent)


def conv_block(config: EncoderConfig, number: int) -> nn.Module:
    """Filters of several widths."""
    return SequenceBlock(config, Convolution)


BLOCKS: dict[str, Callable[[EncoderConfig, int], nn.Module]] = {
    "transformer": transformer_block,
    "lstm": lstm_block,
    "conv": conv_block,
}
"""Name in a config -> what makes block number n, from 0."""


def call_compiled(block: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Call a block as torch.compile has compiled it.

    Args:
        block: Any number of blocks of one form share what is compiled.
        inputs: The block's.
        options: The block's.

    Raises:
        ConfigError: Torch's compiler, or the one that it calls, does not work here.
    """
    from torch._dynamo.exc import TorchDynamoException  # here: the compiler takes a second

    try:
        outputs: tuple[Tensor, Tensor | None] = _compiled()(block, *inputs, **options)
    except TorchDynamoException as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"compile: expected blocks that torch.compile can compile on this machine, got: "
            f"{reason}; leave compile out"
        ) from error
    return outputs


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    # Dynamic from the start: batches have many lengths, each of which would be compiled apart.
    return torch.compile(_call, dynamic=True)


def _call(block: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    outputs: tuple[Tensor, Tensor | None] = block(*inputs, **options)
    return outputs
