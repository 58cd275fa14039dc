from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.encoder.attention import SelfAttention
from finetune.encoder.embeddings import rotation
from finetune.encoder.layout import First
from finetune.encoder.masks import mask_bias, visible_tokens
from finetune.encoder.scores import SCORES, ProductScore

Tiny = Callable[..., EncoderConfig]


def visible(mask: Tensor, *, causal: bool = False) -> Tensor | None:
    return visible_tokens(mask, causal=causal, length=7, device=torch.device("cpu"))


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
    first, first_weights = attention(
        hidden, bias, rotary, queries=First(queries), output_attentions=True
    )
    torch.testing.assert_close(first, whole[:, :queries])
    torch.testing.assert_close(first_weights, weights[:, :, :queries])
