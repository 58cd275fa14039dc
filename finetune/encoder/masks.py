"""Which tokens a token may see: masks, and what they add to the logits of attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from finetune.errors import ConfigError


def _window(query: Tensor, key: Tensor, size: int) -> Tensor:
    """Tokens nearby (Beltagy et al., 2020, section 3.1)."""
    return (key - query).abs() <= size


def _strided(query: Tensor, key: Tensor, size: int) -> Tensor:
    """Tokens nearby, and every N-th one (Child et al., 2019, section 4.2)."""
    return _window(query, key, size) | ((key - query) % size == 0)


def _block(query: Tensor, key: Tensor, size: int) -> Tensor:
    """Tokens of the same block of N (Qiu et al., 2020, section 3, without permutations)."""
    return query // size == key // size


PATTERNS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "window": _window,
    "strided": _strided,
    "block": _block,
}
"""Name in a config -> which keys a query sees: positions (Q, 1) and (S), N -> bool (Q, S)."""


def visible_tokens(
    attention_mask: Tensor | None,
    *,
    causal: bool,
    length: int,
    device: torch.device,
    window: int = 0,
    queries: int | None = None,
    pattern: str = "window",
    is_global: Tensor | None = None,
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
        pattern: Which tokens a window is of, one of `PATTERNS`.
        is_global: With a window: tokens that see all and that all see, bool (B, T).

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
    rows = positions[length - (queries or length) :, None]  # (Q, 1)
    if causal:
        mask = mask & (positions <= rows)
    if window:
        near = PATTERNS[pattern](rows, positions, window)  # (Q, T)
        if is_global is not None:
            looks = is_global[:, -rows.shape[0] :]  # not len, which a graph would take as fixed
            near = near | is_global[:, None, None] | looks[:, None, :, None]
        mask = mask & near
    return mask | ~mask.any(dim=-1, keepdim=True)


def global_tokens(
    kind: str, shape: torch.Size, mask: Tensor | None, segments: Tensor | None, device: torch.device
) -> Tensor | None:
    """Find the tokens that see all and that all see.

    Args:
        kind: none, cls or question.
        shape: B and T, or more.
        mask: The batch's `attention_mask`.
        segments: The batch's `token_type_ids`, int64 (B, T), where it has some.
        device: Where the answer is wanted.

    Returns:
        bool (B, T); None where no token is global.
    """
    if kind == "none":
        return None
    is_cls = torch.zeros(shape[:2], dtype=torch.bool, device=device)
    is_cls[:, 0] = True
    if kind == "cls" or segments is None:
        return is_cls
    is_token = mask if mask is not None and mask.dim() == 2 else torch.ones_like(is_cls)
    first, second = ((segments == number) & is_token for number in (0, 1))
    lengths = first.sum(dim=1, keepdim=True), second.sum(dim=1, keepdim=True)
    question = torch.where(lengths[1] < lengths[0], second, first)
    return is_cls | (question & (lengths[1] > 0))  # one text alone has no question


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
