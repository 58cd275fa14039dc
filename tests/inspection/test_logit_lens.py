from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from finetune.errors import DataError
from finetune.inspection.logit_lens import _layers, lens_table, logit_lens
from finetune.inspection.pairs import SentenceScorer
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tests.made.nets import tiny_encoder

TEXTS = ["the cat saw a dog", "a dog"]


def module_for(tokenizer: Tokenizer, **changes: Any) -> Pretrainer:
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size + 4, **changes)
    return Pretrainer(encoder).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_position": "pre"},
        {"norm_position": "output", "causal": True},
        {"block": "lstm", "position": "none"},
        {"block": "conv", "position": "none", "causal": True},
    ],
    ids=str,
)
def test_each_layer_is_read_by_the_head(variant: dict[str, Any], tokenizer: Tokenizer) -> None:
    module = module_for(tokenizer, **variant)
    found = logit_lens(module, tokenizer, TEXTS)
    all_nats = []
    for text, read in zip(TEXTS, found["texts"], strict=True):
        ids = tokenizer.encode_ids([text])[0]
        for place, label in enumerate(ids):
            inputs = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            asked = place if module.encoder.config.causal else place + 1
            if not module.encoder.config.causal:
                inputs[asked] = tokenizer.mask_token_id
            batch, nats = {"input_ids": torch.tensor([inputs])}, []
            for depth in range(3):
                hidden = module.encoder.prefix(batch, depth)[0, [asked]]
                hidden = hidden if depth == 2 else module.encoder.final_norm(hidden)
                logits = module.head(hidden)[0, : tokenizer.vocab_size]
                nats.append(-float(logits.log_softmax(-1)[label]))
                best = read["tokens"][place]["candidates"][depth][0]
                assert best["probability"] == pytest.approx(
                    float(logits.softmax(-1).max()), abs=1e-5
                )
            assert read["tokens"][place]["nats"] == pytest.approx(nats, rel=1e-4)
            all_nats.append(nats)
    means = torch.tensor(all_nats).mean(0).tolist()
    assert [layer["nats"] for layer in found["layers"]] == pytest.approx(means, rel=1e-4)


def test_figures_of_a_layer_are_those_of_their_formulas() -> None:
    chances = torch.tensor([[[0.25, 0.5, 0.25]], [[0.8, 0.1, 0.1]]]).log()  # two layers, a token
    first, last = _layers(chances, torch.tensor([1]), None)
    divergence = 0.8 * math.log(0.8 / 0.25) + 0.1 * math.log(0.1 / 0.5) + 0.1 * math.log(0.1 / 0.25)
    assert first["divergence"] == pytest.approx(divergence, rel=1e-5)
    assert (first["right"], first["agrees"]) == (1.0, 0.0)
    assert first["nats"] == pytest.approx(-math.log(0.5))
    assert (last["right"], last["agrees"], last["divergence"]) == (0.0, 1.0, 0.0)


def test_the_last_layer_is_the_models_answer(tokenizer: Tokenizer) -> None:
    module = module_for(tokenizer)
    found = logit_lens(module, tokenizer, TEXTS)
    ids = [tuple(one) for one in tokenizer.encode_ids(TEXTS)]
    total = -sum(SentenceScorer(module, tokenizer).score(ids)) / sum(map(len, ids))
    last = found["layers"][-1]
    assert last["nats"] == pytest.approx(total, rel=1e-5)
    assert (last["agrees"], last["divergence"]) == (1.0, 0.0)
    assert found["layers"][0]["divergence"] > 0
    lines = lens_table(found).splitlines()
    assert lines[0].split()[:2] == ["layer", "nats"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("text", ["", "cat " * 200])
def test_a_text_without_a_place_to_ask_is_refused(text: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"expected a text of 1 to \d+ tokens, got \d+"):
        logit_lens(module_for(tokenizer), tokenizer, [text])


@torch.no_grad()
def test_a_mask_in_the_text_is_a_gap(tokenizer: Tokenizer) -> None:
    module = module_for(tokenizer)
    found = logit_lens(module, tokenizer, ["the [MASK] saw a dog"])
    (text,) = found["texts"]
    tokens = [one["token"] for one in text["tokens"]]
    assert tokens.count("[MASK]") == 1
    place = tokens.index("[MASK]")
    (left, right) = tokenizer.encode_ids(["the", "saw a dog"])
    ids = [tokenizer.cls_token_id, *left, tokenizer.mask_token_id, *right, tokenizer.sep_token_id]
    hidden = module.encoder({"input_ids": torch.tensor([ids])}).last_hidden_state
    chances = module.head(hidden[0])[:, : tokenizer.vocab_size].log_softmax(-1)
    best = text["tokens"][place]["candidates"][-1][0]["probability"]
    assert best == pytest.approx(float(chances[place + 1].exp().max()), abs=1e-5)
    assert text["tokens"][place]["nats"] is None
    known = [one["nats"][-1] for one in text["tokens"] if one["nats"]]
    assert len(known) == len(ids) - 3
    assert found["layers"][-1]["nats"] == pytest.approx(sum(known) / len(known), rel=1e-5)
    assert "[MASK]" in lens_table(found)


def test_gaps_alone_have_candidates_and_no_figures(tokenizer: Tokenizer) -> None:
    found = logit_lens(module_for(tokenizer), tokenizer, ["[MASK]"])
    assert [layer["nats"] for layer in found["layers"]] == [None] * 3
    assert "[MASK]" in lens_table(found)


def test_a_causal_model_reads_the_name_of_the_mask_as_text(tokenizer: Tokenizer) -> None:
    found = logit_lens(module_for(tokenizer, causal=True), tokenizer, ["a [MASK] dog"])
    tokens = found["texts"][0]["tokens"]
    assert all(one["nats"] for one in tokens)
    assert len(tokens) == len(tokenizer.encode_ids(["a [MASK] dog"])[0])
