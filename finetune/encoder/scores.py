"""Score functions: how well does a query fit a key?

Each takes queries and keys (B, H, T, K) and gives logits (B, H, T, T). What follows a score
(mask, softmax, dropout, mixing of the values) is shared and lives in `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ProductScore(nn.Module):
    """A score of the form scale · fold(query) · key, which is what fused kernels compute."""

    def __init__(self, scale: float) -> None:
        """Set the factor of all logits."""
        super().__init__()
        self.scale = scale

    def fold(self, query: Tensor) -> Tensor:
        """Change the queries (B, H, T, K) so that only a product with the keys is left to do."""
        return query

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare each query with each key.

        Args:
            query: (B, H, T, K).
            key: (B, H, T, K).

        Returns:
            Logits (B, H, T, T): row = query, column = key.
        """
        # Scaling the queries costs less than scaling the logits wherever K < T.
        return (self.fold(query) * self.scale) @ key.transpose(-2, -1)


class ScaledDot(ProductScore):
    """q·k / √K (Vaswani et al., 2017, section 3.2.1)."""

    def __init__(self, num_heads: int, head_size: int) -> None:
        """Take the scale from the width of a head; there is nothing to learn."""
        super().__init__(scale=head_size**-0.5)


class Dot(ProductScore):
    """q·k (Luong et al., 2015, section 3.1, "dot")."""

    def __init__(self, num_heads: int, head_size: int) -> None:
        """There is nothing to learn."""
        super().__init__(scale=1.0)


class Bilinear(ProductScore):
    """qᵀ W k, one W a head (Luong et al., 2015, section 3.1, "general").

    W starts as 1/√K times the identity, so that training starts from the scaled dot product.
    """

    def __init__(self, num_heads: int, head_size: int) -> None:
        """Make one square matrix a head."""
        super().__init__(scale=1.0)
        start = torch.eye(head_size).mul(head_size**-0.5)
        self.weight = nn.Parameter(start.repeat(num_heads, 1, 1))  # (H, K, K)

    def fold(self, query: Tensor) -> Tensor:
        """Multiply the queries (B, H, T, K) by W, which leaves a dot product with the keys."""
        return query @ self.weight


class Additive(nn.Module):
    """vᵀ tanh(W q + U k), one such net a head (Bahdanau et al., 2015, appendix A.1.2).

    The hidden layer has K numbers for each pair of tokens, (B, H, T, T, K) in all: at 32×128
    tokens and D = 256 half a GiB a block. So a few rows of queries are scored at a time, and
    the backward pass computes them again instead of keeping them.
    """

    ROWS = 16  # queries scored at a time: 64 MiB at 32×128 tokens and D = 256

    def __init__(self, num_heads: int, head_size: int) -> None:
        """Make the matrices W and U and the vector v of each head."""
        super().__init__()
        std = head_size**-0.5  # keeps the hidden layer and the logits of the order of one
        square = (num_heads, head_size, head_size)
        self.query_weight = nn.Parameter(torch.randn(square) * std)  # W, (H, K, K)
        self.key_weight = nn.Parameter(torch.randn(square) * std)  # U, (H, K, K)
        self.vector = nn.Parameter(torch.randn(num_heads, head_size, 1) * std)  # v, (H, K, 1)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare each query with each key.

        Args:
            query: (B, H, T, K).
            key: (B, H, T, K).

        Returns:
            Logits (B, H, T, T): row = query, column = key.
        """
        from_query = query @ self.query_weight.transpose(-2, -1)  # (B, H, T, K)
        from_key = key @ self.key_weight.transpose(-2, -1)  # (B, H, T, K)
        few_rows = torch.split(from_query, self.ROWS, dim=2)
        return torch.cat([self._score(rows, from_key) for rows in few_rows], dim=2)

    def _score(self, from_query: Tensor, from_key: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self._compare(from_query, from_key)
        # `_compare` draws nothing, so the state of the generators need not be stored.
        logits: Tensor = checkpoint(
            self._compare, from_query, from_key, use_reentrant=False, preserve_rng_state=False
        )
        return logits

    def _compare(self, from_query: Tensor, from_key: Tensor) -> Tensor:
        hidden = from_query.unsqueeze(3) + from_key.unsqueeze(2)  # (B, H, rows, T, K)
        # In place, and a product with a column: so the big tensor exists only once.
        return (hidden.tanh_() @ self.vector.unsqueeze(1)).squeeze(-1)  # (B, H, rows, T)


SCORES: dict[str, Callable[[int, int], nn.Module]] = {
    "scaled_dot": ScaledDot,
    "dot": Dot,
    "bilinear": Bilinear,
    "additive": Additive,
}
"""Name in a config -> score, made from the number of heads and the width of a head."""
