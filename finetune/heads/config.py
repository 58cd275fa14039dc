"""Settings of heads; like those of the encoder, they are read without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune.encoder.config import EncoderConfig
from finetune.ranges import MOST_TOKENS, check_values, within

PAIR_POOLINGS = ("segments", "segments-attention", "align")
"""Those that compare the two texts of a pair."""
ALL_POOLINGS = ("cls", "last", "mean", "max", "concat", "attention", *PAIR_POOLINGS)
"""All that a head can pool by; how is in `pooling.py`."""
LAYERS = ("last", "mix")
"""The hidden states that a head can read."""


@dataclass(frozen=True)
class HeadConfig:
    """How the hidden states of a text are pooled into one vector.

    >>> from finetune import HeadConfig
    >>> HeadConfig(pooling="mean")
    HeadConfig(pooling='mean', head_dropout=None, layers='last', levels=1)

    Raises:
        ConfigError: The pooling or the layers are unknown, or the dropout lies outside [0, 1).
    """

    pooling: str | None = field(default=None, metadata={"words": ALL_POOLINGS})
    """cls (first token), last (last token), mean, max, concat (cls or last, max and mean, as in
    ULMFiT), attention (mean weighted by a learned query), or for a pair of texts segments (compares
    their means), segments-attention (their weighted means) or align (compares each token with its
    counterparts in the other text); none = cls, or last if the encoder is causal."""
    head_dropout: float | None = within(0, 1, below=True, default=None)
    """Dropout before the output layer, in [0, 1); none = hidden_dropout_prob."""
    layers: str = field(default="last", metadata={"words": LAYERS})
    """Hidden states that the head reads: last, or mix (a learned weighted average of all layers and
    the embeddings, as in ELMo)."""
    levels: int = within(1, 2, default=1)
    """2: a small transformer over the vectors of a text's windows (with --window-labels document);
    1: the pooling alone."""

    def __post_init__(self) -> None:
        """Refuse what no head can be made from."""
        check_values(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> HeadConfig:
        """Read what a checkpoint says of its head; what is not of this class is left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in settings.items() if name in known})

    def resolved(self, config: EncoderConfig) -> HeadConfig:
        """These settings with the pooling that is used over an encoder."""
        pooling = self.pooling or ("last" if config.causal else "cls")
        return dataclasses.replace(self, pooling=pooling)

    def dropout(self, config: EncoderConfig) -> float:
        """Choose the rate: the head's own, or the encoder's."""
        return config.hidden_dropout_prob if self.head_dropout is None else self.head_dropout


@dataclass(frozen=True)
class SpanConfig:
    """Which spans of a window are considered as answers.

    >>> from finetune import SpanConfig
    >>> spans = SpanConfig(max_answer_length=15)
    >>> spans.n_best
    20

    Raises:
        ConfigError: A number lies outside its range.
    """

    n_best: int = within(1, 10_000, default=20)
    """Number of best spans kept per window, and of answers listed per question."""
    max_answer_length: int = within(1, MOST_TOKENS, default=30)
    """Longest answer, in tokens."""

    def __post_init__(self) -> None:
        """Refuse what no span can satisfy."""
        check_values(self)
