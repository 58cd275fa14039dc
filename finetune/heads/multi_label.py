"""The multi-label head: any number of C classes hold for a text, each decided on its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.heads.pooled import HeadConfig, PooledHead


class MultiLabel(PooledHead):
    """Whether each of C classes holds; a logit above 0 says yes."""

    kind = "multi_label"

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_labels: int) -> None:
        """Make a head with one logit for each of `num_labels` classes."""
        super().__init__(config, head, num_labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the binary cross-entropy over classes and texts.

        Args:
            logits: (B, C).
            labels: 1 where the class holds, 0 where not, float (B, C).

        Returns:
            Nats a decision, float32 scalar.
        """
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
