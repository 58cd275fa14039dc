"""Each score against its paper's formula, written with loops over the tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder.scores import SCORES, Additive, Bilinear

B, H, T, K = 2, 3, 5, 4


def pairwise(score: Callable[[int, Tensor, Tensor], Tensor], query: Tensor, key: Tensor) -> Tensor:
    """Score pair by pair: logits[b, h, i, j] = score(h, query i, key j)."""
    logits = torch.zeros(B, H, T, T)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (B, H, T, T))).tolist():
        logits[b, h, i, j] = score(h, query[b, h, i], key[b, h, j])
    return logits


def vaswani_scaled_dot(module: nn.Module, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Equation 1: q·k / √d_k."""
    return torch.dot(query, key) / K**0.5


def luong_dot(module: nn.Module, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Section 3.1, dot: h_tᵀ h_s."""
    return torch.dot(query, key)


def luong_general(module: nn.Module, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Section 3.1, general: h_tᵀ W_a h_s."""
    assert isinstance(module, Bilinear)
    return torch.dot(query, module.weight[head] @ key)


def bahdanau(module: nn.Module, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Appendix A.1.2: v_aᵀ tanh(W_a s + U_a h)."""
    assert isinstance(module, Additive)
    hidden = torch.tanh(module.query_weight[head] @ query + module.key_weight[head] @ key)
    return torch.dot(module.vector[head, :, 0], hidden)


FORMULAS = {
    "scaled_dot": vaswani_scaled_dot,
    "dot": luong_dot,
    "bilinear": luong_general,
    "additive": bahdanau,
}


@pytest.mark.parametrize("name", SCORES)
def test_score_and_its_gradients_agree_with_the_formula(name: str) -> None:
    score = SCORES[name](H, K)
    for parameter in score.parameters():
        nn.init.normal_(parameter)
    query, key = torch.randn(2, B, H, T, K).requires_grad_().unbind()
    inputs = [query, key, *score.parameters()]
    weights = torch.randn(B, H, T, T)

    ours = score(query, key)
    formula = FORMULAS[name]
    expected = pairwise(lambda h, q, k: formula(score, h, q, k), query, key)

    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_bilinear_starts_as_the_scaled_dot_product() -> None:
    query, key = torch.randn(2, B, H, T, K).unbind()
    expected = SCORES["scaled_dot"](H, K)(query, key)
    torch.testing.assert_close(SCORES["bilinear"](H, K)(query, key), expected)


def test_additive_in_parts_equals_additive_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    score = Additive(H, K)
    query, key = torch.randn(2, B, H, T, K).unbind()
    at_once = score(query, key)
    monkeypatch.setattr(Additive, "ROWS", 2)
    in_parts = score(query, key)
    torch.testing.assert_close(in_parts, at_once)
    with torch.no_grad():
        torch.testing.assert_close(score(query, key), at_once)
