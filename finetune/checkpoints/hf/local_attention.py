"""Local attention and rotary positions of ModernBERT, where several fields make one setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.console.output import quoted
from finetune.encoder import EncoderConfig
from finetune.errors import CheckpointError

FULL, SLIDING = "full_attention", "sliding_attention"
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
WINDOW = 128
"""Default width of their window in tokens, both sides together; ours counts one side."""


def attention_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings from a config.json of any version of transformers.

    Raises:
        CheckpointError: The pattern of blocks is not one of ours, or positions are scaled.
    """
    every = _global_every(settings)
    base, local_base = _theta(settings, FULL), _theta(settings, SLIDING)
    if every == 1:
        return {"rotary_theta": base}
    return {
        "rotary_theta": base,
        "local_rotary_theta": local_base,
        "local_attention": int(settings.get("local_attention", WINDOW)) // 2,
        "global_every": every,
    }


def _global_every(settings: Mapping[str, Any]) -> int:
    """The n of which every n-th block, from the first on, attends to all tokens; 1 if all do."""
    kinds = settings.get("layer_types")
    if kinds is None:
        return int(settings.get("global_attn_every_n_layers", 3))
    if isinstance(kinds, list) and kinds:
        every = kinds.index(FULL, 1) if FULL in kinds[1:] else len(kinds)
        if kinds == _kinds(len(kinds), every):
            return every
    raise CheckpointError(
        "config.json: expected layer_types with full_attention in every n-th block, from the first "
        f"on, got {quoted(kinds)}"
    )


def _kinds(blocks: int, every: int) -> list[str]:
    return [SLIDING if number % every else FULL for number in range(blocks)]


def _theta(settings: Mapping[str, Any], kind: str) -> float:
    """Base of the wavelengths in blocks of one kind."""
    default, old = (GLOBAL_THETA, "global") if kind == FULL else (LOCAL_THETA, "local")
    parameters = (settings.get("rope_parameters") or {}).get(kind) or {}
    scaling = settings.get("rope_scaling") or parameters.get("rope_type", "default")
    if scaling != "default":
        raise CheckpointError(
            f"config.json: expected rotary positions without scaling, got {scaling!r} for {kind}; "
            "our encoder does not scale them"
        )
    # transformers 5 writes rope_parameters; older versions wrote one field for each kind.
    return float(parameters.get("rope_theta") or settings.get(f"{old}_rope_theta") or default)


def attention_fields(config: EncoderConfig) -> dict[str, Any]:
    """Write the fields for new and for old versions of transformers."""
    every = config.global_every if config.local_attention else 1
    base, local_base = config.theta(local=False), config.theta(local=True)
    return {
        "local_attention": 2 * config.local_attention or WINDOW,
        "global_attn_every_n_layers": every,
        "global_rope_theta": base,
        "local_rope_theta": local_base,
        "layer_types": _kinds(config.num_hidden_layers, every),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": base},
            SLIDING: {"rope_type": "default", "rope_theta": local_base},
        },
    }
