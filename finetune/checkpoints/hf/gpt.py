"""The tables of GPT (Radford et al., 2018) and GPT-2 (Radford et al., 2019), both causal.

Neither normalizes the embeddings, and the output layer is a product with the word embeddings alone.
Their linear layers store weights as inputs × outputs, and one has queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.checkpoints.hf.form import Form, Pair
from finetune.encoder import EncoderConfig

CAUSAL: dict[str, Any] = {
    "attention_score": "scaled_dot",
    "position": "learned",
    "causal": True,
    "local_attention": 0,
    "embedding_size": None,
    "type_vocab_size": 0,
    "embedding_norm": False,
    "lm_transform": False,
}

FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("hidden_size", "n_embd", 768),
    ("num_hidden_layers", "n_layer", 12),
    ("num_attention_heads", "n_head", 12),
    ("hidden_dropout_prob", "resid_pdrop", 0.1),
    ("attention_probs_dropout_prob", "attn_pdrop", 0.1),
    ("embedding_dropout_prob", "embd_pdrop", 0.1),
    ("initializer_range", "initializer_range", 0.02),
    ("layer_norm_eps", "layer_norm_epsilon", 1e-5),
    ("tie_word_embeddings", "tie_word_embeddings", True),
)

BLOCKS: tuple[Pair, ...] = (
    ("blocks.{}.attention.query", "h.{}.attn.c_attn"),
    ("blocks.{}.attention.key", "h.{}.attn.c_attn"),
    ("blocks.{}.attention.value", "h.{}.attn.c_attn"),
    ("blocks.{}.attention.output", "h.{}.attn.c_proj"),
    ("blocks.{}.attention_norm", "h.{}.ln_1"),
    ("blocks.{}.feedforward.intermediate", "h.{}.mlp.c_fc"),
    ("blocks.{}.feedforward.output", "h.{}.mlp.c_proj"),
    ("blocks.{}.feedforward_norm", "h.{}.ln_2"),
)

SHARED: dict[str, Any] = {
    "prefix": "transformer.",
    "heads": {"masked_lm": (("decoder", "lm_head"),)},
    "output": "lm_head.weight",
    "language_model": "LMHeadModel",
    "transposed": ("*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight"),
    # Buffers of the causal mask, and heads that read other states than ours.
    "left_out": ("*.attn.bias", "*.attn.masked_bias", "score.*", "multiple_choice_head.*"),
}


def _padding(settings: Mapping[str, Any]) -> int:
    """They have no padding token: the one that ends a text stands in, as in transformers."""
    names = ("pad_token_id", "eos_token_id")
    return next((settings[name] for name in names if isinstance(settings.get(name), int)), 0)


def _last(settings: Mapping[str, Any]) -> Any:
    """GPT-2's token that ends a text, where config.json does not say which: the last one."""
    return settings.get("vocab_size", 50257) - 1


def _gpt2_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    inner = settings.get("n_inner") or 4 * settings.get("n_embd", 768)
    ends = {"eos_token_id": _last(settings), **settings}
    return {"pad_token_id": _padding(ends), "intermediate_size": inner}


def _gpt_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pad_token_id": _padding(settings),
        "intermediate_size": 4 * settings.get("n_embd", 768),
    }


def _gpt_limits(config: EncoderConfig) -> list[str]:
    wanted = 4 * config.hidden_size
    if config.intermediate_size == wanted:
        return []
    return [f"has intermediate_size {wanted} only, got {config.intermediate_size}"]


GPT2 = Form(
    name="gpt2",
    classes="GPT2",
    fields=(
        ("vocab_size", "vocab_size", 50257),
        ("hidden_act", "activation_function", "gelu_new"),
        ("max_position_embeddings", "n_positions", 1024),
        *FIELDS,
    ),
    fixed={**CAUSAL, "norm_position": "pre", "first_attention_norm": True},
    same={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    read_more=_gpt2_settings,
    write_more=lambda config: {
        "n_inner": config.intermediate_size,
        "pad_token_id": config.pad_token_id,
    },
    encoder=(
        ("embeddings.word_embeddings", "wte"),
        ("embeddings.position_embeddings", "wpe"),
        *BLOCKS,
        ("final_norm", "ln_f"),
    ),
    **SHARED,
)

OPENAI_GPT = Form(
    name="openai-gpt",
    classes="OpenAIGPT",
    fields=(
        ("vocab_size", "vocab_size", 40478),
        ("hidden_act", "afn", "gelu"),
        ("max_position_embeddings", "n_positions", 512),
        *FIELDS,
    ),
    fixed={**CAUSAL, "norm_position": "post"},
    # What they call gelu is the approximation by tanh.
    activations={"gelu": "gelu_tanh", "relu": "relu", "swish": "silu", "silu": "silu"},
    read_more=_gpt_settings,
    write_more=lambda config: {"pad_token_id": config.pad_token_id},
    limits=_gpt_limits,
    encoder=(
        ("embeddings.word_embeddings", "tokens_embed"),
        ("embeddings.position_embeddings", "positions_embed"),
        *BLOCKS,
    ),
    **SHARED,
)
