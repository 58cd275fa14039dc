from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.inspection.mixing import SHARE_PENALTY, Mix, fit_mix


def layers_of(informative: int, count: int = 400) -> tuple[Tensor, Tensor]:
    """Three layers of noise, in one of which a feature tells the class; of unlike sizes."""
    generator = torch.Generator().manual_seed(informative)
    labels = torch.randint(2, (count,), generator=generator)
    layers = torch.randn(3, count, 5, generator=generator)
    layers[informative, :, 2] += 3.0 * labels
    return layers * torch.tensor([1.0, 10.0, 0.1])[:, None, None] + 2, labels


@pytest.mark.parametrize("informative", [0, 1, 2])
def test_layer_that_tells_the_class_gets_the_largest_share(informative: int) -> None:
    layers, labels = layers_of(informative)
    found = fit_mix(layers, labels, 2, 0.01)
    assert float(found.shares.sum()) == pytest.approx(1)
    assert int(found.shares.argmax()) == informative
    assert found.shares[informative] > 0.6
    assert found.centre == pytest.approx(float(found.shares @ torch.arange(3.0).double()))
    accuracy = (found.logits(layers).argmax(1) == labels).float().mean()
    assert accuracy > 0.88


def loss_of(mix: Mix, layers: Tensor, labels: Tensor, penalty: float) -> float:
    fit = F.cross_entropy(mix.logits(layers), labels)
    raw = mix.shares.log()
    raw = raw - raw.mean()  # the smallest w with these shares, as a penalty leaves it
    size = penalty / 2 * mix.weight.square().sum() + SHARE_PENALTY * raw.square().sum()
    return float(fit + size)


def test_neither_shares_nor_weights_can_be_bettered_by_a_small_step() -> None:
    layers, labels = layers_of(1)
    found = fit_mix(layers, labels, 2, 0.01)
    lowest = loss_of(found, layers, labels, 0.01)
    generator = torch.Generator().manual_seed(9)
    for _ in range(20):
        shares = (found.shares.log() + 0.02 * torch.randn(3, generator=generator)).softmax(0)
        weight = found.weight + 0.02 * torch.randn(found.weight.shape, generator=generator)
        other = Mix(shares.double(), weight, found.bias, found.means, found.sizes)
        assert loss_of(other, layers, labels, 0.01) >= lowest - 1e-7


def test_layers_that_are_alike_share_alike() -> None:
    layers, labels = layers_of(0)
    found = fit_mix(layers[:1].expand(4, -1, -1), labels, 2, 0.01)
    torch.testing.assert_close(found.shares, torch.full((4,), 0.25).double())
    assert found.centre == pytest.approx(1.5)
