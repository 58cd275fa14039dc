"""The multi-label head: any number of C classes apply to a text, each decided on its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.heads.config import HeadConfig
from finetune.heads.pooled import PooledHead


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
