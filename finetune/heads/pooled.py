"""Heads: hidden states to logits, and logits with labels to a loss.

A head knows the encoder's sizes and nothing of the task: many tasks share few heads. Losses are
computed in float32 whatever the logits' precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Dropout, EncoderConfig, activation, initialize_weights
from finetune.errors import ConfigError, nearest

IGNORED = -100
"""Label of a token that takes no part in the loss."""


class MaskedLM(nn.Module):
    """Predict masked tokens (Devlin et al., 2019, section 3.1).

    A transform D -> E, then a product with the word embeddings, then a bias for each word.
    """

    kind = "masked_lm"

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Embedding) -> None:
        """Make the transform, the biases and, unless tied, the output weights.

        Args:
            config: The encoder's config; `tie_word_embeddings` decides where the weights live.
            word_embeddings: The encoder's table (V, E). Tied, it stays the encoder's parameter
                and is none of this head's.
        """
        super().__init__()
        size = config.word_embedding_size
        self.dense = nn.Linear(config.hidden_size, size)
        self.activation = activation(config.hidden_act)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # A tuple hides a tied table from this module's parameters: it belongs to the encoder.
        self._tied = (word_embeddings,) if config.tie_word_embeddings else ()
        if not self._tied:
            self.decoder = nn.Linear(size, config.vocab_size, bias=False)
        initialize_weights(self, config.initializer_range)

    @property
    def weight(self) -> Tensor:
        """The output weights (V, E): the word embeddings if tied."""
        return self._tied[0].weight if self._tied else self.decoder.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Score each word of the vocabulary; give it masked positions only, as V is large.

        Args:
            hidden: Last hidden states, (N, D).

        Returns:
            Logits (N, V).
        """
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))  # (N, E)
        return F.linear(transformed, self.weight, self.bias)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy over the labelled tokens.

        Args:
            logits: (N, V).
            labels: int64 (N,), -100 where a token takes no part.

        Returns:
            Nats a labelled token, float32 scalar; 0 where there is none.
        """
        total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
        return total / (labels != IGNORED).sum().clamp(min=1)


def first_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Take the state of [CLS], (B, T, D) -> (B, D)."""
    return hidden[:, 0]


def mean_over_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average over attended tokens, (B, T, D) and bool (B, T) -> (B, D)."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    attended = attention_mask.unsqueeze(-1)  # (B, T, 1)
    return (hidden * attended).sum(dim=1) / attended.sum(dim=1).clamp(min=1)


def max_over_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Take the largest value over attended tokens, (B, T, D) and bool (B, T) -> (B, D)."""
    if attention_mask is None:
        return hidden.amax(dim=1)
    lowest = torch.finfo(hidden.dtype).min
    largest = hidden.masked_fill(~attention_mask.unsqueeze(-1), lowest).amax(dim=1)
    return largest.masked_fill(~attention_mask.any(dim=1, keepdim=True), 0.0)


def first_max_and_mean(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Concatenate three poolings, (B, T, D) and bool (B, T) -> (B, 3D)."""
    poolings = (first_token, max_over_tokens, mean_over_tokens)
    return torch.cat([pool(hidden, attention_mask) for pool in poolings], dim=-1)


POOLINGS = {
    "cls": first_token,
    "mean": mean_over_tokens,
    "max": max_over_tokens,
    "concat": first_max_and_mean,
}
"""Name in a config -> (hidden (B, T, D), attention_mask bool (B, T) or None) -> vector."""


@dataclass(frozen=True)
class HeadConfig:
    """How the hidden states of a text become one vector.

    Raises:
        ConfigError: The pooling is unknown, or the dropout lies outside [0, 1).
    """

    pooling: str = "cls"
    """cls, mean, max, or concat (first token, max and mean, as in ULMFiT)."""
    head_dropout: float | None = None
    """Dropout before the output layer, in [0, 1); hidden_dropout_prob unless set."""

    def __post_init__(self) -> None:
        """Refuse what no head can be made from."""
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"unknown pooling '{self.pooling}'; {nearest(self.pooling, POOLINGS)}"
            )
        rate = 0.0 if self.head_dropout is None else self.head_dropout
        if not isinstance(rate, (int, float)) or not 0.0 <= rate < 1.0:
            raise ConfigError(f"head_dropout must lie in [0, 1), found {rate!r}.")

    def dropout(self, config: EncoderConfig) -> float:
        """Choose the rate: the head's own, or the encoder's."""
        return config.hidden_dropout_prob if self.head_dropout is None else self.head_dropout


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that bears a batch of one example, as the last of an epoch may be."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise (B, features) by the batch, or by the running statistics if it is one row."""
        if len(inputs) > 1 or not self.training:
            return super().forward(inputs)
        return F.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


ULMFIT_HIDDEN_SIZE = 50
ULMFIT_HIDDEN_DROPOUT = 0.1


def output_layers(config: EncoderConfig, head: HeadConfig, num_outputs: int) -> nn.Sequential:
    """Make what stands between a pooled vector and the logits.

    cls: BERT's pooler (dense and tanh), dropout, linear. concat: ULMFiT's two blocks of batch
    normalisation, dropout and linear (Howard and Ruder, 2018, section 3.3). mean, max: dropout
    and linear.

    Args:
        config: The encoder's config.
        head: Names the pooling and the dropout.
        num_outputs: C.

    Returns:
        Layers (B, D or 3D) -> (B, C).
    """
    size, dropout = config.hidden_size, Dropout(head.dropout(config))
    if head.pooling == "cls":
        return nn.Sequential(
            nn.Linear(size, size), nn.Tanh(), dropout, nn.Linear(size, num_outputs)
        )
    if head.pooling == "concat":
        return nn.Sequential(
            BatchNorm(3 * size),
            dropout,
            nn.Linear(3 * size, ULMFIT_HIDDEN_SIZE),
            nn.ReLU(),
            BatchNorm(ULMFIT_HIDDEN_SIZE),
            Dropout(ULMFIT_HIDDEN_DROPOUT),
            nn.Linear(ULMFIT_HIDDEN_SIZE, num_outputs),
        )
    return nn.Sequential(dropout, nn.Linear(size, num_outputs))


class PooledHead(nn.Module):
    """One vector a text, then its output layers: what classification and regression share."""

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_outputs: int) -> None:
        """Make the output layers that belong to the pooling."""
        super().__init__()
        self.pool = POOLINGS[head.pooling]
        self.layers = output_layers(config, head, num_outputs)
        initialize_weights(self, config.initializer_range)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Pool the hidden states and compute the outputs.

        Args:
            hidden: Last hidden states, (B, T, D).
            attention_mask: True where there is a token, bool (B, T); None if everywhere.

        Returns:
            (B, C).
        """
        logits: Tensor = self.layers(self.pool(hidden, attention_mask))
        return logits


class Classification(PooledHead):
    """One of C classes for each text."""

    kind = "classification"

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_labels: int) -> None:
        """Make a head with one logit for each of `num_labels` classes."""
        super().__init__(config, head, num_labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy.

        Args:
            logits: (B, C).
            labels: int64 (B,), 0 .. C - 1.

        Returns:
            Nats an example, float32 scalar.
        """
        return F.cross_entropy(logits.float(), labels)


class Regression(PooledHead):
    """One number for each text."""

    kind = "regression"

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        """Make a head with a single output."""
        super().__init__(config, head, num_outputs=1)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Predict a number for each text: as in a pooled head, but (B,)."""
        return super().forward(hidden, attention_mask).squeeze(-1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the squared error.

        Args:
            logits: (B,).
            labels: float (B,).

        Returns:
            float32 scalar.
        """
        return F.mse_loss(logits.float(), labels.float())
