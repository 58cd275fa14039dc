"""What an encoder costs, counted from its config: parameters, and arithmetic for each token.

Counted are matrix products, two operations a multiply-add, and the sums and tanh of the additive
score, which are as many. Norms, activations, softmax and look-ups are left out, being small.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from finetune.encoder.config import EncoderConfig
from finetune.encoder.feedforward import GATED_ACTIVATIONS
from finetune.memory import FLOAT, TRAINED, in_gib

LENGTHS = (64, 256, 1024, 4096)
"""Tokens of a sequence, T, for which costs are shown: four columns fit a terminal."""
WIDTH = 80
"""Columns of text at most."""
MASKED_SHARE = 0.15
"""Share of the tokens that the LM head sees: BERT's masking rate."""

HALF = 2
"""Bytes of a number in half precision."""


class PartCost(NamedTuple):
    """What one part of the network costs, all blocks together."""

    parameters: int
    """Number of weights and biases."""
    flops: float
    """Floating-point operations a token, forward."""


def cost(config: EncoderConfig, length: int, lm_share: float = MASKED_SHARE) -> dict[str, PartCost]:
    """Count an encoder and its masked-LM head, part by part.

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T; only scores and mixing depend on it.
        lm_share: Share of the tokens that the LM head sees, in [0, 1].

    Returns:
        Name of the part -> its cost. The parameters add up to those of the two modules.
    """
    size, blocks = config.hidden_size, config.num_hidden_layers
    score_parameters, score_flops = _scores(config, length)
    return {
        "embeddings": _embeddings(config),
        "attention projections": PartCost(blocks * _linear(size, 4 * size), blocks * 8 * size**2),
        "scores and mixing": PartCost(blocks * score_parameters, blocks * score_flops),
        "feed-forward": _feed_forward(config),
        "norms": PartCost(2 * size * _norms(config), 0),
        "lm head": _lm_head(config, lm_share),
    }


def parameters(config: EncoderConfig, *, language_model: bool = False) -> int:
    """Count the weights and biases of an encoder, with its masked-LM head if it is wanted."""
    parts = cost(config, length=1)
    left_out = 0 if language_model else parts["lm head"].parameters
    return sum(part.parameters for part in parts.values()) - left_out


def activation_bytes(config: EncoderConfig, sequences: int, tokens: int) -> int:
    """Count what the backward pass surely needs of a batch: less than it takes in the end.

    Args:
        config: Sizes and variants.
        sequences: B.
        tokens: T.

    Returns:
        Bytes, as if all numbers had half precision.
    """
    width = config.hidden_size  # the input of each block
    if not config.gradient_checkpointing:  # query, key, value and output; inner states
        width = 4 * width + config.intermediate_size
    return sequences * tokens * width * config.num_hidden_layers * HALF


def _norms(config: EncoderConfig) -> int:
    """Norms as wide as a hidden state: two a block, the final one, unless the first is left out."""
    final = config.norm_position == "pre"
    return 2 * config.num_hidden_layers + final - (not config.first_attention_norm)


def forward_flops_per_token(
    config: EncoderConfig, length: int, lm_share: float = MASKED_SHARE
) -> float:
    """Add up a forward pass; a training step costs three of them (Kaplan et al., 2020, table 1).

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T.
        lm_share: Share of the tokens that the LM head sees, in [0, 1]; 0 without that head.

    Returns:
        Floating-point operations a token.
    """
    return sum(part.flops for part in cost(config, length, lm_share).values())


def training_flops_per_token(
    config: EncoderConfig,
    length: int,
    *,
    frozen: int | None = None,
    cached: bool = False,
    first_only: bool = False,
) -> float:
    """Count a training step of an encoder without a head: backward costs two forward passes.

    The lowest trained block above frozen ones passes no gradient on; what that saves is left out.

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T.
        frozen: Blocks of the frozen prefix, 0 = embeddings alone; None where nothing is frozen.
        cached: Whether the frozen prefix is read and not computed.
        first_only: Whether the last block computes the first token's state alone.

    Returns:
        Floating-point operations a token.
    """
    parts, blocks = cost(config, length, lm_share=0.0), config.num_hidden_layers
    embeddings = parts["embeddings"].flops
    block = (sum(part.flops for part in parts.values()) - embeddings) / blocks
    trained = (blocks - (frozen or 0)) * block
    if first_only and trained:
        keys_and_values = 4 * config.hidden_size**2  # the rest is for one token of T
        trained -= (block - keys_and_values) * (1 - 1 / length)
    if frozen is None:
        return 3 * (embeddings + trained)
    return 3 * trained + (0.0 if cached else embeddings + frozen * block)


def attention_overtakes(config: EncoderConfig, *, with_projections: bool = False) -> int:
    """Find the shortest T at which attention costs more than the feed-forward part.

    Args:
        config: Sizes and variants.
        with_projections: Count attention's four projections too, not only scores and mixing.

    Returns:
        T, at least 1.
    """
    blocks, size = config.num_hidden_layers, config.hidden_size
    feed_forward = int(_feed_forward(config).flops) // blocks
    fixed = _scores(config, 0)[1]
    for_each_token_seen = _scores(config, 1)[1] - fixed
    fixed += 8 * size**2 if with_projections else 0
    return max(1, (feed_forward - fixed) // for_each_token_seen + 1)


def describe(config: EncoderConfig, lengths: Sequence[int] = LENGTHS) -> str:
    """Draw the costs as a table, a column for each length.

    Args:
        config: Sizes and variants.
        lengths: Values of T.

    Returns:
        Several lines of text.
    """
    columns = [cost(config, length) for length in lengths]
    rows = [["part", "parameters", *(f"T={length}" for length in lengths)]]
    for part, first in columns[0].items():
        flops = [column[part].flops for column in columns]
        rows.append([part, f"{first.parameters:,}", *map(_millions, flops)])
    weights = parameters(config, language_model=True)
    totals = [forward_flops_per_token(config, length) for length in lengths]
    rows.append(["all", f"{weights:,}", *map(_millions, totals)])
    remarks = [line for remark in _remarks(config) for line in textwrap.wrap(remark, WIDTH)]
    unit = "Millions of operations a token, forward, in sequences of T tokens:"
    return "\n".join([_headline(config), "", unit, *_aligned(rows), "", *remarks])


def counts(config: EncoderConfig, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """The costs as plain values, for programs.

    Args:
        config: Sizes and variants.
        lengths: Values of T.

    Returns:
        The config, parameters in all and by part, and for each T the forward operations a token.
    """
    columns = {str(length): cost(config, length) for length in lengths}
    parts = next(iter(columns.values()))
    return {
        "encoder": config.to_dict(),
        "parameters": sum(part.parameters for part in parts.values()),
        "flops_per_token": {
            length: sum(part.flops for part in column.values())
            for length, column in columns.items()
        },
        "parts": {
            name: {
                "parameters": part.parameters,
                "flops_per_token": {length: columns[length][name].flops for length in columns},
            }
            for name, part in parts.items()
        },
    }


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings(config: EncoderConfig) -> PartCost:
    size, hidden = config.word_embedding_size, config.hidden_size
    rows = config.vocab_size + config.type_vocab_size
    if config.position == "learned":
        rows += config.max_position_embeddings
    norm = 2 * size
    if size == hidden:
        return PartCost(rows * size + norm, 0)
    return PartCost(rows * size + norm + _linear(size, hidden), 2 * size * hidden)


def _scores(config: EncoderConfig, length: int) -> tuple[int, int]:
    """Count the score and the mixing of one block: parameters, and operations a token."""
    size, head_size = config.hidden_size, config.head_size
    mixing = 2 * length * size
    product = 2 * length * size
    matrix = size * head_size  # H square matrices of K x K
    if config.attention_score == "bilinear":
        return matrix, 2 * matrix + product + mixing
    if config.attention_score == "additive":
        sum_and_tanh = 2 * length * size
        return 2 * matrix + size, 4 * matrix + sum_and_tanh + product + mixing
    return 0, product + mixing


def _feed_forward(config: EncoderConfig) -> PartCost:
    size, inner = config.hidden_size, config.intermediate_size
    width = 2 * inner if config.hidden_act in GATED_ACTIVATIONS else inner
    parameters = _linear(size, width) + _linear(inner, size)
    blocks = config.num_hidden_layers
    return PartCost(blocks * parameters, blocks * 2 * size * (width + inner))


def _lm_head(config: EncoderConfig, lm_share: float) -> PartCost:
    size, hidden, words = config.word_embedding_size, config.hidden_size, config.vocab_size
    parameters = _linear(hidden, size) + 2 * size + words
    if not config.tie_word_embeddings:
        parameters += words * size
    return PartCost(parameters, lm_share * 2 * (hidden * size + size * words))


def _millions(flops: float) -> str:
    return f"{flops / 1e6:,.2f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _headline(config: EncoderConfig) -> str:
    return (
        f"{config.num_hidden_layers} blocks, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"vocabulary {config.vocab_size:,}"
    )


def _remarks(config: EncoderConfig) -> list[str]:
    weights = parameters(config, language_model=True)
    alone = attention_overtakes(config)
    whole = attention_overtakes(config, with_projections=True)
    remarks = [
        f"Scores and mixing overtake the feed-forward part at T = {alone:,}, "
        f"attention with its projections at T = {whole:,}.",
        f"The weights take {in_gib(weights * FLOAT)} in float32; with gradients and Adam's moments "
        f"{in_gib(weights * TRAINED)}, besides what a batch needs.",
        f"The LM head sees {MASKED_SHARE:.0%} of the tokens (the masked ones).",
    ]
    if config.position == "learned":
        remarks.append(f"Learned positions reach T = {config.max_position_embeddings:,}.")
    return remarks
