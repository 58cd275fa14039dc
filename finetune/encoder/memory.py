"""Transformer-XL's memory: states of tokens before a block (Dai et al., 2019, section 3.2).

A text of any length is read block by block, and each block also attends to what the last N tokens
before it have left at the input of each layer. Gradients stop there: a block costs what it costs
without a past, and L blocks of N tokens are within reach.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Memory:
    """The last N tokens' states at the input of each block; `Encoder.forward` fills it.

    Row b of a batch continues row b of the batch before; a later batch may have fewer rows.

    >>> import torch
    >>> from finetune import Encoder, EncoderConfig
    >>> from finetune.encoder.memory import Memory
    >>> encoder = Encoder(EncoderConfig(vocab_size=100, hidden_size=16, num_hidden_layers=2,
    ...     num_attention_heads=2, intermediate_size=32, causal=True, position="relative"))
    >>> memory = Memory(4)
    >>> for block in torch.arange(18).view(3, 1, 6):  # three blocks of one text
    ...     hidden = encoder({"input_ids": block}, memory=memory).last_hidden_state
    >>> hidden.shape, memory.length
    (torch.Size([1, 6, 16]), 4)
    """

    def __init__(self, size: int) -> None:
        """Start without a past.

        Args:
            size: N, tokens that are remembered; 1 or more.
        """
        self.size = size
        self.states: dict[int, Tensor] = {}
        """Boundary 0 .. L - 1 -> states without a gradient, (B, M, D), M at most N."""

    @property
    def length(self) -> int:
        """Tokens that are remembered so far, M."""
        return self.states[0].shape[1] if self.states else 0

    def extend(self, boundary: int, hidden: Tensor) -> Tensor | None:
        """Remember the next tokens' states at a boundary, (B, T, D).

        Returns:
            What was remembered before, (B, M, D); None at first.
        """
        before = self.states.get(boundary)
        before = None if before is None else before[: len(hidden)]
        following = hidden.detach() if before is None else torch.cat([before, hidden.detach()], 1)
        # A copy, as a view would hold all of it in memory and in checkpoints.
        self.states[boundary] = following[:, -self.size :].clone()
        return before
