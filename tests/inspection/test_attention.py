from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from finetune.errors import ConfigError
from finetune.inspection import AttentionMap, Model, attention_map
from finetune.text.tokenizer.tokenizer import Tokenizer, token_text
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tests.made.nets import tiny_encoder
from tests.made.texts import sentences


def map_of(model: Model, *texts: str, **options: int) -> AttentionMap:
    return attention_map(model.encoder, model.tokenizer, *texts, **options)


def test_first_layer_is_the_softmax_of_scaled_products(model: Model) -> None:
    shown = map_of(model, "the cat sees a bird")
    encoder, ids = model.encoder, model.tokenizer.encode_ids(["the cat sees a bird"])[0]
    framed = [model.tokenizer.cls_token_id, *ids, model.tokenizer.sep_token_id]
    with torch.no_grad():
        hidden = encoder.prefix({"input_ids": torch.tensor([framed])}, 0)[0].numpy()
    part = encoder.blocks[0].attention
    weight = {
        name: (getattr(part, name).weight.detach().numpy(), getattr(part, name).bias.detach())
        for name in ("query", "key")
    }
    query, key = (hidden @ w.T + b.numpy() for w, b in weight.values())
    for head in range(2):
        inside = slice(8 * head, 8 * head + 8)
        odds = np.exp(query[:, inside] @ key[:, inside].T / np.sqrt(8))
        expected = odds / odds.sum(1, keepdims=True)
        np.testing.assert_allclose(shown.weights[0, head], expected, rtol=1e-4, atol=1e-6)


def test_rows_sum_to_one_and_tokens_are_those_of_the_vocabulary(model: Model) -> None:
    shown = map_of(model, "the cat", "a dog the")
    assert shown.tokens == ("[CLS]", "the", "cat", "[SEP]", "a", "dog", "the", "[SEP]")
    assert shown.segments == (0, 0, 0, 0, 1, 1, 1, 1)
    assert shown.weights.shape == (2, 2, 8, 8)
    assert (shown.layers, shown.heads) == (2, 2)
    np.testing.assert_allclose(shown.weights.sum(-1), 1, rtol=1e-5)


def test_json_has_the_weights_to_four_places(model: Model) -> None:
    shown = map_of(model, "the cat")
    content = shown.as_json()
    assert list(content) == ["tokens", "segments", "layers", "heads", "trimmed", "weights"]
    np.testing.assert_allclose(content["weights"], shown.weights, atol=0.5e-4)
    assert content["weights"][1][0][2][3] == round(float(shown.weights[1, 0, 2, 3]), 4)


def test_long_text_is_cut_and_says_by_how_much(model: Model) -> None:
    shown = map_of(model, "the " * 50)
    assert len(shown.tokens) == 32
    assert shown.trimmed == 50 - 30
    assert len(map_of(model, "the " * 50, max_length=8).tokens) == 8


def test_length_beyond_learned_positions_is_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"max_length \(33\) must not exceed .* \(32\); lower it"):
        map_of(model, "the", max_length=33)


def test_causal_head_looks_at_nothing_behind_a_token(tokenizer: Tokenizer) -> None:
    shown = attention_map(tiny_encoder(causal=True), tokenizer, "the cat sees a dog")
    assert np.triu(shown.weights, k=1).max() == 0


def test_bytes_are_shown_as_text() -> None:
    config = TokenizerConfig(algorithm="bpe", vocab_size=300)
    tokenizer = train_tokenizer(["the café", *sentences(0, 50)], config)
    ids = tokenizer.encode_ids(["the café the"])[0]
    shown = "".join(token_text(tokenizer, number) for number in ids)
    assert re.fullmatch(r"▁?the▁caf(é|��)▁the", shown)
    assert token_text(tokenizer, tokenizer.mask_token_id) == tokenizer.special_tokens["mask_token"]
    assert token_text(tokenizer, 10**6) == "#1000000"
