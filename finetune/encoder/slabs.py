"""Attention with dropout on a CPU that does not keep the (T, T) weights for the backward pass.

Torch's fused kernel has no dropout on a CPU, and its plain path keeps the weights three times:
before dropout, after it, and the factors between. Here a slab of weights that fits the processor's
cache is computed at a time, and computed again in the backward pass; one bit a weight is kept.
What is drawn and what is computed are the same as on the plain path, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from finetune.encoder.dropout import DropoutMask

SLAB = 1 << 18  # weights computed at a time: 1 MiB, which a core's cache holds
MANY = 1 << 24  # weights of a layer, 64 MiB, that are worth computing twice instead of keeping


def saves_memory(query: Tensor, key: Tensor) -> bool:
    """Whether the weights, B·H·Q·S, are so many that they are better computed twice than kept."""
    if torch.compiler.is_compiling():  # which follows the plain path only
        return False
    return query.shape[:3].numel() * key.shape[2] >= MANY


def mix_in_slabs(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float
) -> Tensor:
    """Mix the values by softmax(query · key + bias), thinned by dropout.

    Args:
        query: (B, H, Q, K), scaled.
        key: (B, H, S, K).
        value: (B, H, S, K).
        bias: Added to the logits, broadcasts to (B, H, Q, S); may have a gradient.
        p: Probability of dropping a weight, in [0, 1).

    Returns:
        (B, H, Q, K).
    """
    if bias is not None:
        bias = bias.expand(*query.shape[:3], key.shape[2])
    mixed: Tensor = _MixInSlabs.apply(query, key, value, bias, p)  # type: ignore[no-untyped-call]
    return mixed


Slab = tuple[slice, slice, slice]
"""Rows of the weights that are computed at once: of which sequences, heads and queries."""


def slabs(shape: torch.Size, keys: int) -> Iterator[Slab]:
    """Cut (B, H, Q, S) weights, in their order in memory, into slabs of about equal size."""
    batch, heads, queries = shape[:3]
    rows = max(1, SLAB // keys)
    queries_each = min(queries, rows)
    heads_each = min(heads, max(1, rows // queries))
    batch_each = min(batch, max(1, rows // (heads * queries)))
    for first in range(0, batch, batch_each):
        for head in range(0, heads, heads_each):
            for query in range(0, queries, queries_each):
                yield (
                    slice(first, first + batch_each),
                    slice(head, head + heads_each),
                    slice(query, query + queries_each),
                )


class _Part(NamedTuple):
    """What a slab is computed from, and its weights before dropout."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    factors: Tensor


class _MixInSlabs(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float
    ) -> Tensor:
        inputs = query.contiguous(), key.contiguous(), value.contiguous(), bias
        ctx.kept = DropoutMask.draw(query.shape[:3].numel() * key.shape[2], p)
        ctx.save_for_backward(*inputs)
        mixed = torch.empty_like(inputs[0])
        for slab in slabs(query.shape, key.shape[2]):
            part = _part(slab, inputs, ctx.kept)
            mixed[slab] = part.weights.mul_(part.factors) @ part.value
        return mixed

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        query, key, value, bias = inputs
        gradient = gradient.contiguous()
        of_query = torch.empty_like(query)
        # Sums over slabs, in which bfloat16 would lose most digits.
        of_key, of_value = (
            torch.zeros_like(part, dtype=torch.promote_types(part.dtype, torch.float32))
            for part in (key, value)
        )
        of_bias = torch.empty(bias.shape, dtype=bias.dtype) if ctx.needs_input_grad[3] else None
        for slab in slabs(query.shape, key.shape[2]):
            part, above = _part(slab, inputs, ctx.kept), gradient[slab]
            thinned = part.weights * part.factors
            of_value[slab[:2]] += thinned.transpose(-2, -1) @ above
            of_weights = (above @ part.value.transpose(-2, -1)) * part.factors
            of_logits = torch._softmax_backward_data(
                of_weights, part.weights, -1, part.weights.dtype
            )
            of_query[slab] = of_logits @ part.key
            of_key[slab[:2]] += of_logits.transpose(-2, -1) @ part.query
            if of_bias is not None:
                of_bias[slab] = of_logits
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), of_bias, None


def _part(
    slab: Slab, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], kept: DropoutMask
) -> _Part:
    query, key, value, bias = inputs
    some, keys, values = query[slab], key[slab[:2]], value[slab[:2]]
    logits = some @ keys.transpose(-2, -1)
    if bias is not None:
        logits = logits + bias[slab]
    weights = logits.softmax(dim=-1)
    _, heads, queries, _ = query.shape
    first, head, row = (part.start for part in slab)
    start = ((first * heads + head) * queries + row) * key.shape[2]
    return _Part(some, keys, values, weights, kept.factors(start, weights.shape, weights.dtype))
