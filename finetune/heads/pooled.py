"""Heads that read one vector a text: output layers, one class, several labels, a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Dropout, EncoderConfig, initialize_weights
from finetune.heads.config import PAIR_POOLINGS, HeadConfig
from finetune.heads.pooling import AlignPooling, find_mix, find_pooling, first_token, last_token
from finetune.heads.protocol import TaskHead, cross_entropy
from finetune.heads.windows import WindowPooling, find_upper


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization that accepts a batch of one example, as the last of an epoch may be."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise (B, features) by the batch, or by the running statistics if it is one row."""
        if not self.training or len(inputs) > 1:
            return super().forward(inputs)
        # Of one row the variance is 0, and torch refuses it.
        return F.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


ULMFIT_HIDDEN_SIZE = 50  # of the paper, section 4.1
ULMFIT_HIDDEN_DROPOUT = 0.1  # of its released code


def output_layers(config: EncoderConfig, head: HeadConfig, num_outputs: int) -> nn.Sequential:
    """Make what stands between a pooled vector and the logits.

    cls: BERT's pooler (dense and tanh), dropout, linear. concat: ULMFiT's two blocks of batch
    normalisation, dropout and linear (Howard and Ruder, 2018, section 3.3). Those of pairs: layer
    norm, dropout, a hidden layer, dropout and linear. last, mean, max, attention: dropout and
    linear.

    Args:
        config: The encoder's config.
        head: Names the pooling and the dropout; resolved.
        num_outputs: C.

    Returns:
        Layers (B, D or 3D or 4D) -> (B, C).
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
    if head.pooling in PAIR_POOLINGS:
        return nn.Sequential(
            # Products of two states have another scale than the states beside them.
            nn.LayerNorm(4 * size, eps=config.layer_norm_eps),
            dropout,
            nn.Linear(4 * size, size),
            nn.ReLU(),
            Dropout(head.dropout(config)),
            nn.Linear(size, num_outputs),
        )
    return nn.Sequential(dropout, nn.Linear(size, num_outputs))


class PooledHead(nn.Module, TaskHead):
    """One vector a text, then its output layers: what classification and regression share."""

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_outputs: int) -> None:
        """Make the output layers that belong to the pooling."""
        super().__init__()
        head = self.config = head.resolved(config)
        """The settings, with the pooling that is used."""
        self.reads_ids = head.pooling in PAIR_POOLINGS
        self.pool = find_pooling(str(head.pooling), config, head.dropout(config))
        self.mix = find_mix(head.layers, config)
        self.all_layers = head.layers == "mix"
        self.first_only = self.pool is first_token and not self.all_layers
        self.last_only = self.pool is last_token and not self.all_layers
        self.upper = find_upper(head.levels, str(head.pooling), config)
        self.windows = WindowPooling(str(head.pooling), self.pool, causal=config.causal)
        self.layers = output_layers(config, head, num_outputs)
        initialize_weights(self, config.initializer_range)

    def settings(self) -> dict[str, Any]:
        """The settings, with the pooling that is used."""
        return dataclasses.asdict(self.config)

    def flops(self, length: int) -> int:
        """Operations a text of `length` tokens, forward, two a multiply-add.

        Those of a pooling are left out where there are few: all but `align`.
        """
        layers = 2 * sum(one.weight.numel() for one in self.layers if isinstance(one, nn.Linear))
        return layers + (self.pool.flops(length) if isinstance(self.pool, AlignPooling) else 0)

    def start_from(self, pooler: Mapping[str, Tensor]) -> None:
        """Take over a pretrained pooler, where the pooling is `cls`; else change nothing.

        Args:
            pooler: `weight` (D, D) and `bias` (D,) of a dense layer with tanh behind it.
        """
        if self.pool is first_token:
            self.layers[0].load_state_dict(pooler)

    def reset_pooler(self, initializer_range: float) -> None:
        """Give BERT's pooler fresh weights, where the pooling is `cls`; else change nothing."""
        if self.pool is first_token:
            initialize_weights(self.layers[0], initializer_range)

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        input_ids: Tensor | None = None,
        window_of: Tensor | None = None,
    ) -> Tensor:
        """Pool the hidden states and compute the outputs.

        Args:
            hidden: Last hidden states, (B, T, D); (B, 1, D) will do where `first_only` or
                `last_only` says so. Those of all layers, (L + 1, B, T, D), where `all_layers` does.
            attention_mask: True where there is a token, bool (B, T); None if everywhere.
            input_ids: int64 (B, T); only where `reads_ids` says so.
            window_of: Number of the text that each sequence is a window of, int64 (B,); None where
                each is a text.

        Returns:
            (B, C), or (N, C) of N texts in windows.

        Raises:
            ValueError: The pooling compares two texts, and there are no ids to tell them apart.
        """
        read = (attention_mask, input_ids) if self.reads_ids else (attention_mask,)
        hidden = self.mix(hidden)
        vectors = self.pool(hidden, *read)
        if self.upper is not None:
            vectors = self.upper(vectors, window_of)
        elif window_of is not None:
            vectors = self.windows(vectors, hidden, attention_mask, window_of)
        logits: Tensor = self.layers(vectors)
        return logits

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers are read off: the logits themselves, (B, C) or (B,)."""
        return logits


class Classification(PooledHead):
    """One of C classes for each text.

    >>> import torch
    >>> from finetune import Classification, EncoderConfig, HeadConfig
    >>> config = EncoderConfig(hidden_size=16, num_attention_heads=2)
    >>> head = Classification(config, HeadConfig(), num_labels=3)
    >>> logits = head(torch.zeros(2, 5, 16))  # of two texts of five tokens
    >>> logits.shape
    torch.Size([2, 3])
    >>> round(head.loss(logits, torch.tensor([0, 2])).item(), 4)  # it knows nothing: ln 3
    1.0986
    """

    kind = "classification"
    class_weights: Tensor | None

    def __init__(
        self,
        config: EncoderConfig,
        head: HeadConfig,
        num_labels: int,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        """Make a head with one logit for each of `num_labels` classes.

        Args:
            config: The encoder's config.
            head: Names the pooling and the dropout.
            num_labels: C.
            class_weights: What an example of each class counts in the loss, (C,); None: 1 each.

        Raises:
            ValueError: There are not C weights.
        """
        super().__init__(config, head, num_labels)
        if class_weights is not None and len(class_weights) != num_labels:
            raise ValueError(f"expected {num_labels} class weights, got {len(class_weights)}")
        weights = None if class_weights is None else torch.tensor(class_weights)
        # Not in checkpoints, which have what was learned: class weights are a setting of training.
        self.register_buffer("class_weights", weights, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy, each example times the weight of its class.

        Args:
            logits: (B, C).
            labels: int64 (B,), 0 .. C - 1; -100 where the class is not known.

        Returns:
            Nats a labelled example, float32 scalar; 0 where none is labelled.
        """
        return cross_entropy(logits, labels, class_weights=self.class_weights)


class Regression(PooledHead):
    """One number for each text.

    >>> import torch
    >>> from finetune import EncoderConfig, HeadConfig, Regression
    >>> config = EncoderConfig(hidden_size=16, num_attention_heads=2)
    >>> head = Regression(config, HeadConfig())
    >>> numbers = head(torch.zeros(2, 5, 16))  # of two texts of five tokens
    >>> numbers.shape
    torch.Size([2])
    >>> head.loss(numbers, torch.tensor([1.0, 3.0])).item()
    5.0
    """

    kind = "regression"

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        """Make a head with a single output."""
        super().__init__(config, head, num_outputs=1)

    def start_at(self, mean: float) -> None:
        """Let a fresh head predict the mean of the labels, rather than learn it first.

        From 0, labels around 1,000 would take the whole run: a step moves the bias by about the
        learning rate.
        """
        output = self.layers[-1]
        assert isinstance(output, nn.Linear)  # as all of `output_layers` end
        nn.init.constant_(output.bias, mean)

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        input_ids: Tensor | None = None,
        window_of: Tensor | None = None,
    ) -> Tensor:
        """Predict a number for each text: as in a pooled head, but (B,)."""
        return super().forward(hidden, attention_mask, input_ids, window_of).squeeze(-1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the squared error.

        Args:
            logits: (B,).
            labels: float (B,).

        Returns:
            float32 scalar.
        """
        return F.mse_loss(logits.float(), labels.float())


class MultiLabel(PooledHead):
    """Whether each of C classes applies; a logit above 0 says yes.

    >>> import torch
    >>> from finetune import EncoderConfig, HeadConfig, MultiLabel
    >>> config = EncoderConfig(hidden_size=16, num_attention_heads=2)
    >>> head = MultiLabel(config, HeadConfig(), num_labels=3)
    >>> logits = head(torch.zeros(2, 5, 16))  # of two texts of five tokens
    >>> logits.shape
    torch.Size([2, 3])
    >>> both, none = [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]
    >>> round(head.loss(logits, torch.tensor([both, none])).item(), 4)  # undecided: ln 2
    0.6931
    """

    kind = "multi_label"

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_labels: int) -> None:
        """Make a head with one logit for each of `num_labels` classes."""
        super().__init__(config, head, num_labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the binary cross-entropy over classes and texts.

        Args:
            logits: (B, C).
            labels: 1 where the class applies, 0 where not, float (B, C).

        Returns:
            Nats a decision, float32 scalar.
        """
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
