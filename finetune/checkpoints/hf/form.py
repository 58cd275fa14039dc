"""A family of published encoders: its settings and keys, each beside ours.

A form is a table that is read from left to right to write their files, and from right to left to
read them. The tables themselves are in `forms.py`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from finetune.encoder.config import GATED_ACTIVATIONS, EncoderConfig
from finetune.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from finetune.encoder import Encoder

Pair = tuple[str, str]
"""Our key, their key."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
}
"""Their name -> ours. Of several names for one function the last one is written."""

_GATES = {plain: gated for gated, plain in GATED_ACTIVATIONS.items()}
POSITIONS = "encoder.embeddings.position_embeddings.weight"
GELU = ("gelu", "geglu")
"""Activations with which our masked-LM head uses gelu."""

USUAL: Mapping[str, Any] = {
    "norm": "layer",
    "residual": True,
    "embedding_norm": True,
    "lm_transform": True,
    "local_pattern": "window",
    "global_tokens": "none",
}
"""Settings that a family neither writes nor fixes -> their only value in its networks."""

POOLED = ("classification", "regression", "multi_label", "choice")
"""Kinds of heads with the layers of `PooledHead`."""


@dataclass(frozen=True)
class Form:
    """One family: `model_type`, settings, keys of the encoder and keys of each head."""

    name: str
    """`model_type` in their config.json."""
    classes: str
    """Prefix of their class names, as in `BertForMaskedLM`."""
    prefix: str
    """Prefix of the encoder's keys in a model with a head."""
    fields: tuple[tuple[str, str, Any], ...]
    """Our setting, their field, and their default where config.json does not have the field."""
    encoder: tuple[Pair, ...]
    """Modules of the encoder, `{}` for the number of the block; their side without the prefix."""
    heads: Mapping[str, tuple[Pair, ...]]
    """Kind of head -> its modules. A kind is absent if theirs computes something else than ours."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Our settings that are the same for all encoders of the family."""
    same: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Their fields without a setting of ours -> the values with which both networks are equal."""
    pooler: str | None = None
    """Their module that applies a dense layer and tanh to the first token."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Their second name for a tensor of a head -> its first name."""
    output: str | None = None
    """Their key of the output weights of masked language modelling."""
    left_out: tuple[str, ...] = ()
    """Patterns of their tensors that have no counterpart in our networks."""
    first_position: bool = False
    """Positions are counted from the padding token's id + 1; the rows before are never used."""
    plain_gelu: bool = False
    """The masked-LM head has gelu whatever the activation of the blocks is."""
    gated: bool = False
    """Whether the feed-forward part is gated (GLU)."""
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """Their name of an activation -> ours; of several names for one the last is written."""
    any_pooling: bool = False
    """Whether their classifiers pool as config.json says; otherwise they read the first token."""
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Their field -> patterns of tensors that a model lacks where it is false; ours are zeros."""
    transposed: tuple[str, ...] = ()
    """Patterns of their tensors that are stored as inputs × outputs; ours the other way."""
    language_model: str = "ForMaskedLM"
    """Ending of their class with a language-model head."""
    limits: Callable[[EncoderConfig], list[str]] = lambda config: []
    """More that the family lacks for a config, as phrases that follow its name."""
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda settings: {}
    """Their config.json -> more of our settings, where fields do not correspond one to one."""
    write_more: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}
    """Our settings -> more of their fields."""

    def encoder_config(self, settings: Mapping[str, Any]) -> EncoderConfig:
        """Read the shape of an encoder.

        Args:
            settings: Their config.json.

        Returns:
            Ours.

        Raises:
            CheckpointError: Names the field that our settings cannot express, or that is refused.
        """
        for name, values in self.same.items():
            if settings.get(name, values[0]) not in values:
                raise CheckpointError(
                    f"config.json: expected {name} {_listed(values)}, got {settings[name]!r}; "
                    f"our encoder has no such variant of {self.name}"
                )
        shape = {ours: _value(settings, theirs, default) for ours, theirs, default in self.fields}
        act = self._our_activation(shape["hidden_act"])
        shape["hidden_act"] = _GATES[act] if self.gated else act
        try:
            shape |= self.read_more(settings)
            return self._normalized(EncoderConfig(**shape, **self.fixed))
        except (ConfigError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"config.json: expected the shape of a {self.name} encoder, got: {error}"
            ) from None

    def _normalized(self, config: EncoderConfig) -> EncoderConfig:
        """Express equal sizes and unused position rows as our settings do."""
        if config.embedding_size == config.hidden_size:
            config = dataclasses.replace(config, embedding_size=None)
        longest = config.max_position_embeddings - self.position_rows(config)
        return dataclasses.replace(config, max_position_embeddings=longest)

    def position_rows(self, config: EncoderConfig) -> int:
        """Rows of their position embeddings that come before the first position."""
        return config.pad_token_id + 1 if self.first_position else 0

    def settings(self, config: EncoderConfig) -> dict[str, Any]:
        """Write the shape of an encoder.

        Dropout on the embeddings alone is not written: it does not change what the net computes.

        Args:
            config: Ours.

        Returns:
            Their config.json without `architectures`.

        Raises:
            CheckpointError: Names all settings that the family cannot express.
        """
        if lacks := self.lacks(config):
            raise CheckpointError(f"{self.name} {'; '.join(lacks)}")
        our_settings = {**config.to_dict(), "embedding_dropout_prob": config.embedding_dropout}
        written = {theirs: our_settings[ours] for ours, theirs, _ in self.fields}
        written[self._their_name("hidden_act")] = self._their_activations(config.hidden_act)[-1]
        written |= {name: values[0] for name, values in self.same.items()}
        written |= {name: True for name in self.switches}
        longest = config.max_position_embeddings + self.position_rows(config)
        written[self._their_name("max_position_embeddings")] = longest
        if "type_vocab_size" in written:  # their networks always have a table; zeros add nothing
            written["type_vocab_size"] = config.type_vocab_size or 2
        if "embedding_size" in written:
            written["embedding_size"] = config.word_embedding_size
        return {"model_type": self.name, **written, **self.write_more(config)}

    def lacks(
        self, config: EncoderConfig, head: str | None = None, pooling: str = "cls"
    ) -> list[str]:
        """All reasons for which the family does not compute what our networks do.

        Args:
            config: Shape of the encoder.
            head: Kind of the head, or None.
            pooling: That of the head, where it pools.

        Returns:
            Phrases that follow the name of the family; [] if it computes the same.
        """
        ours, written = config.to_dict(), [name for name, _, _ in self.fields]
        usual = {name: value for name, value in USUAL.items() if name not in written}
        if config.block != "transformer":  # in no family, and not in our own code either
            return [f"has block 'transformer' only, got {config.block!r}"]
        reasons = [
            f"has {name} {value!r} only, got {ours[name]!r}"
            for name, value in (usual | dict(self.fixed)).items()
            if ours[name] != value
        ]
        reasons += self.limits(config)
        if not self._their_activations(config.hidden_act):
            reasons.append(f"has no hidden_act {config.hidden_act!r}")
        if head is not None and not self.has_head(config, head):
            reasons.append(f"has no {head} head that computes what ours does")
        elif head in POOLED and pooling != "cls" and not self.any_pooling:
            reasons.append(f"pools by 'cls' only, got {pooling!r}")
        return reasons

    def in_our_order(self, key: str, tensor: Tensor) -> Tensor:
        """One of their tensors, by their key, with outputs first; the other way round as well."""
        swapped = tensor.dim() == 2 and any(fnmatchcase(key, one) for one in self.transposed)
        return tensor.t() if swapped else tensor

    def absent(self, settings: Mapping[str, Any]) -> list[str]:
        """Patterns of the tensors, mostly biases, that a model with these settings lacks."""
        off = [patterns for name, patterns in self.switches.items() if not settings.get(name)]
        return [pattern for patterns in off for pattern in patterns]

    def _our_activation(self, name: Any) -> str:
        if not isinstance(name, str) or name not in self.activations:
            raise CheckpointError(
                f"config.json: unknown {self._their_name('hidden_act')} {name!r}; "
                f"{nearest(str(name), self.activations)}"
            )
        return self.activations[name]

    def _their_activations(self, ours: str) -> list[str]:
        """Their names for an activation; [] where they have none."""
        plain = GATED_ACTIVATIONS.get(ours) if self.gated else ours
        return [theirs for theirs, name in self.activations.items() if name == plain]

    def _their_name(self, ours: str) -> str:
        return next(theirs for name, theirs, _ in self.fields if name == ours)

    def pairs(self, config: EncoderConfig, head: str | None, pooling: str = "cls") -> list[Pair]:
        """List the keys of a checkpoint, ours and theirs.

        Where several of our keys have the same key of theirs, their tensor is the concatenation of
        ours along the first dimension, in this order.

        Args:
            config: Shape of the encoder.
            head: Kind of the head, or None; without a head, and with `masked_lm`, the pooler is
                among the keys, but need not be in the files.
            pooling: That of the head, where it pools.

        Returns:
            (our key, their key) for each tensor of ours.

        Raises:
            CheckpointError: The family has no counterpart of a tensor, or no head that computes
                what ours does.
        """
        self._check_head(config, head)
        keys = shapes(config, head, pooling=pooling)
        rows = [("encoder." + ours, self.prefix + theirs) for ours, theirs in self.encoder]
        rows += [("head." + ours, theirs) for ours, theirs in self.heads.get(head or "", ())]
        pairs = [(key, self._their_key(key, rows)) for key in keys]
        if head in (None, "masked_lm") and self.pooler:
            pooler = self.prefix + self.pooler
            pairs += [(f"pooler.{part}", f"{pooler}.{part}") for part in ("weight", "bias")]
        return pairs

    @property
    def word_embeddings(self) -> str:
        """Their key of the word embeddings."""
        return f"{self.prefix}{dict(self.encoder)['embeddings.word_embeddings']}.weight"

    def head_patterns(self) -> list[str]:
        """Patterns of all their tensors that belong to a head or have no counterpart of ours."""
        modules = [theirs for rows in self.heads.values() for _, theirs in rows]
        named = [module for module in modules if not module.startswith(self.prefix)]
        return [*named, *(f"{module}.*" for module in named), *self.aliases, *self.left_out]

    def known_patterns(self) -> list[str]:
        """Patterns of all their tensors that a model of the family may have besides the encoder."""
        return [*self.head_patterns(), *([f"{self.prefix}{self.pooler}.*"] if self.pooler else [])]

    def has_head(self, config: EncoderConfig, head: str) -> bool:
        """Whether their head of this kind computes what ours does."""
        differs = head == "masked_lm" and self.plain_gelu and config.hidden_act not in GELU
        return head in self.heads and not differs

    def _check_head(self, config: EncoderConfig, head: str | None) -> None:
        if head is not None and not self.has_head(config, head):
            raise CheckpointError(
                f"{self.name}: the family has no {head} head that computes what ours does; it has "
                f"{', '.join(self.heads)}"
            )

    def _their_key(self, key: str, rows: list[Pair]) -> str:
        number = re.search(r"blocks\.(\d+)\.", key)
        for ours, theirs in rows:
            start = ours.format(number[1]) if number else ours
            if key == start or key.startswith(start + "."):
                return (theirs.format(number[1]) if number else theirs) + key[len(start) :]
        raise CheckpointError(f"{self.name}: the family has no counterpart of {key}")


def shapes(
    config: EncoderConfig, head: str | None = None, outputs: int = 1, pooling: str = "cls"
) -> dict[str, tuple[int, ...]]:
    """Our key -> shape, for an encoder and a head, without allocating any weights.

    Args:
        config: Shape of the encoder.
        head: Kind of the head; None for an encoder alone.
        outputs: C of a pooled head.
        pooling: How it pools.
    """
    import torch  # which whoever reads settings alone does not wait for

    from finetune.encoder import Encoder

    with torch.device("meta"):
        encoder = Encoder(config)
        parts = {"encoder": encoder, "head": _head(encoder, head, outputs, pooling)}
    return {
        f"{name}.{key}": tuple(tensor.shape)
        for name, part in parts.items()
        if part is not None
        for key, tensor in part.state_dict().items()
    }


def _head(encoder: Encoder, kind: str | None, outputs: int, pooling: str) -> nn.Module | None:
    from finetune.heads import Classification, HeadConfig, MaskedLM, Span, SpanConfig

    if kind == "masked_lm":
        return MaskedLM(encoder.config, encoder.embeddings.word_embeddings)
    if kind == "span":
        return Span(encoder.config, HeadConfig(), SpanConfig())
    pooled = HeadConfig(pooling=pooling)
    return Classification(encoder.config, pooled, outputs) if kind in POOLED else None


def _value(settings: Mapping[str, Any], name: str, default: Any) -> Any:
    value = settings.get(name)
    return default if value is None else value


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in values)
