"""The norm of the gradient, of all of it and of each layer group, and only where it is logged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from finetune.encoder import Encoder
from finetune.training.loop import module as room
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.optimizer import make_optimizer
from tests.made.nets import tiny_config

CONFIG = tiny_config(vocab_size=11, hidden_size=8, intermediate_size=16, max_position_embeddings=8)


def trained(*, frozen: int = 0) -> tuple[Pretrainer, torch.optim.Optimizer]:
    """A module after a backward pass, its lowest groups frozen."""
    torch.manual_seed(0)
    module = Pretrainer(Encoder(CONFIG))
    optimizer = make_optimizer(module.layers(), module.optimizer_config)
    for parts in list(module.layers().values())[:frozen]:
        for part in parts:
            part.requires_grad_(False)
    batch = {
        "input_ids": torch.arange(8).view(2, 4),
        "positions": torch.tensor([1, 6]),
        "labels": torch.tensor([3, 4]),
    }
    module.training_step(batch, 0)["loss"].backward()  # type: ignore[no-untyped-call]
    return module, optimizer


def test_squares_of_the_groups_norms_sum_to_that_of_the_whole() -> None:
    module, optimizer = trained()
    module.is_logged_step = True
    module.configure_gradient_clipping(optimizer, 0.01)
    assert [*module.gradient_norms] == [*module.layers()]
    assert module.gradient_norm is not None
    whole = torch.stack(list(module.gradient_norms.values())).square().sum().sqrt()
    torch.testing.assert_close(whole, module.gradient_norm)
    assert whole > 0.01  # before clipping


def test_frozen_groups_have_none() -> None:
    module, optimizer = trained(frozen=2)
    module.is_logged_step = True
    module.configure_gradient_clipping(optimizer, None)
    assert [*module.gradient_norms] == ["block_2", "head"]


def test_clipping_is_the_same_whether_a_step_is_logged_or_not() -> None:
    gradients = []
    for logged in (False, True):
        module, optimizer = trained()
        module.is_logged_step = logged
        module.configure_gradient_clipping(optimizer, 0.5)
        gradients.append([p.grad for p in module.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_nothing_is_computed_on_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError

    module, optimizer = trained()
    monkeypatch.setattr(room, "_norms_by_layer", never)
    module.configure_gradient_clipping(optimizer, 0.5)
    assert module.gradient_norms == {}
