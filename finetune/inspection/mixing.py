"""Which layers a task uses: scalar mix weights (Peters et al., 2018, section 3.2).

h = γ Σ_j s_j h_j with s = softmax(w), one w for each layer, learned together with the classifier.
Here the mixed vectors are pooled ones, which is the same for a mean, and the encoder is frozen. γ
is left out: the classifier's weights can have any scale. Each layer is first centred and scaled to
the same size, as the paper does by layer normalization, so that a weight does not merely reflect
the length of a layer's vectors.

The weights of layers with the same information can be exchanged for each other, so a small weight
does not mean that a layer lacks the information: the probes of each layer alone show that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SHARE_PENALTY = 0.001
"""Weight of |w|²: the smaller of the paper's two values, which lets the mix weights differ."""
STEPS = 200
"""Iterations of the optimizer, at most."""


@dataclass(frozen=True)
class Mix:
    """A mixture of layers and the classifier on it."""

    shares: Tensor
    """softmax(w), float64 (L + 1,)."""
    weight: Tensor
    """float64 (D, C)."""
    bias: Tensor
    """float64 (C,)."""
    means: Tensor
    """float64 (L + 1, 1, D)."""
    sizes: Tensor
    """float64 (L + 1, 1, 1)."""

    @property
    def centre(self) -> float:
        """Centre of gravity: the weighted mean of layers (Tenney et al., 2019, section 3.1)."""
        return float(self.shares @ torch.arange(len(self.shares)).double())

    def logits(self, layers: Tensor) -> Tensor:
        """Score the classes, (L + 1, N, D) -> float64 (N, C)."""
        scaled = (layers.double() - self.means) / self.sizes
        mixed = torch.einsum("l,lnd->nd", self.shares, scaled)
        logits: Tensor = mixed @ self.weight + self.bias
        return logits


def minimize(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    """Minimize a smooth function by L-BFGS with a line search.

    Args:
        loss: The function of the parameters, a scalar.
        parameters: float64 leaves, changed in place.
    """
    optimizer = torch.optim.LBFGS(
        list(parameters),
        max_iter=STEPS,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]


class Rotated:
    """Standardized features along their principal axes, where the optimum is found in few steps.

    Hidden states vary a thousand times as much along some axes as along others, and an optimizer
    makes tiny steps along the narrow ones. A rotation changes neither the loss nor the penalty, and
    then each axis can be scaled by a bound on the curvature there (Böhning, 1992).
    """

    def __init__(self, features: Tensor) -> None:
        """Standardize and rotate; a constant feature becomes zero.

        Args:
            features: (N, F).
        """
        inputs = features.double()
        self.mean, scale = inputs.mean(0), inputs.std(0, correction=0)
        self.scale = torch.where(scale > 1e-12, scale, torch.ones_like(scale))
        inputs = (inputs - self.mean) / self.scale
        spread, self.axes = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
        self.spread = spread.clamp(min=0)  # variance along each axis (F,)
        self.inputs = inputs @ self.axes

    def stretch(self, penalty: float) -> Tensor:
        """Factor for each axis, (F,); 0 for an axis without variance."""
        curvature = self.spread / 4 + penalty
        return torch.where(self.spread > 1e-10, curvature.rsqrt(), torch.zeros_like(curvature))


def fit_mix(layers: Tensor, labels: Tensor, classes: int, penalty: float) -> Mix:
    """Fit the mix weights and a classifier together, from equal mix weights.

    The loss is mean cross-entropy + penalty / 2 · |weight|² + 0.001 · |w|²: without the last, the
    mix weights of a small data set would become 0 and 1.

    Args:
        layers: One vector for each layer and example, (L + 1, N, D).
        labels: int64 (N,).
        classes: C.
        penalty: On the classifier's weights, as in `probes.fit_linear`.
    """
    inputs = layers.double()
    means = inputs.mean(1, keepdim=True)
    inputs = inputs - means
    sizes = inputs.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-12)
    inputs = inputs / sizes
    mixed_by = torch.zeros(len(inputs), dtype=torch.float64, requires_grad=True)
    # Along the axes of the even mixture the optimum is found in few steps.
    rotated = Rotated(inputs.mean(0))
    basis = rotated.axes * rotated.stretch(penalty)  # (D, D)
    weight = torch.zeros(inputs.shape[2], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        mixed, turned = torch.einsum("l,lnd->nd", mixed_by.softmax(0), inputs), basis @ weight
        fit = F.cross_entropy(mixed @ turned + bias, labels)
        size = penalty / 2 * turned.square().sum()
        total: Tensor = fit + size + SHARE_PENALTY * mixed_by.square().sum()
        return total

    minimize(loss, [mixed_by, weight, bias])
    shares = mixed_by.detach().softmax(0)
    return Mix(shares, basis @ weight.detach(), bias.detach(), means, sizes)
