"""Sampling against transformers' own filters, and by how often each token is drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.heads.sampling import greedy, sample


def drawn(logits: Tensor, count: int, **options: float) -> Tensor:
    """How often each token is drawn, by numbers evenly spread over [0, 1); (V,)."""
    uniform = (torch.arange(count) + 0.5) / count
    tokens = sample(logits.expand(count, -1), uniform, **options)  # type: ignore[arg-type]
    return torch.bincount(tokens, minlength=logits.shape[-1]) / count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.8},
        {"top_p": 1e-9},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.6},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_under_the_filters_of_transformers(
    options: dict[str, float],
) -> None:
    from transformers import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    kinds = {
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
    }
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(3)) * 2
    filters = LogitsProcessorList([kinds[name](value) for name, value in options.items()])
    no_ids: Any = torch.zeros(1, 1, dtype=torch.int64)
    expected = filters(no_ids, logits).softmax(-1)[0]
    torch.testing.assert_close(drawn(logits, 20_000, **options), expected, atol=2e-4, rtol=0)


def test_greedy_is_the_limit_of_a_low_temperature() -> None:
    logits = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    cold = sample(logits, torch.full((50,), 0.999), temperature=1e-4)
    assert torch.equal(greedy(logits), cold)


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0]])
    for value in (0.0, 0.5, 1 - 1e-16):
        uniform = torch.tensor([value], dtype=torch.float64)
        assert sample(logits, uniform).item() in (1, 3)
