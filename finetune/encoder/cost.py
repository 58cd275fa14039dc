"""What an encoder costs, counted from its config: parameters, and arithmetic for each token.

Counted are matrix products, two operations a multiply-add, and the sums and tanh of the additive
score, which are as many. Norms, activations, softmax and look-ups are left out, being small.
Counted is what is computed: local attention in tiles has the scores of a tile's keys, elsewhere all
of them, of which a mask hides some. For a causal mask nothing is taken off either, as usual
(Chowdhery et al., 2022, appendix B).
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from finetune.console.output import counted
from finetune.console.tables import aligned
from finetune.encoder.config import GATED_ACTIVATIONS, EncoderConfig
from finetune.machine.memory import FLOAT, TRAINED, in_gib

LENGTHS = (64, 256, 1024, 4096)
"""Tokens of a sequence, T, for which costs are shown: four columns fit a terminal."""
WIDTH = 80
"""Columns of text at most."""
MASKED_FRACTION = 0.15
"""Fraction of the tokens that the LM head sees: BERT's masking rate. A causal one sees them all."""

HALF = 2
"""Bytes of a number in half precision."""


class PartCost(NamedTuple):
    """What one part of the network costs, all blocks together."""

    parameters: int
    """Number of weights and biases."""
    flops: float
    """Floating-point operations a token, forward."""


def lm_head_fraction(config: EncoderConfig) -> float:
    """Fraction of the tokens that the language-model head usually sees, in [0, 1]."""
    return 1.0 if config.causal else MASKED_FRACTION


def cost(
    config: EncoderConfig, length: int, lm_fraction: float | None = None
) -> dict[str, PartCost]:
    """Count an encoder and its language-model head, part by part.

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T; only scores and mixing depend on it.
        lm_fraction: Fraction of the tokens that the LM head sees, in [0, 1]; None: as usual, all of
            them where the encoder is causal, otherwise 15 %.

    Returns:
        Name of the part -> its cost. The parameters add up to those of the two modules.
    """
    if lm_fraction is None:
        lm_fraction = lm_head_fraction(config)
    return {
        "embeddings": _embeddings(config),
        **_BLOCKS[config.block](config, length),
        "norms": PartCost(_norm(config, config.hidden_size) * _norms(config), 0),
        "lm head": _lm_head(config, lm_fraction),
    }


def _transformer(config: EncoderConfig, length: int) -> dict[str, PartCost]:
    size, blocks = config.hidden_size, config.num_hidden_layers
    scores = [_scores(config, depth, length) for depth in range(1, blocks + 1)]
    return {
        "attention projections": PartCost(
            blocks * _linear(size, 4 * size), blocks * _projections(config, length)
        ),
        "scores and mixing": PartCost(
            sum(part.parameters for part in scores), sum(part.flops for part in scores)
        ),
        "feed-forward": _feed_forward(config),
    }


def _lstm(config: EncoderConfig, length: int) -> dict[str, PartCost]:
    """Four gates a direction, each of input and state with two biases; then the projection."""
    size, cells, blocks = config.hidden_size, config.cells, config.num_hidden_layers
    directions = 1 if config.causal else 2
    gates = directions * 4 * cells * (size + cells)
    joined = directions * cells
    return {
        "recurrence": PartCost(
            blocks * (gates + directions * 8 * cells + _linear(joined, size)),
            blocks * (2 * gates + 2 * joined * size),
        )
    }


def _conv(config: EncoderConfig, length: int) -> dict[str, PartCost]:
    size, blocks = config.hidden_size, config.num_hidden_layers
    outputs = 2 if config.hidden_act in GATED_ACTIVATIONS else 1
    filters = zip(config.filter_counts, config.conv_widths, strict=True)
    weights = outputs * size * sum(count * width for count, width in filters)
    return {"convolution": PartCost(blocks * (weights + outputs * size), blocks * 2 * weights)}


_BLOCKS = {"transformer": _transformer, "lstm": _lstm, "conv": _conv}
"""Block -> parts of all blocks together without their norms."""


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
    # Half precision throughout, and only what every variant keeps: it must never refuse what fits.
    width = config.hidden_size  # the input of each block
    if config.block == "transformer" and not config.gradient_checkpointing:
        width = 4 * width + config.intermediate_size  # query, key, value and output; inner states
    return sequences * tokens * width * config.num_hidden_layers * HALF


def _norms(config: EncoderConfig) -> int:
    """Norms as wide as a hidden state: one a sublayer and the final one, less one left out."""
    final = config.norm_position != "post"
    if config.block != "transformer":
        return config.num_hidden_layers + final
    return 2 * config.num_hidden_layers + final - (not config.first_attention_norm)


def forward_flops_per_token(
    config: EncoderConfig, length: int, lm_fraction: float | None = None
) -> float:
    """Add up a forward pass; a training step costs three of them (Kaplan et al., 2020, table 1).

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T.
        lm_fraction: As for `cost`; 0 without that head.

    Returns:
        Floating-point operations a token.
    """
    return sum(part.flops for part in cost(config, length, lm_fraction).values())


def training_flops_per_token(
    config: EncoderConfig,
    length: int,
    *,
    frozen: int | None = None,
    cached: Collection[int] = (),
    all_layers: bool = False,
    one_token: bool = False,
) -> float:
    """Count a training step of an encoder without a head: backward costs two forward passes.

    The lowest trained block above frozen ones passes no gradient on; what that saves is left out.

    Args:
        config: Sizes and variants.
        length: Tokens in a sequence, T.
        frozen: Blocks of the frozen prefix, 0 = embeddings alone; None where nothing is frozen.
        cached: Boundaries whose states are read and not computed.
        all_layers: Whether the states at all boundaries are wanted.
        one_token: Whether the last block computes one token of a sequence alone.

    Returns:
        Floating-point operations a token.
    """
    embeddings = _embeddings(config).flops
    blocks = [_block(config, depth, length) for depth in range(1, config.num_hidden_layers + 1)]
    trained = sum(blocks[frozen or 0 :])
    if one_token and trained:
        trained -= unread_flops(config, length, 1 / length)
    if frozen is None:
        return 3 * (embeddings + trained)
    if all_layers:
        prefix = [block for depth, block in enumerate(blocks[:frozen], 1) if depth not in cached]
        return 3 * trained + embeddings + sum(prefix)
    nearest = max((depth for depth in cached if depth <= frozen), default=None)
    computed = sum(blocks[nearest:frozen]) + (embeddings if nearest is None else 0.0)
    return 3 * trained + computed


def unread_flops(config: EncoderConfig, length: int, read: float) -> float:
    """Count what the last block saves, forward a token, where a fraction `read` is wanted of it."""
    if config.block != "transformer":
        return 0.0
    keys_and_values = 4 * config.hidden_size**2  # of all tokens in any case
    return (_block(config, config.num_hidden_layers, length) - keys_and_values) * (1 - read)


def attention_overtakes(config: EncoderConfig, *, with_projections: bool = False) -> int:
    """Find the shortest T at which attention costs more than the feed-forward part.

    Args:
        config: Sizes and variants.
        with_projections: Count attention's four projections too, not only scores and mixing.

    Returns:
        T, at least 1.
    """
    blocks, size = config.num_hidden_layers, config.hidden_size
    limit = _feed_forward(config).flops - (blocks * 8 * size**2 if with_projections else 0)

    def overtakes(length: int) -> bool:
        depths = range(1, blocks + 1)
        return sum(_scores(config, depth, length).flops for depth in depths) > limit

    longest = 1
    while not overtakes(longest):  # it grows with T: the first block sees all tokens
        longest *= 2
    tiled = min(longest, 2 * config.tile_keys)  # where local blocks become cheaper
    before = bisect_left(range(tiled), True, 1, key=overtakes)
    return before if before < tiled else bisect_left(range(longest), True, tiled, key=overtakes)


def describe(config: EncoderConfig, lengths: Sequence[int] = LENGTHS) -> str:
    """Draw the costs as a table, a column for each of some lengths T.

    Returns:
        Several lines of text.
    """
    columns = [cost(config, length) for length in lengths]
    rows = [["part", "parameters", *(f"T={length}" for length in lengths)]]
    for part, first in columns[0].items():
        flops = [column[part].flops for column in columns]
        rows.append([part, f"{first.parameters:,}", *(f"{one / 1e6:,.2f}" for one in flops)])
    weights = parameters(config, language_model=True)
    totals = [forward_flops_per_token(config, length) for length in lengths]
    rows.append(["all", f"{weights:,}", *(f"{one / 1e6:,.2f}" for one in totals)])
    remarks = [line for remark in _remarks(config) for line in textwrap.wrap(remark, WIDTH)]
    headline = (
        f"{counted(config.num_hidden_layers, 'block')}, hidden size {config.hidden_size}, "
        f"{inner_sizes(config)}, vocabulary {config.vocab_size:,}"
    )
    unit = "Millions of operations a token, forward, in sequences of T tokens:"
    return "\n".join([headline, "", unit, *aligned(rows, "<" + ">" * len(rows[0])), "", *remarks])


def counts(config: EncoderConfig, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """The costs as plain values, for programs, at some lengths T.

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


def _norm(config: EncoderConfig, size: int) -> int:
    """Weights of a norm, and biases if it has some."""
    return size if config.norm == "rms" else 2 * size


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings(config: EncoderConfig) -> PartCost:
    size, hidden = config.word_embedding_size, config.hidden_size
    rows = config.vocab_size + config.type_vocab_size
    if config.position == "learned":
        rows += config.max_position_embeddings
    norm = _norm(config, size) if config.embedding_norm else 0
    if size == hidden:
        return PartCost(rows * size + norm, 0)
    return PartCost(rows * size + norm + _linear(size, hidden), 2 * size * hidden)


def _block(config: EncoderConfig, depth: int, length: int) -> float:
    """Count the operations a token of block number `depth`, from 1."""
    if config.block != "transformer":
        parts = _BLOCKS[config.block](config, length).values()
        return sum(part.flops for part in parts) / config.num_hidden_layers
    rest = _projections(config, length) + _feed_forward(config).flops / config.num_hidden_layers
    return rest + _scores(config, depth, length).flops


def _projections(config: EncoderConfig, length: int) -> float:
    """Count the projections of a block; keys and values of a memory are made for each text."""
    square = config.hidden_size**2
    return 8 * square + (4 * square * config.memory / length if config.memory else 0)


def _scored(config: EncoderConfig, depth: int, length: int) -> float:
    """Keys that a token is scored with in a block, averaged over the T of a sequence."""
    if not config.is_local(depth) or config.untiled(length):
        return length + config.memory
    tiled = -(-length // config.tile_size) * config.tile_size / length  # the last tile is padded
    # A global token is a key of each tile, and its own row has all keys. A question's are unknown.
    number = int(config.global_tokens != "none")
    return tiled * (config.tile_keys + number) + number


def _scores(config: EncoderConfig, depth: int, length: int) -> PartCost:
    """Count the score and the mixing of block number `depth`, from 1."""
    size = config.hidden_size
    mixing = product = 2 * _scored(config, depth, length) * size
    content = _content(config, product, mixing)
    if config.position != "relative":
        return content
    # The keys of distances are made once for all sequences of a batch, and left out for that.
    return PartCost(content.parameters + size * size + 2 * size, content.flops + product)


def _content(config: EncoderConfig, product: float, mixing: float) -> PartCost:
    """Count the score of queries with keys, and the mixing."""
    size = config.hidden_size
    matrix = size * config.head_size  # H square matrices of K x K
    if config.attention_score == "bilinear":
        return PartCost(matrix, 2 * matrix + product + mixing)
    if config.attention_score == "additive":
        sum_and_tanh = product
        return PartCost(2 * matrix + size, 4 * matrix + sum_and_tanh + product + mixing)
    return PartCost(0, product + mixing)


def _feed_forward(config: EncoderConfig) -> PartCost:
    size, inner = config.hidden_size, config.intermediate_size
    width = 2 * inner if config.hidden_act in GATED_ACTIVATIONS else inner
    parameters = _linear(size, width) + _linear(inner, size)
    blocks = config.num_hidden_layers
    return PartCost(blocks * parameters, blocks * 2 * size * (width + inner))


def _lm_head(config: EncoderConfig, lm_fraction: float) -> PartCost:
    size, hidden, vocabulary = config.word_embedding_size, config.hidden_size, config.vocab_size
    transform = config.lm_transform * (_linear(hidden, size) + _norm(config, size) + vocabulary)
    output = 0 if config.tie_word_embeddings else vocabulary * size
    products = size * (vocabulary + config.lm_transform * hidden)
    return PartCost(transform + output, lm_fraction * 2 * products)


def inner_sizes(config: EncoderConfig) -> str:
    """The sizes inside a block, in words."""
    if config.block == "lstm":
        return f"LSTM of {config.cells} in {'one direction' if config.causal else 'two directions'}"
    if config.block == "conv":
        return f"convolution of widths {', '.join(map(str, config.conv_widths))}"
    heads = counted(config.num_attention_heads, "head")
    return f"{heads}, feed-forward {config.intermediate_size}"


def _overtaking(config: EncoderConfig) -> str:
    alone = attention_overtakes(config)
    whole = attention_overtakes(config, with_projections=True)
    return (
        f"Scores and mixing overtake the feed-forward part at T = {alone:,}, "
        f"attention with its projections at T = {whole:,}."
    )


def _remarks(config: EncoderConfig) -> list[str]:
    weights = parameters(config, language_model=True)
    remarks = [
        *([line] if (line := config.without_effect()) else []),
        *([_overtaking(config)] if config.block == "transformer" else []),
        f"The weights take {in_gib(weights * FLOAT)} in float32; with gradients and Adam's moments "
        f"{in_gib(weights * TRAINED)}, besides what a batch needs.",
        f"The LM head sees {lm_head_fraction(config):.0%} of the tokens"
        f"{' (it is causal)' if config.causal else ' (the masked ones)'}.",
    ]
    if config.local_attention and config.block == "transformer":
        remarks.append(config.local_remark())
    if config.position == "learned":
        remarks.append(f"Learned positions reach T = {config.max_position_embeddings:,}.")
    return remarks
