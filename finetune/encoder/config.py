"""The encoder's settings, with BERT's public names and BERT's defaults.

They are read without torch: the names of variants are here, what computes them is beside the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune.console.output import counted
from finetune.errors import ConfigError, nearest
from finetune.ranges import check_values, within

BLOCK_NAMES = ("transformer", "lstm", "conv")
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "relative", "none")
NORM_POSITIONS = ("post", "pre", "output")
NORM_NAMES = ("layer", "rms")
SCORE_NAMES = ("scaled_dot", "dot", "bilinear", "additive")
ACTIVATION_NAMES = ("relu", "gelu", "gelu_tanh", "silu")
PATTERN_NAMES = ("window", "strided", "block")
GLOBAL_TOKENS = ("none", "cls", "question")
SMALLEST_TILE = 16
"""Tokens of a tile of local attention at least: fewer are no work for a matrix product."""
GATED_ACTIVATIONS = {
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
}
"""Name in a config -> the plain activation that opens and closes the gate."""


_ATTENTION = (
    *("num_attention_heads", "intermediate_size", "attention_probs_dropout_prob"),
    *("attention_score", "rotary_theta", "first_attention_norm"),
    *("local_attention", "global_every", "local_rotary_theta"),
    *("local_pattern", "global_tokens"),
)
_READ_BY = {
    **dict.fromkeys(_ATTENTION, "transformer"),
    **{"lstm_size": "lstm", "weight_dropout_prob": "lstm", "conv_widths": "conv"},
}
"""Setting -> the only block that reads it."""


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and variants of the encoder.

    >>> from finetune import EncoderConfig
    >>> config = EncoderConfig(hidden_size=256, num_attention_heads=4, position="rotary")
    >>> config.head_size, config.num_hidden_layers
    (64, 12)

    Raises:
        ConfigError: A number lies outside its range, a value has another type, a variant's name is
            unknown, or two settings do not fit each other.
    """

    vocab_size: int = within(1, 100_000_000, default=30522, hidden=True)
    """Number of token ids, V."""
    hidden_size: int = within(1, 1_000_000, default=768)
    """Size of the hidden states, D."""
    num_hidden_layers: int = within(1, 10_000, default=12)
    """Number of blocks, L."""
    block: str = field(default="transformer", kw_only=True, metadata={"words": BLOCK_NAMES})
    """Block: transformer, lstm or conv; the last two see the order and have no positions."""
    num_attention_heads: int = within(1, 100_000, default=12)
    """Number of attention heads, H; must divide hidden_size."""
    intermediate_size: int = within(1, 10_000_000, default=3072)
    """Size of the feed-forward layer, F."""
    hidden_act: str = field(
        default="gelu", metadata={"words": (*ACTIVATION_NAMES, *GATED_ACTIVATIONS)}
    )
    """Activation: relu, gelu, gelu_tanh, silu, or gated: reglu, geglu, geglu_tanh, swiglu."""
    hidden_dropout_prob: float = within(0, 1, below=True, default=0.1)
    """Dropout on the output of each sublayer, in [0, 1)."""
    attention_probs_dropout_prob: float = within(0, 1, below=True, default=0.1)
    """Dropout on the attention weights, in [0, 1)."""
    embedding_dropout_prob: float | None = within(0, 1, below=True, default=None)
    """Dropout on the embeddings, in [0, 1); none = hidden_dropout_prob."""
    max_position_embeddings: int = within(1, 100_000_000, default=512)
    """Longest sequence in tokens, with learned positions."""
    type_vocab_size: int = within(0, 1_000_000, default=2)
    """Number of segments; 0 = no segment embeddings."""
    initializer_range: float = within(0, 100, above=True, default=0.02)
    """Standard deviation of the initial weights."""
    layer_norm_eps: float = within(0, 1, above=True, default=1e-12)
    """Constant that a norm adds to the variance, or to the mean square."""
    pad_token_id: int = within(0, 100_000_000, default=0)
    """Id of the padding token; its embedding is initialized to zero."""
    attention_score: str = field(default="scaled_dot", metadata={"words": SCORE_NAMES})
    """Attention score: scaled_dot, dot, bilinear or additive."""
    position: str = field(default="learned", metadata={"words": POSITIONS})
    """Positions: learned, sinusoidal, rotary, alibi, relative (Transformer-XL's) or none."""
    rotary_theta: float = within(0, 1e12, above=True, default=10000.0)
    """Base of the wavelengths of rotary positions."""
    norm_position: str = field(default="post", metadata={"words": NORM_POSITIONS})
    """Normalize the residual sum (post), the input of a sublayer (pre), or its output (output)."""
    norm: str = field(default="layer", kw_only=True, metadata={"words": NORM_NAMES})
    """Normalization: layer (LayerNorm), or rms (RMSNorm: no mean taken off, no bias)."""
    residual: bool = field(default=True, kw_only=True)
    """Add the input of each sublayer to its output; false only to see what it is for."""
    first_attention_norm: bool = True
    """pre: normalize before the first attention too, after the norm of the embeddings."""
    causal: bool = False
    """A token attends only to itself and earlier tokens."""
    memory: int = within(0, 100_000_000, default=0, kw_only=True)
    """Causal language modelling: tokens before a block that it attends to too; 0 = none."""
    local_attention: int = within(0, 100_000_000, default=0)
    """Local attention: tokens to each side that a token attends to; 0 = attend to all."""
    global_every: int = within(1, 10_000, default=3)
    """Local attention: every N-th block, starting with the first, attends to all tokens."""
    local_rotary_theta: float | None = within(0, 1e12, above=True, default=None)
    """Base of the wavelengths of rotary positions in local blocks; none = rotary_theta."""
    local_pattern: str = field(default="window", kw_only=True, metadata={"words": PATTERN_NAMES})
    """Local attention sees: window, strided (and every N-th token) or block (of N tokens)."""
    global_tokens: str = field(default="none", kw_only=True, metadata={"words": GLOBAL_TOKENS})
    """Local attention: tokens that see all and that all see: none, cls, or question (cls and the
    shorter of the two texts)."""
    embedding_size: int | None = within(1, 1_000_000, default=None)
    """Size of the embeddings, E, projected to hidden_size if different; none = hidden_size."""
    tie_word_embeddings: bool = True
    """Use the word embeddings as the output weights of the masked language model."""
    embedding_norm: bool = True
    """Normalize the embeddings, as BERT does; GPT does not."""
    lm_transform: bool = True
    """Language model: a dense layer, activation and norm before the output weights, and a bias, as
    in BERT; false = the product with the output weights alone, as in GPT."""
    lstm_size: int | None = within(1, 1_000_000, default=None)
    """block lstm: width of the state in each direction; none = hidden_size."""
    weight_dropout_prob: float = within(0, 1, below=True, default=0.0)
    """block lstm: dropout on the recurrent weights, in [0, 1) (AWD-LSTM: 0.5)."""
    conv_widths: tuple[int, ...] = within(1, 1000, default=(3, 4, 5))
    """block conv: tokens that a filter sees; each width has an equal part of the D filters."""
    locked_dropout: bool = False
    """Drop the same numbers at all tokens of a sequence, in embeddings and blocks (AWD-LSTM)."""
    word_dropout_prob: float = within(0, 1, below=True, default=0.0)
    """Dropout on whole words: all tokens of an id in a batch, in [0, 1) (AWD-LSTM: 0.1)."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass, to save memory."""

    def __post_init__(self) -> None:
        """Refuse what no encoder can be made from."""
        check_values(self)
        self._check_globals()
        self._check_padding()
        # As a tuple, which a file has as a list.
        object.__setattr__(self, "conv_widths", tuple(self.conv_widths))
        if self.block == "transformer":
            self._check_heads()
            self._check_position()
        else:  # the order of the tokens is in what such a block computes
            object.__setattr__(self, "position", "none")
        self._check_filters()
        if self.memory:
            self.check_memory()
        if not self.lm_transform and self.word_embedding_size != self.hidden_size:
            raise ConfigError(
                "lm_transform false multiplies hidden states with the word embeddings, but "
                f"embedding_size ({self.embedding_size}) is not hidden_size ({self.hidden_size}); "
                "leave out embedding_size."
            )
        if not self.first_attention_norm and self.norm_position != "pre":
            raise ConfigError(
                "first_attention_norm false leaves out a norm before the first attention, but "
                f"norm_position is '{self.norm_position}'; choose pre."
            )

    @property
    def head_size(self) -> int:
        """Width of an attention head, K."""
        return self.hidden_size // self.num_attention_heads

    @property
    def cells(self) -> int:
        """Width of an LSTM's state in each direction."""
        return self.hidden_size if self.lstm_size is None else self.lstm_size

    @property
    def filter_counts(self) -> tuple[int, ...]:
        """Number of filters of each width of a convolution, D in all."""
        each, more = divmod(self.hidden_size, len(self.conv_widths))
        return tuple(each + (number < more) for number in range(len(self.conv_widths)))

    @property
    def word_embedding_size(self) -> int:
        """Width of the embeddings, E."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def embedding_dropout(self) -> float:
        """Dropout on the embeddings, in [0, 1)."""
        rate = self.embedding_dropout_prob
        return self.hidden_dropout_prob if rate is None else rate

    def is_local(self, depth: int) -> bool:
        """Whether block number `depth`, from 1, sees only tokens nearby."""
        # The first block sees all tokens, and then every N-th, as in ModernBERT.
        if self.block != "transformer":
            return False
        return self.local_attention > 0 and (depth - 1) % self.global_every != 0

    @property
    def tile_size(self) -> int:
        """Tokens of a tile of local attention, c."""
        return max(self.local_attention, SMALLEST_TILE)

    @property
    def tile_keys(self) -> int:
        """Keys that a tile sees, S: of itself and of the tiles beside it."""
        return self.tile_size * (2 if self.causal else 3)

    def untiled(self, length: int) -> str:
        """Why local blocks compute all pairs of T tokens and hide some; "" where tiles pay."""
        if self.position == "relative":
            return "relative positions score each query with all distances"
        if self.position == "alibi" and self.global_tokens != "none":
            return "position alibi counts the distance of global tokens"
        if self.local_pattern != "window":
            return f"local_pattern {self.local_pattern} is a mask for study"
        if self.memory:
            return "a memory lies before the first tile"
        # Each key is copied into the tiles that see it, which takes time too.
        if length < 2 * self.tile_keys:
            return f"tiles of {self.tile_keys} keys pay from T = {2 * self.tile_keys:,} on"
        return ""

    def local_remark(self) -> str:
        """Say what local blocks see, and what they compute for it."""
        near = f"{counted(self.local_attention, 'token')} to each side"
        patterns = {
            "strided": f"{near} and every {self.local_attention}th one",
            "block": f"the tokens of its block of {self.local_attention}",
        }
        seen = f"In local blocks a token sees {patterns.get(self.local_pattern, near)}"
        if self.global_tokens != "none":
            seen += f"; global tokens ({self.global_tokens}) see all tokens, and all see them"
        first = 2 * self.tile_keys
        if why := self.untiled(first):
            return f"{seen}. All pairs are computed and the others hidden: {why}."
        return f"{seen}. From T = {first:,} on, {self.tile_keys} keys a token are computed."

    def theta(self, *, local: bool) -> float:
        """Base of the rotary wavelengths in the blocks of one kind."""
        local_theta = self.local_rotary_theta if local else None
        return self.rotary_theta if local_theta is None else local_theta

    def without_effect(self) -> str:
        """Say which settings the block does not read; "" where all of them are defaults."""
        names = [name for name, block in _READ_BY.items() if block != self.block]
        usual = EncoderConfig()
        given = [name for name in names if getattr(self, name) != getattr(usual, name)]
        if not given:
            return ""
        listed = ", ".join(f"{name} {getattr(self, name)}" for name in given)
        return f"block {self.block}: settings without effect: {listed}"

    def to_dict(self) -> dict[str, Any]:
        """List all settings, as they stand in a checkpoint's config.json."""
        settings = dataclasses.asdict(self)
        return {**settings, "conv_widths": list(self.conv_widths)}  # as JSON gives it back

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> EncoderConfig:
        """Read what `to_dict` wrote; settings that are absent keep their default.

        Args:
            settings: Name of a field -> its value.

        Returns:
            The checked config.

        Raises:
            ConfigError: A name is none of a field, or a value is refused.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                raise ConfigError(f"unknown encoder setting '{name}'; {nearest(name, names)}")
        return cls(**settings)

    def check_memory(self) -> None:
        """Refuse a memory of the tokens before a block, where it cannot be read.

        Raises:
            ConfigError: The encoder is not causal, or positions are those of a place in a block.
        """
        if self.block != "transformer":
            raise ConfigError(
                "memory: expected block transformer, whose attention reads earlier states, got "
                f"{self.block}; leave memory out."
            )
        if not self.causal:
            raise ConfigError(
                "memory: expected a causal encoder, as a token's state may depend on earlier ones "
                "alone; set causal, or memory 0."
            )
        if self.position in ("learned", "sinusoidal"):
            raise ConfigError(
                "memory: expected positions that are distances, as places of two blocks are the "
                f"same numbers, got position '{self.position}'; choose relative, alibi, rotary or "
                "none."
            )

    def _check_padding(self) -> None:
        if self.pad_token_id >= self.vocab_size:
            raise ConfigError(
                f"pad_token_id ({self.pad_token_id}) must be below "
                f"vocab_size ({self.vocab_size}); give the tokenizer's own."
            )

    def _check_heads(self) -> None:
        heads, size = self.num_attention_heads, self.hidden_size
        if size % heads:
            below = max(n for n in range(1, heads) if size % n == 0)
            above = min((n for n in range(heads, size + 1) if size % n == 0), default=size)
            choices = " or ".join(map(str, sorted({below, above})))
            raise ConfigError(
                f"num_attention_heads ({heads}) must divide hidden_size ({size}); choose {choices}."
            )

    def _check_globals(self) -> None:
        if self.global_tokens != "none" and self.causal:
            raise ConfigError(
                f"global_tokens {self.global_tokens}: expected an encoder that reads in both "
                "directions, as global tokens see all tokens, got a causal one; choose none."
            )
        if self.global_tokens == "question" and self.type_vocab_size < 2:
            raise ConfigError(
                "global_tokens question: expected segments, which tell the two texts apart, got "
                f"type_vocab_size {self.type_vocab_size}; choose cls."
            )

    def _check_filters(self) -> None:
        if not 0 < len(self.conv_widths) <= self.hidden_size:
            raise ConfigError(
                f"conv_widths: expected 1 to {self.hidden_size} widths (hidden_size, which they "
                f"divide), got {len(self.conv_widths)}; give for example 3,4,5."
            )

    def _check_position(self) -> None:
        if self.position == "rotary" and self.head_size % 2:
            raise ConfigError(
                f"position 'rotary' turns pairs of numbers, but a head has {self.head_size} "
                "(hidden_size / num_attention_heads); choose sizes that make it even."
            )
        if self.position == "relative" and self.hidden_size % 2:
            raise ConfigError(
                "position 'relative' fills pairs of numbers, but hidden_size is "
                f"{self.hidden_size}; choose an even one."
            )
        if self.position == "sinusoidal" and self.word_embedding_size % 2:
            raise ConfigError(
                "position 'sinusoidal' fills pairs of numbers, but an embedding has "
                f"{self.word_embedding_size}; choose an even embedding_size."
            )
