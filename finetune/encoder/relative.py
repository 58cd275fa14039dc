"""Positions as the distance of a query from a key, added to the logits of attention.

Nothing is learned for a place of its own, so a text may be longer than those of training. Distances
count the tokens between: of documents in a block, only pairs inside a document are looked at.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.config import EncoderConfig
from finetune.encoder.embeddings import position_angles


def alibi_slopes(num_heads: int) -> list[float]:
    """How fast each head forgets: 2^(-8/H), 2^(-16/H), … 2^-8 (Press et al., 2022, section 3).

    Where H is no power of two, as in the authors' code: those of the power below, then every second
    one of the power above.

    Args:
        num_heads: H.
    """
    power: int = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def alibi_bias(num_heads: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """-m |i - j|: attention with linear biases (Press et al., 2022, section 3).

    The paper's is causal; in both directions the distance counts, whichever side it lies on.

    Args:
        num_heads: H.
        queries: Q, the last of the tokens.
        keys: S, all tokens.
        device: Where it is wanted.

    Returns:
        What is added to the logits, float32 (1, H, Q, S).
    """
    places = torch.arange(keys, device=device)
    distances = (places[keys - queries :, None] - places).abs()  # (Q, S)
    slopes = torch.tensor(alibi_slopes(num_heads), device=device)
    return (-slopes[:, None, None] * distances).unsqueeze(0)


def distance_table(
    queries: int, keys: int, width: int, *, causal: bool, device: torch.device
) -> Tensor:
    """Sinusoids of all distances of a query from a key, R (Dai et al., 2019, section 3.3).

    Args:
        queries: Q, the last of the tokens.
        keys: S, all tokens.
        width: D, even.
        causal: Whether no query looks ahead, so that distances below 0 are not needed.
        device: Where it is wanted.

    Returns:
        float32 (S + Q, D), from the distance S - 1 down to -Q; causal (S + 1, D), down to -1. The
        last row is never looked at: `RelativePositions` shifts rows past it.
    """
    distances = torch.arange(keys - 1, -2 if causal else -queries - 1, -1, device=device)
    angles = position_angles(distances, width)
    return torch.cat(
        [angles.sin(), angles.cos()], dim=-1
    )  # all sines first, as in the paper's code


class RelativePositions(nn.Module):
    """Transformer-XL's positions in the logits (Dai et al., 2019, section 3.3).

        (q + u)·k / √K + (q + v)·(W R_{i-j}) / √K

    u and v stand for the query's own place, which has no part in a distance; W makes keys of the
    sinusoids R. The first term is the score's, with any score; the second is computed here.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make W, D -> D without biases, and u and v, which start as zeros."""
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.scale = 1.0 if config.attention_score == "dot" else config.head_size**-0.5
        self.key = nn.Linear(size, size, bias=False)
        # Vectors and not (H, K): as biases they get no weight decay.
        self.content_bias = nn.Parameter(torch.zeros(size))  # u
        self.position_bias = nn.Parameter(torch.zeros(size))  # v

    def content_query(self, query: Tensor) -> Tensor:
        """What is compared with the keys: q + u, (B, H, Q, K)."""
        return query + self.content_bias.view(self.num_heads, 1, -1)

    def forward(self, query: Tensor, table: Tensor, tokens: int, keys: int) -> Tensor:
        """Compare the queries with distances.

        Args:
            query: (B, H, Q, K), of the first Q of T tokens.
            table: What `distance_table` gave for all T.
            tokens: T.
            keys: S.

        Returns:
            What is added to the logits, (B, H, Q, S).
        """
        count = query.shape[2]
        table = table[tokens - count :]  # row 0: distance of the last query from the first key
        key = self.key(table).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)  # (H, W, K)
        query = (query + self.position_bias.view(self.num_heads, 1, -1)) * self.scale
        by_distance = query @ key.transpose(-2, -1)  # (B, H, Q, W)
        return shift(by_distance, keys)


def shift(by_distance: Tensor, keys: int) -> Tensor:
    """Turn columns of distances into columns of keys (Dai et al., 2019, appendix B).

    Query i finds its distance from key j in column Q - 1 - i + j. Read in rows that are one shorter
    than they were written, each row starts one column further left than the row above.

    Args:
        by_distance: (B, H, Q, W), the largest distance first.
        keys: S.

    Returns:
        (B, H, Q, S); what no distance belongs to (later tokens, where causal) holds any number.
    """
    queries, width = by_distance.shape[-2:]
    flat = by_distance.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
    rows = flat.reshape(*by_distance.shape[:-2], queries, width - 1)
    return F.pad(rows, (0, keys - (width - 1)))  # less than nothing cuts columns off
