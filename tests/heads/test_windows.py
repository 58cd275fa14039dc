"""Poolings over the windows of a text, against the formulas over all of its states."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError
from finetune.heads import Classification, HeadConfig, MultipleChoice, PooledHead, Regression
from finetune.heads.windows import WindowEncoder
from tests.made.nets import tiny_config

CONFIG = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
OF = torch.tensor([0, 1, 1, 1, 2])  # three texts of 1, 3 and 1 windows
MASK = torch.arange(6) < torch.tensor([6, 6, 4, 3, 2])[:, None]


def states(seed: int = 0) -> Tensor:
    return torch.randn(5, 6, CONFIG.hidden_size, generator=torch.Generator().manual_seed(seed))


def pooled(head: PooledHead, hidden: Tensor) -> Tensor:
    """What a head's output layers get."""
    head.layers = torch.nn.Sequential(torch.nn.Identity())
    result: Tensor = head(hidden, MASK, None, OF).detach()
    return result


def head_of(pooling: str, config: EncoderConfig = CONFIG, levels: int = 1) -> Classification:
    torch.manual_seed(1)
    return Classification(config, HeadConfig(pooling, levels=levels), 2).eval()


def of_text(hidden: Tensor, text: int) -> Tensor:
    """All states of all windows of a text, (tokens, D)."""
    return torch.cat([hidden[row][MASK[row]] for row in range(5) if OF[row] == text])


@pytest.mark.parametrize("pooling", ["mean", "max", "attention", "cls", "last"])
def test_a_pooling_over_windows_is_that_of_all_states(pooling: str) -> None:
    hidden, head = states(), head_of(pooling)
    query = head.pool.query.weight[0] if pooling == "attention" else torch.zeros(1)  # type: ignore[attr-defined]

    def by_hand(text: int) -> Tensor:
        rows, tokens = hidden[OF == text], of_text(hidden, text)
        if pooling == "mean":
            return tokens.mean(dim=0)
        if pooling == "max":
            return tokens.amax(dim=0)
        if pooling == "attention":
            return ((tokens @ query).softmax(dim=0)[:, None] * tokens).sum(dim=0)
        return rows[:, 0].mean(dim=0) if pooling == "cls" else tokens[-1]

    expected = torch.stack([by_hand(text) for text in range(3)]).detach()
    torch.testing.assert_close(pooled(head, hidden), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_concat_is_that_of_ulmfit_with_the_mean_cls_where_nothing_is_last(causal: bool) -> None:
    hidden = states()
    head = head_of("concat", dataclasses.replace(CONFIG, causal=causal))
    all_states = [of_text(hidden, text) for text in range(3)]
    ends = [h[-1] if causal else hidden[OF == n, 0].mean(dim=0) for n, h in enumerate(all_states)]
    expected = torch.stack(
        [
            torch.cat([e, h.amax(dim=0), h.mean(dim=0)])
            for e, h in zip(ends, all_states, strict=True)
        ]
    )
    torch.testing.assert_close(pooled(head, hidden), expected, rtol=1e-5, atol=1e-6)


def test_comparisons_of_two_texts_are_averaged() -> None:
    ids = torch.tensor([[1, 5, 2, 6, 7, 2]]).repeat(5, 1)
    head, hidden = head_of("segments"), states()
    head.layers = torch.nn.Sequential(torch.nn.Identity())
    each = head(hidden, None, ids)
    expected = torch.stack([each[OF == text].mean(dim=0) for text in range(3)])
    torch.testing.assert_close(head(hidden, None, ids, OF), expected)


@pytest.mark.parametrize("pooling", ["mean", "concat", "attention"])
def test_texts_of_one_window_have_the_logits_of_plain_texts(pooling: str) -> None:
    hidden, head = states(), head_of(pooling)
    torch.testing.assert_close(head(hidden, MASK, None, torch.arange(5)), head(hidden, MASK))


def test_options_and_numbers_have_windows_too() -> None:
    hidden = states()[:4]
    head = MultipleChoice(CONFIG, HeadConfig("mean"), 2).eval()
    options = torch.tensor([0, 1, 0, 1])  # two options, two windows of each
    expected = head(torch.cat([hidden[[0, 1]], hidden[[2, 3]]], dim=1))
    torch.testing.assert_close(head(hidden, None, None, options), expected)
    number = Regression(CONFIG, HeadConfig("mean")).eval()
    assert number(hidden, None, None, options).shape == (2,)


def test_the_second_level_reads_windows_in_order_and_texts_apart() -> None:
    torch.manual_seed(0)
    upper = WindowEncoder(CONFIG).eval()
    vectors = states()[:, 0]
    together = upper(vectors, OF)
    for text in range(3):
        alone = upper(vectors[OF == text], torch.zeros(int((OF == text).sum()), dtype=torch.int64))
        torch.testing.assert_close(together[text : text + 1], alone, rtol=1e-5, atol=1e-6)
    turned = upper(vectors[[0, 3, 2, 1, 4]], OF)
    assert not torch.allclose(turned[1], together[1], atol=1e-4)
    torch.testing.assert_close(upper(vectors, None), upper(vectors, torch.arange(5)))
    head = head_of("mean", levels=2)
    assert head(states(), MASK, None, OF).shape == (3, 2)
    head(states(), MASK, None, OF).sum().backward()
    assert all(weight.grad is not None for weight in head.parameters())


def test_the_second_level_refuses_another_width() -> None:
    with pytest.raises(ConfigError, match="levels 2: expected a pooling of the encoder's width"):
        head_of("concat", levels=2)
