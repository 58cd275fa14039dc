"""What was imported can be written again, bit for bit; what theirs cannot express is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.checkpoints.hf import (
    FORMS,
    OWN,
    export_form,
    export_lacks,
    exports_as,
    read_hf,
    their_weights,
)
from finetune.checkpoints.hf.form import POOLED, shapes
from finetune.errors import CheckpointError
from tests.made.nets import tiny_config

Make = Callable[..., Any]
SMALL = tiny_config(vocab_size=40, intermediate_size=24, max_position_embeddings=16)
BIASES: dict[str, Any] = dict.fromkeys(FORMS["modernbert"].switches, True) | {"pad_token_id": 1}
UNUSED = ("cls.predictions.bias", "lm_head.bias")
"""Theirs computes with the second name of these."""
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}


@pytest.mark.parametrize(
    ("family", "ending", "settings"),
    [
        ("Bert", "Model", {}),
        ("Bert", "ForMaskedLM", {}),
        ("Bert", "ForMaskedLM", {"tie_word_embeddings": False}),
        ("Bert", "ForSequenceClassification", {"num_labels": 3}),
        ("Bert", "ForQuestionAnswering", {}),
        ("Bert", "ForMultipleChoice", {}),
        ("Roberta", "ForMaskedLM", {"pad_token_id": 1}),
        ("Roberta", "ForSequenceClassification", {"pad_token_id": 1}),
        ("Roberta", "ForMultipleChoice", {"pad_token_id": 1}),
        ("DistilBert", "ForMaskedLM", DISTILBERT),
        ("DistilBert", "ForQuestionAnswering", DISTILBERT),
        ("Electra", "ForMaskedLM", {"embedding_size": 8}),
        ("Electra", "ForMaskedLM", {"embedding_size": 16}),
        ("ModernBert", "ForMaskedLM", {**BIASES, "local_attention": 4}),
    ],
)
def test_reading_and_writing_give_the_same_tensors(
    family: str, ending: str, settings: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    state = make(ending, tmp_path, family, **settings).state_dict()
    found = read_hf(tmp_path)
    config, form, kind = found.encoder_config, found.form, found.head.get("kind")
    written = their_weights(found.weights, form, config, kind)
    if ending == "Model":
        written = {name.removeprefix(form.prefix): tensor for name, tensor in written.items()}
    tied = {form.output} if config.tie_word_embeddings else set()
    assert set(written) == set(state) - tied
    for name, tensor in written.items():
        if name in UNUSED:
            continue
        rows = form.position_rows(config) if "position_embeddings" in name else 0
        assert torch.equal(tensor[rows:], state[name][rows:]), name


@pytest.mark.parametrize("name", FORMS)
def test_settings_are_read_as_they_were_written(name: str) -> None:
    form = FORMS[name]
    usual = form.encoder_config({})
    config = replace(usual, vocab_size=50, pad_token_id=4, num_hidden_layers=3)
    config = replace(config, hidden_dropout_prob=0.2, tie_word_embeddings=False)
    written = form.settings(config)
    assert written["model_type"] == name
    assert form.encoder_config(written) == config


@pytest.mark.parametrize("name", FORMS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{FORMS[name].classes}Config")()
    assert FORMS[name].encoder_config({}) == FORMS[name].encoder_config(theirs.to_dict())


@pytest.mark.parametrize("name", FORMS)
def test_every_tensor_of_ours_has_a_key_of_theirs(name: str) -> None:
    form = FORMS[name]
    config = replace(form.encoder_config({}), num_hidden_layers=2)
    for head in (None, *form.heads):
        pairs = form.pairs(config, head)
        own = [ours for ours, _ in pairs if not ours.startswith("pooler.")]
        assert own == list(shapes(config, head))
        assert len({ours for ours, _ in pairs}) == len(pairs)


def test_an_encoder_of_ours_is_written_as_bert() -> None:
    assert export_form(SMALL)[0].name == "bert"
    assert export_form(replace(SMALL, hidden_act="gelu_tanh"))[0].name == "bert"
    assert export_form(replace(SMALL, embedding_size=8))[0].name == "electra"
    config = FORMS["roberta"].encoder_config({})
    assert FORMS["bert"].encoder_config(export_form(config)[0].settings(config)) == config


def test_an_encoder_like_modernbert_is_written_as_one() -> None:
    usual = FORMS["modernbert"].encoder_config({"vocab_size": 40, "pad_token_id": 1})
    assert (usual.local_attention, usual.global_every) == (64, 3)
    assert (usual.rotary_theta, usual.local_rotary_theta) == (160000.0, 10000.0)
    assert export_form(usual)[0].name == "modernbert"
    form, lacking = export_form(replace(usual, first_attention_norm=True))
    assert form is OWN
    assert "modernbert has first_attention_norm False only, got True" in lacking


@pytest.mark.parametrize("version", ["old", "new"])
def test_local_attention_is_read_from_configs_of_any_version(version: str) -> None:
    form = FORMS["modernbert"]
    config = form.encoder_config({"num_hidden_layers": 7, "global_attn_every_n_layers": 2})
    config = replace(config, rotary_theta=9.0, local_rotary_theta=8.0, local_attention=5)
    written = form.settings(config)
    names = {
        "old": ("layer_types", "rope_parameters"),
        "new": ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
    }
    for name in names[version]:
        del written[name]
    assert form.encoder_config(written) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "expected layer_types with full_attention in"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "expected rotary positions without scaling, got 'yarn' for full_attention",
        ),
        ({"rope_scaling": {"type": "linear"}}, "expected rotary positions without scaling, got"),
        ({"local_attention": "wide"}, "expected the shape of a modernbert encoder, got: invalid"),
        ({"rope_parameters": 3}, "expected the shape of a modernbert encoder, got: "),
        ({"classifier_activation": "relu"}, "expected classifier_activation 'gelu', got 'relu'"),
    ],
)
def test_variant_of_modernbert_that_ours_lacks_is_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        FORMS["modernbert"].encoder_config(settings)


def test_biases_that_a_modernbert_lacks_are_zeros(make: Make, tmp_path: Path) -> None:
    make("ForMaskedLM", tmp_path, "ModernBert", pad_token_id=1)
    found = read_hf(tmp_path)
    zero = [key for key, tensor in found.weights.items() if not tensor.any()]
    assert {key.rpartition(".")[2] for key in zero} == {"bias"}
    written = their_weights(found.weights, found.form, found.encoder_config, "masked_lm")
    assert not written["model.layers.0.attn.Wqkv.bias"].any()
    settings = found.form.settings(found.encoder_config)
    assert all(settings[name] is True for name in found.form.switches)


def test_an_encoder_without_segments_gets_a_table_of_zeros() -> None:
    config = replace(SMALL, type_vocab_size=0)
    form, _ = export_form(config)
    assert form.settings(config)["type_vocab_size"] == 2
    ours = {key: torch.ones(shape) for key, shape in shapes(config).items()}
    table = their_weights(ours, form, config, None)["bert.embeddings.token_type_embeddings.weight"]
    assert torch.equal(table, torch.zeros(2, 16))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attention_score": "additive"}, "attention_score 'scaled_dot' only, got 'additive'"),
        ({"position": "sinusoidal"}, "position 'learned' only, got 'sinusoidal'"),
        ({"causal": True}, "embedding_norm False only, got True"),
        ({"hidden_act": "geglu"}, "no hidden_act 'geglu'"),
    ],
)
def test_encoder_that_no_family_expresses_is_written_in_our_own_form(
    changed: dict[str, Any], message: str
) -> None:
    config = replace(SMALL, **changed)
    form, lacking = export_form(config)
    assert form is OWN
    assert f"{'gpt2' if config.causal else 'bert'} has {message}" in lacking[0]
    assert form.encoder_config(form.settings(config)) == config


def test_family_says_all_that_it_lacks_at_once() -> None:
    config = replace(SMALL, position="rotary", norm_position="pre", hidden_act="swiglu")
    assert FORMS["bert"].lacks(config, "classification", "mean") == [
        "has position 'learned' only, got 'rotary'",
        "has norm_position 'post' only, got 'pre'",
        "has no hidden_act 'swiglu'",
        "pools by 'cls' only, got 'mean'",
    ]
    with pytest.raises(CheckpointError, match="bert has position .*; has norm_position .*swiglu"):
        FORMS["bert"].settings(config)


@pytest.mark.parametrize("name", ["distilbert", "electra"])
@pytest.mark.parametrize("head", POOLED)
def test_head_that_theirs_computes_otherwise_is_refused(name: str, head: str) -> None:
    form = FORMS[name]
    message = f"{name}: the family has no {head} head that computes what ours does; it has masked"
    with pytest.raises(CheckpointError, match=message):
        form.pairs(form.encoder_config({}), head)


def test_tensors_that_do_not_fit_are_named() -> None:
    ours = {key: torch.ones(shape) for key, shape in shapes(SMALL, "span").items()}
    more = {**ours, "head.layers.9.weight": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"no counterpart of head\.layers\.9\.weight"):
        their_weights(more, FORMS["bert"], SMALL, "span")
    del ours["head.layer.bias"]
    with pytest.raises(CheckpointError, match=r"expected the tensor head\.layer\.bias, got none"):
        their_weights(ours, FORMS["bert"], SMALL, "span")


def test_formats_are_said_in_one_line_and_why_where_asked() -> None:
    assert exports_as(SMALL, {}) == "export formats: transformers (as bert), ONNX"
    config = replace(SMALL, position="rotary", norm_position="pre")
    line = exports_as(config, {})
    assert line.startswith("export formats: transformers with trust_remote_code=True (")
    assert line.endswith("as no class of transformers computes this), ONNX")
    head = {"kind": "classification", "pooling": "mean"}
    why = exports_as(config, head, reasons=True)
    assert "computes this: bert has position 'learned' only, got 'rotary', has norm_" in why
    assert "pools by 'cls' only, got 'mean'; electra has" in why


@pytest.mark.parametrize(
    ("config", "head", "reason"),
    [
        ({"local_attention": 2, "local_pattern": "strided"}, {}, "has local_pattern 'window' only"),
        ({"local_attention": 2, "global_tokens": "cls"}, {}, "has global_tokens 'none' only"),
        ({"block": "conv"}, {}, "has block 'transformer' only, got 'conv'"),
        ({}, {"kind": "classification", "levels": 2}, "has levels 1 only, got 2"),
        ({}, {"kind": "span", "layers": "mix"}, "has layers 'last' only, got 'mix'"),
    ],
)
def test_what_no_transformers_folder_computes_is_not_promised(
    config: dict[str, Any], head: dict[str, Any], reason: str
) -> None:
    shape = replace(SMALL, **config)
    assert exports_as(shape, head).startswith(f"export formats: ONNX (transformers {reason}")
    assert reason in export_lacks(shape, head, "hf")[0]
    assert export_lacks(shape, head, "onnx") == []
