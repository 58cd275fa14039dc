"""The matrix products of a training step and nothing else: no step of these sizes takes less.

The limit of the benchmarks. Products have the step's own shapes, forward and both of the backward
pass, with torch's own routines; what the head does not read (all but the first token, or all but
the tokens to name) is left out of the last block, and padding of all but the attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from finetune.encoder import EncoderConfig

Shape = tuple[int, int, int, int]
"""(pairs of matrices, rows, inner size, columns)."""


@dataclass(frozen=True)
class Step:
    """What a step computes on."""

    rows: int
    """Sequences, B."""
    length: int
    """Tokens of the longest one, T."""
    tokens: int
    """Real tokens of all sequences."""
    named: int | None = None
    """Tokens that the language model names; None: a head reads the first token of each sequence."""


def shapes(config: EncoderConfig, step: Step) -> Iterator[Shape]:
    """The products of a forward pass of BERT's kind of encoder.

    Args:
        config: Its sizes.
        step: What it computes on.
    """
    size, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    pairs, head = step.rows * heads, size // heads
    read = (step.rows, 1)
    if step.named is not None:
        read = (step.named, -(-step.named // step.rows))
    for depth in range(1, config.num_hidden_layers + 1):
        is_last = depth == config.num_hidden_layers
        tokens, queries = read if is_last else (step.tokens, step.length)
        yield from [(1, step.tokens, size, size)] * 2  # keys and values
        yield from [(1, tokens, size, size)] * 2  # queries and output
        yield pairs, queries, head, step.length
        yield pairs, queries, step.length, head
        yield 1, tokens, size, inner
        yield 1, tokens, inner, size
    if step.named is not None:
        yield 1, step.named, size, size
        yield 1, step.named, size, config.vocab_size


def flops(config: EncoderConfig, step: Step) -> int:
    """Operations of the forward pass, two for each multiplication."""
    return sum(2 * count * m * k * n for count, m, k, n in shapes(config, step))


def products_turn(config: EncoderConfig, steps: list[Step]) -> Callable[[], float]:
    """Make a turn: seconds of the products of all steps, in float32."""
    made: dict[Shape, Callable[[], None]] = {}
    for step in steps:
        made |= {shape: _triple(shape) for shape in shapes(config, step) if shape not in made}

    def turn() -> float:
        start = time.perf_counter()
        for step in steps:
            for shape in shapes(config, step):
                made[shape]()
        return time.perf_counter() - start

    return turn


def _triple(shape: Shape) -> Callable[[], None]:
    """A product and the two of its gradients, in memory that is there already."""
    count, rows, inner, columns = shape
    left, right = torch.randn(count, rows, inner), torch.randn(count, inner, columns)
    out, of_left, of_right = torch.empty(count, rows, columns), left.clone(), right.clone()

    def multiply(first: Tensor, second: Tensor, result: Tensor) -> None:
        if count == 1:
            torch.mm(first[0], second[0], out=result[0])
        else:
            torch.bmm(first, second, out=result)

    def triple() -> None:
        multiply(left, right, out)
        multiply(out, right.mT, of_left)
        multiply(left.mT, out, of_right)

    return triple
