from __future__ import annotations

import pytest
import torch
from torch import Tensor

from finetune.encoder.masks import mask_bias, visible_tokens
from finetune.errors import ConfigError

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
