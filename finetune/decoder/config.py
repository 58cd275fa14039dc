"""Settings of the decoder and of the search; like those of the encoder, they need no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from finetune.encoder.config import SCORE_NAMES, EncoderConfig
from finetune.errors import ConfigError
from finetune.ranges import MOST_TOKENS, check_values, within

LONGEST_TARGET = 64
"""Tokens that a target may have by default."""


@dataclass(frozen=True)
class DecoderConfig:
    """How the decoder differs from the encoder, whose sizes and variants it has otherwise.

    >>> from finetune import EncoderConfig
    >>> from finetune.decoder import DecoderConfig
    >>> shape = DecoderConfig(decoder_layers=2).shape(EncoderConfig(num_attention_heads=8))
    >>> shape.num_hidden_layers, shape.hidden_size, shape.causal
    (2, 768, True)

    Raises:
        ConfigError: A number lies outside its range, or a score is unknown.
    """

    decoder_layers: int | None = within(1, 10_000, default=None)
    """Number of decoder blocks; none = as many as the encoder has."""
    decoder_from: str | None = None
    """Folder of a causal language model that the decoder starts from, in its shape, with the same
    tokenizer; cross-attention is new. none = a new decoder of the encoder's shape."""
    cross_score: str | None = field(default=None, metadata={"words": SCORE_NAMES})
    """Score of cross-attention: scaled_dot, dot, bilinear or additive; none = attention_score."""

    def __post_init__(self) -> None:
        """Refuse what no decoder can be made from."""
        check_values(self)
        if self.decoder_from and self.decoder_layers:
            raise ConfigError(
                f"decoder_from {self.decoder_from} brings its own blocks; leave decoder_layers out"
            )

    def shape(self, encoder: EncoderConfig) -> EncoderConfig:
        """The sizes and variants of the decoder's own blocks and embeddings.

        Args:
            encoder: The encoder's. Where its blocks are no transformer's, the decoder's are, with
                learned positions, of which such an encoder has none, and heads of equal width.
        """
        if encoder.block != "transformer":
            most, size = encoder.num_attention_heads, encoder.hidden_size  # nobody chose them
            heads = next(count for count in range(most, 0, -1) if size % count == 0)
            encoder = dataclasses.replace(
                encoder, block="transformer", position="learned", num_attention_heads=heads
            )
        return dataclasses.replace(
            encoder,
            num_hidden_layers=self.decoder_layers or encoder.num_hidden_layers,
            causal=True,
            local_attention=0,
            memory=0,
            type_vocab_size=0,  # a target is one text
        )


@dataclass(frozen=True)
class SearchConfig:
    """How a target is searched for.

    >>> from finetune import EncoderConfig
    >>> from finetune.decoder import SearchConfig
    >>> SearchConfig(beams=1).target_length(EncoderConfig(max_position_embeddings=32))
    32

    Raises:
        ConfigError: A number lies outside its range.
    """

    beams: int = within(1, 1000, default=4)
    """Hypotheses that beam search keeps for each source; 1 = greedy."""
    length_penalty: float = within(0, 10, default=0.6)
    """α of the length penalty ((5 + length) / 6)^α, by which log-probabilities are divided;
    0 = none, which favors short targets."""
    max_target_length: int | None = within(1, MOST_TOKENS, default=None)
    """Longest target in tokens, the end token included; none = 64, or as many as the decoder has
    learned positions for."""

    def __post_init__(self) -> None:
        """Refuse what no search can keep to."""
        check_values(self)

    def target_length(self, decoder: EncoderConfig | None = None) -> int:
        """Find how long a target may be.

        Args:
            decoder: Its shape, where that is known.

        Raises:
            ConfigError: That is more than the positions that the decoder has learned.
        """
        is_learned = decoder is not None and decoder.position == "learned"
        reach = decoder.max_position_embeddings if decoder and is_learned else MOST_TOKENS
        longest = self.max_target_length or min(LONGEST_TARGET, reach)
        if longest > reach:
            raise ConfigError(
                f"max_target_length ({longest}) must be at most the {reach} positions that the "
                "decoder has learned (max_position_embeddings); lower it"
            )
        return longest
