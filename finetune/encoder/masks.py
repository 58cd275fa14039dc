"""Which tokens a token may see: masks, and what they add to the logits of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from finetune.errors import ConfigError


def visible_tokens(
    attention_mask: Tensor | None,
    *,
    causal: bool,
    length: int,
    device: torch.device,
    window: int = 0,
    queries: int | None = None,
) -> Tensor | None:
    """Join padding, document bounds, direction and distance into one mask, as small as can be.

    A token that may see nothing, such as padding between documents, sees everything instead: no
    softmax of nothing, so no NaN, in any kernel and in both directions. Its state is not read.

    Args:
        attention_mask: True where a token may be attended to, bool (B, T), or bool (B, T, T)
            with a row for each query; None if all may be.
        causal: Whether a token sees itself and earlier tokens only.
        length: T.
        device: Where the mask is wanted.
        window: Tokens to each side that a token sees; 0 for all.
        queries: Q, the last tokens, which alone look; None = all T.

    Returns:
        bool that broadcasts to (B, H, T or Q, T), True = may be attended to; None if all may be.

    Raises:
        ConfigError: The mask is not bool, or has other than two or three dimensions.
    """
    if attention_mask is None and not causal and not window:
        return None
    mask = torch.ones(1, length, dtype=torch.bool, device=device)  # one row for all sequences
    if attention_mask is not None:
        mask = checked_mask(attention_mask)
    mask = mask.unsqueeze(1) if mask.dim() == 3 else mask[:, None, None]  # (B, 1, 1 or T, T)
    positions = torch.arange(length, device=device)
    ahead = positions - positions[length - (queries or length) :, None]  # (Q, T)
    if causal:
        mask = mask & (ahead <= 0)
    if window:
        mask = mask & (ahead.abs() <= window)
    return mask | ~mask.any(dim=-1, keepdim=True)


def checked_mask(attention_mask: Tensor) -> Tensor:
    """Give the mask back.

    Raises:
        ConfigError: It is not bool, or has other than two or three dimensions.
    """
    if attention_mask.dtype != torch.bool or attention_mask.dim() not in (2, 3):
        raise ConfigError(
            "attention_mask must be bool (B, T) or (B, T, T), got "
            f"{attention_mask.dtype} {tuple(attention_mask.shape)}."
        )
    return attention_mask


def mask_bias(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Turn a mask into what is added to the logits.

    Args:
        visible: True where a token may be attended to, bool, any shape.
        dtype: That of the logits.

    Returns:
        0 where visible, minus infinity elsewhere, same shape.
    """
    if visible is None:
        return None
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    # Minus infinity makes a weight exactly 0; no row is all of it, see `visible_tokens`.
    return bias.masked_fill_(~visible, -torch.inf)
