"""One table for each family: settings and keys, ours on the left and theirs on the right."""

from __future__ import annotations

import dataclasses
from typing import Any

from finetune.checkpoints.hf.form import POOLED, Form, Pair
from finetune.checkpoints.hf.gpt import GPT2, OPENAI_GPT
from finetune.checkpoints.hf.local_attention import attention_fields, attention_settings
from finetune.encoder import EncoderConfig
from finetune.encoder.config import ACTIVATION_NAMES, GATED_ACTIVATIONS

ENCODER_ONLY: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute",),
}
"""Fields that make BERT another network: relative positions, or a decoder."""

POST_NORM: dict[str, Any] = {
    "attention_score": "scaled_dot",
    "position": "learned",
    "norm_position": "post",
    "causal": False,
    "local_attention": 0,
}

BERT_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("vocab_size", "vocab_size", 30522),
    ("hidden_size", "hidden_size", 768),
    ("num_hidden_layers", "num_hidden_layers", 12),
    ("num_attention_heads", "num_attention_heads", 12),
    ("intermediate_size", "intermediate_size", 3072),
    ("hidden_act", "hidden_act", "gelu"),
    ("hidden_dropout_prob", "hidden_dropout_prob", 0.1),
    ("attention_probs_dropout_prob", "attention_probs_dropout_prob", 0.1),
    ("max_position_embeddings", "max_position_embeddings", 512),
    ("type_vocab_size", "type_vocab_size", 2),
    ("initializer_range", "initializer_range", 0.02),
    ("layer_norm_eps", "layer_norm_eps", 1e-12),
    ("pad_token_id", "pad_token_id", 0),
    ("tie_word_embeddings", "tie_word_embeddings", True),
)

BERT_ENCODER: tuple[Pair, ...] = (
    ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    ("embeddings.position_embeddings", "embeddings.position_embeddings"),
    ("embeddings.token_type_embeddings", "embeddings.token_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
    ("blocks.{}.attention.query", "encoder.layer.{}.attention.self.query"),
    ("blocks.{}.attention.key", "encoder.layer.{}.attention.self.key"),
    ("blocks.{}.attention.value", "encoder.layer.{}.attention.self.value"),
    ("blocks.{}.attention.output", "encoder.layer.{}.attention.output.dense"),
    ("blocks.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
    ("blocks.{}.feedforward.intermediate", "encoder.layer.{}.intermediate.dense"),
    ("blocks.{}.feedforward.output", "encoder.layer.{}.output.dense"),
    ("blocks.{}.feedforward_norm", "encoder.layer.{}.output.LayerNorm"),
)

BUFFERS = ("*embeddings.position_ids", "*embeddings.token_type_ids")
"""Buffers that older versions of transformers stored with the weights: 0, 1, 2 … and zeros."""

BERT_POOLED: tuple[Pair, ...] = (
    ("layers.0", "bert.pooler.dense"),
    ("layers.3", "classifier"),
)

BERT = Form(
    name="bert",
    classes="Bert",
    prefix="bert.",
    fields=BERT_FIELDS,
    fixed={**POST_NORM, "embedding_size": None},
    same=ENCODER_ONLY,
    encoder=BERT_ENCODER,
    pooler="pooler.dense",
    heads={
        "masked_lm": (
            ("dense", "cls.predictions.transform.dense"),
            ("norm", "cls.predictions.transform.LayerNorm"),
            ("bias", "cls.predictions.bias"),
            ("decoder", "cls.predictions.decoder"),
        ),
        "span": (("layer", "qa_outputs"),),
        **dict.fromkeys(POOLED, BERT_POOLED),
    },
    output="cls.predictions.decoder.weight",
    aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    left_out=("cls.seq_relationship.*", *BUFFERS),
)

ROBERTA_POOLED: tuple[Pair, ...] = (
    ("layers.0", "classifier.dense"),
    ("layers.3", "classifier.out_proj"),
)

ROBERTA = Form(
    name="roberta",
    classes="Roberta",
    prefix="roberta.",
    fields=tuple(
        (ours, theirs, {"vocab_size": 50265, "pad_token_id": 1}.get(theirs, default))
        for ours, theirs, default in BERT_FIELDS
    ),
    fixed={**POST_NORM, "embedding_size": None},
    same=ENCODER_ONLY,
    encoder=BERT_ENCODER,
    pooler="pooler.dense",
    heads={
        "masked_lm": (
            ("dense", "lm_head.dense"),
            ("norm", "lm_head.layer_norm"),
            ("bias", "lm_head.bias"),
            ("decoder", "lm_head.decoder"),
        ),
        "span": (("layer", "qa_outputs"),),
        "classification": ROBERTA_POOLED,
        "regression": ROBERTA_POOLED,
        "multi_label": ROBERTA_POOLED,
        "choice": (("layers.0", "roberta.pooler.dense"), ("layers.3", "classifier")),
    },
    output="lm_head.decoder.weight",
    aliases={"lm_head.decoder.bias": "lm_head.bias"},
    # A token classifier's layer is named `classifier` itself, without a part below it.
    left_out=("classifier.*", *BUFFERS),
    first_position=True,
    plain_gelu=True,
)

DISTILBERT = Form(
    name="distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    fields=(
        ("vocab_size", "vocab_size", 30522),
        ("hidden_size", "dim", 768),
        ("num_hidden_layers", "n_layers", 6),
        ("num_attention_heads", "n_heads", 12),
        ("intermediate_size", "hidden_dim", 3072),
        ("hidden_act", "activation", "gelu"),
        ("hidden_dropout_prob", "dropout", 0.1),
        ("attention_probs_dropout_prob", "attention_dropout", 0.1),
        ("max_position_embeddings", "max_position_embeddings", 512),
        ("initializer_range", "initializer_range", 0.02),
        ("pad_token_id", "pad_token_id", 0),
        ("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    fixed={**POST_NORM, "embedding_size": None, "type_vocab_size": 0, "layer_norm_eps": 1e-12},
    encoder=(
        ("embeddings.word_embeddings", "embeddings.word_embeddings"),
        ("embeddings.position_embeddings", "embeddings.position_embeddings"),
        ("embeddings.norm", "embeddings.LayerNorm"),
        ("blocks.{}.attention.query", "transformer.layer.{}.attention.q_lin"),
        ("blocks.{}.attention.key", "transformer.layer.{}.attention.k_lin"),
        ("blocks.{}.attention.value", "transformer.layer.{}.attention.v_lin"),
        ("blocks.{}.attention.output", "transformer.layer.{}.attention.out_lin"),
        ("blocks.{}.attention_norm", "transformer.layer.{}.sa_layer_norm"),
        ("blocks.{}.feedforward.intermediate", "transformer.layer.{}.ffn.lin1"),
        ("blocks.{}.feedforward.output", "transformer.layer.{}.ffn.lin2"),
        ("blocks.{}.feedforward_norm", "transformer.layer.{}.output_layer_norm"),
    ),
    heads={
        "masked_lm": (
            ("dense", "vocab_transform"),
            ("norm", "vocab_layer_norm"),
            ("bias", "vocab_projector.bias"),
            ("decoder", "vocab_projector"),
        ),
        "span": (("layer", "qa_outputs"),),
    },
    output="vocab_projector.weight",
    # Its classifiers have relu where ours have tanh, so they would not compute the same.
    left_out=("pre_classifier.*", "classifier.*", *BUFFERS),
)

ELECTRA = Form(
    name="electra",
    classes="Electra",
    prefix="electra.",
    fields=(
        ("embedding_size", "embedding_size", 128),
        *(
            (
                ours,
                theirs,
                {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}.get(
                    theirs, default
                ),
            )
            for ours, theirs, default in BERT_FIELDS
        ),
    ),
    fixed=POST_NORM,
    same=ENCODER_ONLY,
    encoder=(*BERT_ENCODER, ("embeddings.projection", "embeddings_project")),
    heads={
        "masked_lm": (
            ("dense", "generator_predictions.dense"),
            ("norm", "generator_predictions.LayerNorm"),
            ("bias", "generator_lm_head.bias"),
            ("decoder", "generator_lm_head"),
        ),
        "span": (("layer", "qa_outputs"),),
    },
    output="generator_lm_head.weight",
    # Its classifiers have gelu where ours have tanh, and detecting replaced tokens is not an
    # objective of this framework.
    left_out=("discriminator_predictions.*", "classifier.*", "sequence_summary.*", *BUFFERS),
    plain_gelu=True,
)

MODERNBERT = Form(
    name="modernbert",
    classes="ModernBert",
    prefix="model.",
    fields=(
        ("vocab_size", "vocab_size", 50368),
        ("hidden_size", "hidden_size", 768),
        ("num_hidden_layers", "num_hidden_layers", 22),
        ("num_attention_heads", "num_attention_heads", 12),
        ("intermediate_size", "intermediate_size", 1152),
        ("hidden_act", "hidden_activation", "gelu"),
        # Their dropout is inside the feed-forward part, and that of the attention also on its
        # output.
        ("hidden_dropout_prob", "mlp_dropout", 0.0),
        ("attention_probs_dropout_prob", "attention_dropout", 0.0),
        ("embedding_dropout_prob", "embedding_dropout", 0.0),
        ("max_position_embeddings", "max_position_embeddings", 8192),
        ("initializer_range", "initializer_range", 0.02),
        ("layer_norm_eps", "norm_eps", 1e-5),
        ("pad_token_id", "pad_token_id", 50283),
        ("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    fixed={
        "attention_score": "scaled_dot",
        "position": "rotary",
        "norm_position": "pre",
        "first_attention_norm": False,
        "causal": False,
        "type_vocab_size": 0,
        "embedding_size": None,
    },
    same={"classifier_activation": ("gelu",)},
    read_more=attention_settings,
    write_more=attention_fields,
    encoder=(
        ("embeddings.word_embeddings", "embeddings.tok_embeddings"),
        ("embeddings.norm", "embeddings.norm"),
        ("blocks.{}.attention.query", "layers.{}.attn.Wqkv"),
        ("blocks.{}.attention.key", "layers.{}.attn.Wqkv"),
        ("blocks.{}.attention.value", "layers.{}.attn.Wqkv"),
        ("blocks.{}.attention.output", "layers.{}.attn.Wo"),
        ("blocks.{}.attention_norm", "layers.{}.attn_norm"),
        ("blocks.{}.feedforward.intermediate", "layers.{}.mlp.Wi"),
        ("blocks.{}.feedforward.output", "layers.{}.mlp.Wo"),
        ("blocks.{}.feedforward_norm", "layers.{}.mlp_norm"),
        ("final_norm", "final_norm"),
    ),
    heads={
        "masked_lm": (
            ("dense", "head.dense"),
            ("norm", "head.norm"),
            ("bias", "decoder.bias"),
            ("decoder", "decoder"),
        ),
    },
    output="decoder.weight",
    switches={
        "attention_bias": ("*.attn.Wqkv.bias", "*.attn.Wo.bias"),
        "mlp_bias": ("*.mlp.Wi.bias", "*.mlp.Wo.bias"),
        "norm_bias": ("*norm.bias",),
        "classifier_bias": ("head.dense.bias",),
    },
    # Its classifiers have gelu and a norm where ours have tanh.
    left_out=("head.*", "classifier.*"),
    plain_gelu=True,
    gated=True,
)

FORMS: dict[str, Form] = {
    form.name: form for form in (BERT, ROBERTA, DISTILBERT, ELECTRA, MODERNBERT, GPT2, OPENAI_GPT)
}
"""`model_type` -> its form."""

NOT_EXPORTED = (
    *("gradient_checkpointing", "memory", "locked_dropout", "word_dropout_prob"),
    *("block", "lstm_size", "weight_dropout_prob", "conv_widths"),
    *("local_pattern", "global_tokens"),
)
"""Settings without effect on what an exported transformer computes, or refused."""

OWN = Form(
    name="finetune",
    classes="Finetune",
    prefix="encoder.",
    fields=tuple(
        (one.name, one.name, one.default)
        for one in dataclasses.fields(EncoderConfig)
        if one.name not in NOT_EXPORTED
    ),
    encoder=tuple(
        (name, name)
        for name in ("embeddings.word_embeddings", "embeddings", "blocks.{}", "final_norm")
    ),
    heads={
        "masked_lm": (
            ("dense", "head.dense"),
            ("norm", "head.norm"),
            ("bias", "head.decoder.bias"),
            ("decoder", "head.decoder"),
        ),
        "span": (("layer", "head.layer"),),
        **dict.fromkeys(POOLED, (("layers", "head.layers"), ("pool", "head.pool"))),
    },
    output="head.decoder.weight",
    activations={name: name for name in (*ACTIVATION_NAMES, *GATED_ACTIVATIONS)},
    any_pooling=True,
    # Our config says None for equal sizes, and 0 for no segments.
    write_more=lambda config: {
        name: getattr(config, name)
        for name in ("embedding_size", "type_vocab_size", "embedding_dropout_prob")
    },
)
"""Our own: any of our encoders and heads, computed by the code that is exported beside them."""

NOT_OURS = {
    "albert": "all its blocks share one set of weights, and in our encoder each has different ones",
    "deberta": "its attention scores positions apart from words",
    "deberta-v2": "its attention scores positions apart from words",
}
"""`model_type` that users often try -> why our encoder cannot express it."""
