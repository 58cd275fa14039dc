from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import GATED_ACTIVATIONS
from finetune.encoder.cost import (
    attention_overtakes,
    cost,
    counts,
    describe,
    forward_flops_per_token,
    training_flops_per_token,
)
from finetune.encoder.feedforward import ACTIVATIONS
from finetune.encoder.scores import SCORES
from finetune.heads import MaskedLM
from finetune.training.loop.pretrainer import Pretrainer

Tiny = Callable[..., EncoderConfig]

each_variant = pytest.mark.parametrize(
    "variant",
    [
        *({"attention_score": name} for name in SCORES),
        *({"hidden_act": name} for name in ACTIVATIONS | GATED_ACTIVATIONS),
        {"position": "alibi"},
        {"position": "relative"},
        {"position": "relative", "causal": True, "attention_score": "additive"},
        {"position": "relative", "local_attention": 2, "attention_score": "bilinear"},
        {"norm": "rms", "norm_position": "output"},
        {"norm": "rms", "embedding_size": 8, "residual": False},
        {"embedding_size": 8},
        {"embedding_size": 8, "tie_word_embeddings": False},
        {"tie_word_embeddings": False},
        {"type_vocab_size": 0, "position": "rotary", "norm_position": "pre"},
        {"norm_position": "pre", "first_attention_norm": False, "local_attention": 2},
    ],
    ids=str,
)


def assert_counted_parameters(config: EncoderConfig) -> None:
    encoder = Encoder(config)
    head = MaskedLM(config, encoder.embeddings.word_embeddings)
    counted = sum(part.parameters for part in cost(config, 64).values())
    assert counted == sum(p.numel() for p in [*encoder.parameters(), *head.parameters()])


@each_variant
def test_counted_parameters_are_those_of_the_modules(tiny: Tiny, variant: dict[str, Any]) -> None:
    assert_counted_parameters(tiny(**variant))


@pytest.mark.parametrize(
    "variant",
    [
        {"block": "lstm"},
        {"block": "lstm", "lstm_size": 5, "causal": True, "norm_position": "pre"},
        {"block": "conv"},
        {"block": "conv", "conv_widths": (2, 7, 9), "hidden_act": "swiglu"},
    ],
    ids=str,
)
def test_blocks_without_attention_cost_what_torch_counts(
    tiny: Tiny, variant: dict[str, Any]
) -> None:
    config = tiny(**variant)
    assert_counted_parameters(config)
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        Encoder(config)({"input_ids": torch.ones(1, 20, dtype=torch.long)})
    assert counter.get_total_flops() == 20 * forward_flops_per_token(config, 20, lm_fraction=0.0)
    assert "overtake" not in describe(config)
    frozen = training_flops_per_token(config, 20, frozen=1, cached=[1])
    blocks = training_flops_per_token(config, 20)
    assert (frozen, blocks) == (
        3 * counter.get_total_flops() / 40,
        counter.get_total_flops() / 20 * 3,
    )


@each_variant
@pytest.mark.parametrize("length", [4, 20])
def test_counted_operations_are_those_that_torch_counts(
    tiny: Tiny, variant: dict[str, Any], length: int
) -> None:
    config = tiny(**variant)
    encoder = Encoder(config)
    head = MaskedLM(config, encoder.embeddings.word_embeddings)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        batch = {"input_ids": torch.ones(1, length, dtype=torch.long)}
        head(encoder(batch, output_attentions=True).last_hidden_state[0])
    counted = forward_flops_per_token(config, length, lm_fraction=1.0) * length
    if config.attention_score == "additive":  # torch counts products only; nothing is local
        counted -= 2 * length**2 * config.hidden_size * config.num_hidden_layers
    if config.position == "relative":
        distances = length + (1 if config.causal else length)  # and of some none makes use
        size, blocks = config.hidden_size, config.num_hidden_layers
        counted += 2 * blocks * size**2 * distances  # the keys of distances
        counted += 2 * blocks * size * length * (distances - length)
    assert counted == pytest.approx(counter.get_total_flops())


@pytest.mark.parametrize("length", [95, 96, 112, 123])
@pytest.mark.parametrize("variant", [{}, {"global_tokens": "cls"}, {"causal": True}], ids=str)
def test_local_attention_costs_what_torch_counts_in_tiles(
    tiny: Tiny, variant: dict[str, Any], length: int
) -> None:
    # With dropout the weights are made by plain products, which torch counts.
    config = tiny(
        num_hidden_layers=5, local_attention=3, global_every=2, position="none",
        attention_probs_dropout_prob=0.1, **variant,
    )  # fmt: skip
    encoder = Encoder(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder({"input_ids": torch.ones(1, length, dtype=torch.long)})
    counted = forward_flops_per_token(config, length, lm_fraction=0.0) * length
    assert counted == pytest.approx(counter.get_total_flops())
    plain = forward_flops_per_token(tiny(num_hidden_layers=5, position="none"), length, 0.0)
    is_tiled = length >= (64 if config.causal else 96)
    assert (counted < plain * length) == is_tiled


def test_local_blocks_above_frozen_ones_are_counted(tiny: Tiny) -> None:
    local = {"local_attention": 3, "global_every": 2}
    frozen = 3  # below are two global blocks and a local one, above one of each
    above = cost(tiny(num_hidden_layers=2, **local), 128)
    trained = 3 * (sum(part.flops for part in above.values()) - above["lm head"].flops)
    config = tiny(num_hidden_layers=5, **local)
    counted = training_flops_per_token(config, 128, frozen=frozen, cached=[frozen])
    assert counted == pytest.approx(trained)


def test_the_head_of_a_causal_encoder_sees_every_token(tiny: Tiny) -> None:
    plain, causal = cost(tiny(), 64), cost(tiny(causal=True), 64)
    assert causal["lm head"].flops == pytest.approx(plain["lm head"].flops / 0.15)
    assert "sees 100% of the tokens (it is causal)" in describe(tiny(causal=True))
    assert "sees 15% of the tokens (the masked ones)" in describe(tiny())


def test_the_table_says_that_attention_is_local(tiny: Tiny) -> None:
    text = " ".join(describe(tiny(local_attention=2, global_tokens="cls")).split())
    assert "sees 2 tokens to each side; global tokens (cls) see all tokens" in text
    assert "From T = 96 on, 48 keys a token are computed." in text


def test_bert_base_has_its_known_size() -> None:
    # 109,482,240 parameters with the pooler, which belongs to the classification head here.
    parts = cost(EncoderConfig(), 512)
    encoder = sum(part.parameters for name, part in parts.items() if name != "lm head")
    assert encoder == 109_482_240 - (768 * 768 + 768)


@each_variant
@pytest.mark.parametrize("with_projections", [True, False])
def test_attention_overtakes_exactly_there(
    tiny: Tiny, variant: dict[str, Any], with_projections: bool
) -> None:
    config = tiny(intermediate_size=100, **variant)
    overtaking = attention_overtakes(config, with_projections=with_projections)
    for length in (overtaking - 1, overtaking):
        parts = cost(config, length)
        attention = parts["scores and mixing"].flops
        attention += parts["attention projections"].flops if with_projections else 0
        assert (attention > parts["feed-forward"].flops) == (length == overtaking)


def test_attention_overtakes_berts_feed_forward_beyond_its_width() -> None:
    assert attention_overtakes(EncoderConfig()) == 3072 + 1
    assert attention_overtakes(EncoderConfig(), with_projections=True) == 2 * 768 + 1


def test_the_table_shows_every_part_at_every_length() -> None:
    text = describe(EncoderConfig(), lengths=(128, 4096))
    lines = text.splitlines()
    assert lines[0].startswith("12 blocks, hidden size 768, 12 heads, feed-forward 3072")
    assert lines[2] == "Millions of operations a token, forward, in sequences of T tokens:"
    assert lines[3].split() == ["part", "parameters", "T=128", "T=4096"]
    names = [line[:21].strip() for line in lines[4:11]]
    assert names == [*cost(EncoderConfig(), 1), "all"]
    assert lines[7].split() == ["feed-forward", "56,669,184", "113.25", "113.25"]
    assert "overtake the feed-forward part at T = 3,073, attention" in " ".join(lines)
    assert "Learned positions reach T = 512." in text
    assert "Learned positions" not in describe(EncoderConfig(position="rotary"))


def test_the_table_of_a_large_encoder_fits_a_terminal() -> None:
    text = describe(EncoderConfig(vocab_size=256_000, hidden_size=1536, num_hidden_layers=48))
    assert max(map(len, text.splitlines())) <= 80


def test_counts_are_those_of_the_table_as_plain_values() -> None:
    config = EncoderConfig()
    found = counts(config, lengths=(128, 4096))
    assert json.loads(json.dumps(found)) == found
    assert found["parameters"] == sum(part.parameters for part in cost(config, 128).values())
    assert found["flops_per_token"]["4096"] == forward_flops_per_token(config, 4096)
    assert found["parts"]["feed-forward"] == {
        "parameters": 56_669_184,
        "flops_per_token": {"128": 113_246_208, "4096": 113_246_208},
    }
    assert EncoderConfig.from_dict(found["encoder"]) == config


@pytest.mark.parametrize(
    ("one_token", "read"),
    [
        (False, {}),
        (True, {"first_only": True}),
        (True, {"positions": torch.tensor([11, 23, 35])}),
    ],
    ids=["all", "first", "last"],
)
@pytest.mark.parametrize("frozen", [None, 0, 1])
def test_a_training_step_costs_what_torch_counts(
    tiny: Tiny, one_token: bool, read: dict[str, Any], frozen: int | None
) -> None:
    config = tiny(num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.1)
    encoder, ids = Encoder(config).train(), torch.randint(config.vocab_size, (3, 12))
    below = encoder.prefix({"input_ids": ids}, frozen or 0).detach().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        encoder.suffix(below, None, frozen or 0, **read).sum().backward()
    cached = [frozen] if frozen else []  # the embeddings cost nothing
    counted = training_flops_per_token(
        config, 12, frozen=frozen, cached=cached, one_token=one_token
    )
    assert counter.get_total_flops() / ids.numel() == pytest.approx(counted)


@pytest.mark.parametrize("position", ["learned", "relative"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_step_of_pretraining_costs_what_torch_counts(
    tiny: Tiny, position: str, causal: bool
) -> None:
    config = tiny(position=position, causal=causal, attention_probs_dropout_prob=0.1)
    module = Pretrainer(Encoder(config).train())
    module.lm_fraction = 1.0 if causal else 0.25
    read = torch.arange(48).view(4, 12)[:, : 12 if causal else 3]
    batch = {"input_ids": torch.ones(4, 12, dtype=torch.long), "positions": read.flatten()}
    hidden = module.encoder.embeddings(batch).detach().requires_grad_()
    module.encoder.embeddings.forward = lambda _: hidden  # type: ignore[method-assign]
    with FlopCounterMode(display=False) as counter:
        module(batch).sum().backward()
    counted = module.flops_per_token(12) * 48
    if position == "relative":  # keys of distances, and distances that no query looks at
        assert counter.get_total_flops() > counted
    else:
        assert counter.get_total_flops() == pytest.approx(counted)


def test_local_attention_with_global_tokens_is_dense_where_documents_are_separate(
    tiny: Tiny,
) -> None:
    more = {"local_attention": 2, "global_every": 2, "global_tokens": "cls"}
    more = {**more, "max_position_embeddings": 512, "attention_probs_dropout_prob": 0.1}
    config = tiny(**more, num_hidden_layers=2)
    module = Pretrainer(Encoder(config).train())
    document = torch.arange(512) // 100
    batch = {
        "input_ids": torch.ones(1, 512, dtype=torch.long),
        "positions": torch.arange(512),
        "attention_mask": (document[:, None] == document).expand(1, 512, 512),
    }
    module.lm_fraction, module.separate = 1.0, True
    hidden = module.encoder.embeddings(batch).detach().requires_grad_()
    module.encoder.embeddings.forward = lambda _: hidden  # type: ignore[method-assign]
    with FlopCounterMode(display=False) as counter:
        module(batch).sum().backward()
    assert counter.get_total_flops() / 512 == pytest.approx(module.flops_per_token(512))
    plain = Pretrainer(Encoder(dataclasses.replace(config, global_tokens="none")).train())
    plain.lm_fraction = 1.0
    tiled = plain.flops_per_token(512)
    plain.separate = True  # tiles have documents
    assert plain.flops_per_token(512) == tiled
    module.separate = False
    assert module.flops_per_token(512) < counter.get_total_flops() / 512


def test_a_frozen_prefix_costs_one_pass_or_none(tiny: Tiny) -> None:
    config = tiny(num_hidden_layers=4)
    whole = training_flops_per_token(config, 16)
    assert whole == pytest.approx(3 * forward_flops_per_token(config, 16, lm_fraction=0.0))
    assert training_flops_per_token(config, 16, frozen=3) == pytest.approx(whole / 4 + whole / 4)

    def of_frozen(count: int, *cached: int, **more: bool) -> float:
        return training_flops_per_token(config, 16, frozen=count, cached=cached, **more)

    block = whole / 4 / 3
    assert of_frozen(3, 3) == pytest.approx(3 * block)
    assert of_frozen(3, 1) == pytest.approx((3 + 2) * block)  # on from the one that is cached
    assert of_frozen(3, 4) == of_frozen(3)  # what is above is of no use
    assert of_frozen(3, 1, 2, 3, all_layers=True) == pytest.approx(3 * block)
    assert of_frozen(3, 3, all_layers=True) == pytest.approx((3 + 2) * block)
    assert of_frozen(3, all_layers=True) == of_frozen(3)
    assert of_frozen(4, 4, one_token=True) == 0
