from __future__ import annotations

import json
from typing import Any

import pytest

from finetune.encoder import EncoderConfig
from finetune.encoder.block import BLOCKS
from finetune.encoder.config import ACTIVATION_NAMES, BLOCK_NAMES, SCORE_NAMES
from finetune.encoder.feedforward import ACTIVATIONS
from finetune.encoder.scores import SCORES
from finetune.errors import ConfigError


def test_defaults_are_those_of_bert_base() -> None:
    config = EncoderConfig()
    sizes = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    assert sizes == (768, 12, 12)
    assert (config.vocab_size, config.intermediate_size, config.head_size) == (30522, 3072, 64)
    assert (config.hidden_act, config.attention_score) == ("gelu", "scaled_dot")
    assert (config.position, config.norm_position, config.causal) == ("learned", "post", False)


def test_later_settings_leave_the_places_of_the_first_ones() -> None:
    config = EncoderConfig(100, 16, 2, 4, 32)
    assert (config.num_hidden_layers, config.num_attention_heads) == (2, 4)
    assert config.intermediate_size == 32


def test_names_of_variants_are_those_of_the_tables() -> None:
    assert (SCORE_NAMES, ACTIVATION_NAMES) == (tuple(SCORES), tuple(ACTIVATIONS))
    assert tuple(BLOCKS) == BLOCK_NAMES


def test_blocks_without_attention_need_no_heads_and_no_positions() -> None:
    config = EncoderConfig(block="lstm", hidden_size=10, position="rotary", local_attention=3)
    assert config.position == "none"
    assert not config.is_local(2)
    line = "block lstm: settings without effect: local_attention 3"
    assert config.without_effect() == line
    assert EncoderConfig(block="lstm", lstm_size=9).without_effect() == ""
    assert EncoderConfig(lstm_size=9).without_effect().endswith("without effect: lstm_size 9")
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_dict_round_trip_through_json_keeps_every_setting() -> None:
    config = EncoderConfig(hidden_size=32, num_attention_heads=4, position="rotary", causal=True)
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_absent_settings_keep_their_default() -> None:
    assert EncoderConfig.from_dict({"num_hidden_layers": 2}) == EncoderConfig(num_hidden_layers=2)


def test_embedding_settings_follow_the_hidden_ones_unless_set() -> None:
    follows = EncoderConfig(hidden_dropout_prob=0.3)
    assert (follows.embedding_dropout, follows.word_embedding_size) == (0.3, 768)
    chosen = EncoderConfig(embedding_dropout_prob=0.0, embedding_size=128)
    assert (chosen.embedding_dropout, chosen.word_embedding_size) == (0.0, 128)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_attention_heads": 10},
            r"num_attention_heads \(10\) must divide hidden_size \(768\); choose 8 or 12\.",
        ),
        (
            {"num_attention_heads": 40, "hidden_size": 32},
            r"num_attention_heads \(40\) must divide hidden_size \(32\); choose 32\.",
        ),
        ({"hidden_size": 0}, "hidden_size must be a whole number from 1 to .*, got 0"),
        ({"local_attention": -1}, "local_attention must be a whole number from 0 to .*, got -1"),
        ({"global_every": 0}, "global_every must be a whole number from 1 to .*, got 0"),
        (
            {"local_rotary_theta": 0.0},
            "local_rotary_theta must be a number above 0 and at most .*, got 0.0",
        ),
        ({"first_attention_norm": False}, "but norm_position is 'post'; choose pre"),
        (
            {"num_hidden_layers": "12"},
            "num_hidden_layers must be a whole number from 1 to .*, got '12'",
        ),
        ({"vocab_size": True}, "vocab_size must be a whole number from 1 to .*, got true"),
        ({"embedding_size": 0}, "embedding_size must be a whole number from 1 to .*, got 0"),
        ({"type_vocab_size": -1}, "type_vocab_size must be a whole number from 0 to .*, got -1"),
        (
            {"pad_token_id": 7, "vocab_size": 7},
            r"pad_token_id \(7\) must be below vocab_size \(7\)",
        ),
        (
            {"hidden_dropout_prob": 1.0},
            r"hidden_dropout_prob must be a number from 0 to below 1.*, got 1\.0",
        ),
        ({"embedding_dropout_prob": -0.1}, "embedding_dropout_prob must be .*, got -0.1"),
        ({"attention_probs_dropout_prob": "0.1"}, "dropout_prob must be a number .*'0.1'"),
        (
            {"layer_norm_eps": 0.0},
            "layer_norm_eps must be a number above 0 and at most .*, got 0.0",
        ),
        (
            {"initializer_range": None},
            "initializer_range must be a number above 0 and at most .*, got none",
        ),
        ({"hidden_act": "gellu"}, "hidden_act must be one of .*, got 'gellu'; did you mean 'gelu'"),
        ({"attention_score": "cosine"}, "attention_score must be one of .*additive, got 'cosine'"),
        ({"position": "rotory"}, "position must be .*, got 'rotory'; did you mean 'rotary'"),
        (
            {"norm_position": "both"},
            "norm_position must be one of post, pre, output, got 'both'",
        ),
        (
            {"position": "rotary", "hidden_size": 9, "num_attention_heads": 3},
            "position 'rotary' turns pairs of numbers, but a head has 3",
        ),
        (
            {"position": "sinusoidal", "embedding_size": 5},
            "position 'sinusoidal' fills pairs of numbers, but an embedding has 5",
        ),
        ({"block": "gru"}, "block must be one of transformer, lstm, conv, got 'gru'"),
        ({"lstm_size": 0}, "lstm_size must be a whole number from 1 to .*, got 0"),
        ({"conv_widths": [3, 0]}, "conv_widths must be a list, each a whole number from 1 to"),
        ({"conv_widths": []}, "conv_widths: expected 1 to 768 widths .* got 0; give for example"),
        ({"hiden_size": 768}, "unknown encoder setting 'hiden_size'; did you mean 'hidden_size'?"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict(settings)
