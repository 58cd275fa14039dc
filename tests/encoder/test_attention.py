from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.encoder.attention import SelfAttention
from finetune.encoder.embeddings import rotation
from finetune.encoder.masks import mask_bias, visible_tokens
from finetune.encoder.scores import SCORES, ProductScore
from finetune.errors import ConfigError

Tiny = Callable[..., EncoderConfig]
CPU = torch.device("cpu")


def visible(mask: Tensor | None, *, causal: bool = False) -> Tensor | None:
    return visible_tokens(mask, causal=causal, length=7, device=CPU)


def test_a_padding_mask_stays_small(batch: dict[str, Tensor]) -> None:
    assert visible(None) is None
    small = visible(batch["attention_mask"])
    assert small is not None
    assert small.shape == (3, 1, 1, 7)


def test_a_mask_for_each_query_is_shared_by_the_heads() -> None:
    documents = torch.tensor([[1, 1, 2, 2, 2, 3, 3]])
    shared = visible(documents[:, :, None] == documents[:, None, :])
    assert shared is not None
    assert shared.shape == (1, 1, 7, 7)


def test_causal_joins_padding_with_the_triangle(batch: dict[str, Tensor]) -> None:
    alone = visible(None, causal=True)
    joined = visible(batch["attention_mask"], causal=True)
    assert alone is not None
    assert joined is not None
    assert torch.equal(alone[0, 0], torch.ones(7, 7).tril().bool())
    assert torch.equal(joined, batch["attention_mask"][:, None, None, :] & alone)


@pytest.mark.parametrize(
    "mask", [torch.ones(3, 7), torch.ones(7, dtype=torch.bool), torch.ones(3, 7, dtype=torch.long)]
)
def test_a_mask_of_another_kind_is_refused(mask: Tensor) -> None:
    with pytest.raises(ConfigError, match=r"attention_mask must be bool \(B, T\) or \(B, T, T\)"):
        visible(mask)


@pytest.mark.parametrize("causal", [True, False])
def test_a_token_that_may_see_nothing_sees_everything(causal: bool) -> None:
    mask = torch.ones(1, 7, 7, dtype=torch.bool)
    mask[0, 4] = False
    opened = visible(mask, causal=causal)
    assert opened is not None
    assert opened[0, 0, 4].all()
    rest = [0, 1, 2, 3, 5, 6]
    assert torch.equal(opened[0, 0, rest], (mask[0].tril() if causal else mask[0])[rest])


def test_the_bias_is_zero_or_minus_infinity() -> None:
    bias = mask_bias(torch.tensor([True, False]), torch.bfloat16)
    assert bias is not None
    assert bias.dtype == torch.bfloat16
    assert bias.tolist() == [0, -torch.inf]


def run(attention: SelfAttention, hidden: Tensor, bias: Tensor | None, *, explicit: bool) -> Tensor:
    outputs, weights = attention(hidden, bias, output_attentions=explicit)
    assert isinstance(outputs, Tensor)
    assert (weights is not None) == explicit
    return outputs


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("masked", ["nothing", "padding", "a whole row"])
def test_fused_and_explicit_path_agree_in_outputs_and_gradients(
    tiny: Tiny, batch: dict[str, Tensor], name: str, masked: str
) -> None:
    attention = SelfAttention(tiny(attention_score=name))
    mask = batch["attention_mask"].clone()
    mask[2] &= masked != "a whole row"
    bias = None if masked == "nothing" else mask_bias(visible(mask), torch.float32)
    hidden, weights = torch.randn(3, 7, 16, requires_grad=True), torch.randn(3, 7, 16)

    fused = run(attention, hidden, bias, explicit=False)
    explicit = run(attention, hidden, bias, explicit=True)

    torch.testing.assert_close(fused, explicit, atol=1e-6, rtol=1e-5)
    inputs = [hidden, *attention.parameters()]
    for one, other in zip(
        torch.autograd.grad((fused * weights).sum(), inputs),
        torch.autograd.grad((explicit * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SCORES)
def test_the_fused_kernel_serves_every_product_score(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def count(*args: Tensor, **options: object) -> Tensor:
        calls.append(options)
        return fused(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    attention = SelfAttention(tiny(attention_score=name))
    attention(torch.randn(1, 7, 16))
    assert bool(calls) == isinstance(attention.score, ProductScore)


@pytest.mark.parametrize("name", SCORES)
def test_masked_position_gets_zero_attention(
    tiny: Tiny, batch: dict[str, Tensor], name: str
) -> None:
    attention = SelfAttention(tiny(attention_score=name))
    bias = mask_bias(visible(batch["attention_mask"]), torch.float32)
    _, weights = attention(torch.randn(3, 7, 16), bias, output_attentions=True)
    assert weights.shape == (3, 2, 7, 7)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 2, 7))
    hidden_keys = ~batch["attention_mask"][:, None, None, :].expand_as(weights)
    assert (weights[hidden_keys] == 0).all()


def test_attention_dropout_works_in_training_only_and_by_the_seed(tiny: Tiny) -> None:
    attention, hidden = SelfAttention(tiny(attention_probs_dropout_prob=0.5)), torch.randn(2, 7, 16)
    torch.manual_seed(1)
    first, _ = attention(hidden)
    torch.manual_seed(1)
    again, _ = attention(hidden)
    other, _ = attention(hidden)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    attention.eval()
    assert torch.equal(attention(hidden)[0], attention(hidden)[0])


@pytest.mark.parametrize("masked", [False, True])
def test_window_shows_neighbours_only(masked: bool) -> None:
    mask = torch.tensor([[True] * 5 + [False] * 2]) if masked else None
    seen = visible_tokens(mask, causal=False, length=7, device=CPU, window=2)
    assert seen is not None
    for row in range(5):
        shown = [column for column in range(7) if seen.expand(1, 1, 7, 7)[0, 0, row, column]]
        last = 5 if masked else 7
        assert shown == list(range(max(0, row - 2), min(last, row + 3)))
    assert seen.any(dim=-1).all()  # padding beyond the window sees something too


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("position", ["rotary", "none"])
def test_first_queries_gather_what_they_gather_among_all(
    tiny: Tiny, batch: dict[str, Tensor], name: str, queries: int, position: str
) -> None:
    config = tiny(attention_score=name, causal=True)
    attention, hidden = SelfAttention(config), torch.randn(3, 7, 16)
    bias = mask_bias(visible(batch["attention_mask"], causal=True), hidden.dtype)
    turns = rotation(torch.arange(7)[None], config.head_size, 10000.0)
    rotary = turns if position == "rotary" else None
    whole, weights = attention(hidden, bias, rotary, output_attentions=True)
    first, first_weights = attention(hidden, bias, rotary, queries=queries, output_attentions=True)
    torch.testing.assert_close(first, whole[:, :queries])
    torch.testing.assert_close(first_weights, weights[:, :, :queries])
