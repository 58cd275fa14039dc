"""The next token from the logits of a language model: the best one, or one that is drawn.

Pure functions: what is random comes in as numbers of [0, 1), so that a text depends neither on the
batch that it is written in nor on what was drawn before it.
"""

from __future__ import annotations

from torch import Tensor


def greedy(logits: Tensor) -> Tensor:
    """The most probable token of each row, (B, V) -> int64 (B,)."""
    return logits.argmax(dim=-1)


def sample(
    logits: Tensor,
    uniform: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Tensor:
    """Draw a token of each row from softmax(logits / temperature), cut to its most probable tokens.

    First to the `top_k` best (Fan et al., 2018, section 5.4), then to the smallest set of them that
    has at least the probability `top_p` (nucleus sampling; Holtzman et al., 2020, section 3.1).

    >>> import torch
    >>> from finetune.heads.sampling import sample
    >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> [sample(logits, torch.tensor([u])).item() for u in (0.49, 0.51, 0.99)]
    [0, 1, 2]
    >>> sample(logits, torch.tensor([0.99]), top_p=0.6).item()
    1

    Args:
        logits: (B, V).
        uniform: What decides, in [0, 1), (B,).
        temperature: Above 0; below 1 it sharpens the distribution.
        top_k: Tokens that are drawn from, at least 1; None for all.
        top_p: Probability of the tokens that are drawn from, above 0 and at most 1.

    Returns:
        int64 (B,).
    """
    # The most probable first: the cumulative sum then cuts the tail, and it reads off the draw.
    ordered, tokens = (logits.double() / temperature).sort(dim=-1, descending=True, stable=True)
    probabilities = ordered[:, :top_k].softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # of the more probable tokens
    kept = probabilities.masked_fill(before >= top_p, 0.0)
    kept = kept.cumsum(dim=-1)
    drawn = (kept <= uniform.double().unsqueeze(1) * kept[:, -1:]).sum(dim=-1, keepdim=True)
    return tokens.gather(1, drawn).squeeze(1)
