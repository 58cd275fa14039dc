"""Positions in the logits: against the formulas, by loops, and against other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import XLNetConfig, XLNetModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.attention import SelfAttention
from finetune.encoder.cache import Cache
from finetune.encoder.relative import (
    RelativePositions,
    alibi_bias,
    alibi_slopes,
    distance_table,
    shift,
)

Tiny = Callable[..., EncoderConfig]
CPU = torch.device("cpu")


def randomized(module: Any) -> Any:
    """No weight is zero, as u and v would be."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.eval()


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 3])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32).view(heads, 5)
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs[:, 1])
    if heads == 8:
        assert alibi_slopes(heads) == [2**-n for n in range(1, 9)]


def test_causal_alibi_is_that_of_bloom() -> None:
    # Theirs counts from the first key: in a row of the softmax a constant changes nothing.
    later = torch.ones(5, 5).triu(1).bool()
    ours = alibi_bias(4, 5, 5, CPU).masked_fill(later, -torch.inf)
    theirs = build_alibi_tensor(torch.ones(1, 5), 4, torch.float32).view(1, 4, 1, 5)
    theirs = theirs.expand(1, 4, 5, 5).masked_fill(later, -torch.inf)
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1))


def test_alibi_counts_tokens_to_both_sides() -> None:
    bias = alibi_bias(2, 2, 4, CPU)  # the last two of four tokens look
    expected = -torch.tensor([[2.0, 1.0, 0.0, 1.0], [3.0, 2.0, 1.0, 0.0]])
    torch.testing.assert_close(bias, torch.stack([expected / 16, expected / 256])[None])


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (1, 4), (3, 7), (1, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_shifted_columns_are_keys(queries: int, keys: int, causal: bool) -> None:
    table = distance_table(queries, keys, 2, causal=causal, device=CPU)
    by_distance = torch.arange(keys - 1, keys - 1 - len(table), -1).expand(2, 1, queries, -1)
    found = shift(by_distance.contiguous(), keys)
    for row, query in enumerate(range(keys - queries, keys)):
        for key in range(query + 1 if causal else keys):
            assert (found[:, :, row, key] == query - key).all()


@pytest.mark.parametrize("score", ["scaled_dot", "dot"])
@pytest.mark.parametrize("causal", [True, False])
def test_relative_attention_is_the_papers_formula(tiny: Tiny, score: str, causal: bool) -> None:
    config = tiny(position="relative", attention_score=score, causal=causal)
    attention, hidden = randomized(SelfAttention(config)), torch.randn(1, 5, 16)
    assert attention.relative is not None
    bias = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool() & causal, -torch.inf)
    table = distance_table(5, 5, 16, causal=causal, device=CPU)
    _, weights = attention(hidden, bias, None, table, output_attentions=True)
    heads = [part.view(5, 2, 8) for part in (attention.query(hidden), attention.key(hidden))]
    relative: RelativePositions = attention.relative
    u, v = relative.content_bias.view(2, 8), relative.position_bias.view(2, 8)
    for head in range(2):
        query, key = heads[0][:, head], heads[1][:, head]
        for i in range(5):
            logits = []
            for j in range(i + 1 if causal else 5):
                wave = torch.tensor([(i - j) / 10000 ** (2 * n / 16) for n in range(8)])
                r = relative.key.weight.view(2, 8, 16)[head] @ torch.cat([wave.sin(), wave.cos()])
                parts = query[i] @ key[j] + query[i] @ r + u[head] @ key[j] + v[head] @ r
                logits.append(parts * (8**-0.5 if score == "scaled_dot" else 1))
            expected = torch.stack(logits).softmax(0)
            torch.testing.assert_close(weights[0, head, i, : len(logits)], expected)


def test_a_cache_continues_with_the_right_distances(tiny: Tiny) -> None:
    for position in ("relative", "alibi"):
        encoder = randomized(Encoder(tiny(position=position, causal=True, local_attention=3)))
        ids, cache = torch.randint(1, 50, (2, 7)), Cache(2)
        parts = [encoder({"input_ids": ids[:, :4]}, cache=cache).last_hidden_state]
        parts += [
            encoder({"input_ids": ids[:, [n]]}, cache=cache).last_hidden_state for n in (4, 5, 6)
        ]
        whole = encoder({"input_ids": ids}).last_hidden_state
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", ["relative", "alibi", "rotary", "sinusoidal", "none"])
def test_a_text_may_be_longer_than_max_position_embeddings(tiny: Tiny, position: str) -> None:
    encoder = Encoder(tiny(position=position)).eval()
    hidden = encoder({"input_ids": torch.randint(1, 50, (1, 45))}).last_hidden_state
    assert hidden.isfinite().all()


@pytest.mark.parametrize("position", ["relative", "alibi"])
def test_only_the_distance_counts(tiny: Tiny, position: str) -> None:
    encoder = randomized(Encoder(tiny(position=position, local_attention=2, global_every=2)))
    ids = torch.randint(1, 50, (1, 6))
    mask = torch.ones(1, 10, dtype=torch.bool)
    mask[:, :4] = False
    moved = {"input_ids": torch.cat([torch.zeros(1, 4).long(), ids], 1), "attention_mask": mask}
    alone = encoder({"input_ids": ids}).last_hidden_state
    torch.testing.assert_close(encoder(moved).last_hidden_state[:, 4:], alone, atol=1e-5, rtol=1e-5)


def xlnet(config: EncoderConfig, **more: Any) -> XLNetModel:
    theirs = XLNetConfig(
        vocab_size=50,
        d_model=16,
        n_layer=2,
        n_head=2,
        d_inner=24,
        ff_activation="gelu",
        dropout=0.0,
        layer_norm_eps=config.layer_norm_eps,
        attn_type="uni" if config.causal else "bi",
        **more,
    )
    return randomized(XLNetModel(theirs))


def copy_xlnet(theirs: XLNetModel, ours: Encoder) -> None:
    """XLNet's blocks have no biases in attention: ours become zero."""
    for layer, block in zip(theirs.layer, ours.blocks, strict=True):
        attention: Any = block.attention
        pairs = {"query": "q", "key": "k", "value": "v"}
        rows = {name: getattr(layer.rel_attn, other) for name, other in pairs.items()}
        with torch.no_grad():
            for name, weight in rows.items():  # (D, H, K)
                getattr(attention, name).weight.copy_(weight.flatten(1).T)
                getattr(attention, name).bias.zero_()
            attention.output.weight.copy_(layer.rel_attn.o.flatten(1))
            attention.output.bias.zero_()
            attention.relative.key.weight.copy_(layer.rel_attn.r.flatten(1).T)
            attention.relative.content_bias.copy_(layer.rel_attn.r_w_bias.flatten())
            attention.relative.position_bias.copy_(layer.rel_attn.r_r_bias.flatten())
        block.attention_norm.load_state_dict(layer.rel_attn.layer_norm.state_dict())
        block.feedforward.intermediate.load_state_dict(layer.ff.layer_1.state_dict())
        block.feedforward.output.load_state_dict(layer.ff.layer_2.state_dict())
        block.feedforward_norm.load_state_dict(layer.ff.layer_norm.state_dict())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@torch.no_grad()
def test_blocks_are_those_of_xlnet(tiny: Tiny, causal: bool, padded: bool) -> None:
    config = tiny(position="relative", causal=causal)
    ours, theirs = Encoder(config).eval(), xlnet(config)
    copy_xlnet(theirs, ours)
    ids = torch.randint(1, 50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    if padded:
        mask[1, 5:] = False
    # Causal, theirs takes no mask for several texts, and padding at the end is not seen anyway.
    expected = theirs(ids, attention_mask=None if causal else mask.float()).last_hidden_state
    hidden = theirs.word_embedding(ids)
    found: Tensor = ours.suffix(hidden, mask, 0)
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)
