"""Which layers a task draws on: scalar mix weights (Peters et al., 2018, section 3.2).

h = γ Σ_j s_j h_j with s = softmax(w), one w a layer, learnt together with the classifier. Here the
mixed vectors are pooled ones, which is the same for a mean, and the encoder stays as it is. γ is
left out: the classifier's own weights can take any scale. Each layer is first brought to mean zero
and to the same size, as the paper does by layer normalisation, so that a weight does not merely
say how long a layer's vectors are.

The weights of layers that hold the same information can be exchanged for each other, so a small
weight does not say that a layer knows nothing: the probes of each layer alone say that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SHARE_PENALTY = 0.001
"""On |w|²: the smaller of the paper's two, which lets the shares differ."""
STEPS = 200
"""Of the optimizer, at most."""


@dataclass(frozen=True)
class Mix:
    """A mixture of layers, and the classifier on top of it."""

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
        """Centre of gravity: the mean layer under the shares (Tenney et al., 2019, section 3.1)."""
        return float(self.shares @ torch.arange(len(self.shares)).double())

    def logits(self, layers: Tensor) -> Tensor:
        """Score the classes, (L + 1, N, D) -> float64 (N, C)."""
        scaled = (layers.double() - self.means) / self.sizes
        mixed = torch.einsum("l,lnd->nd", self.shares, scaled)
        logits: Tensor = mixed @ self.weight + self.bias
        return logits


def minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    """Take a smooth function to its minimum, by L-BFGS with a line search.

    Args:
        loss: The function of the parameters, a scalar.
        parameters: float64 leaves that are changed in place.
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
    """Standardised features along their principal axes, where the optimum is found in few steps.

    Hidden states vary a thousand times as much along some axes as along others, and an optimiser
    crawls along the narrow ones. A rotation leaves the loss and the penalty as they are, and then
    each axis can be stretched by what bounds the curvature there (Böhning, 1992).
    """

    def __init__(self, features: Tensor) -> None:
        """Standardise and rotate; a feature that never changes counts as zero.

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
        """What to multiply each axis by, (F,); an axis without variance stays at zero."""
        curvature = self.spread / 4 + penalty
        return torch.where(self.spread > 1e-10, curvature.rsqrt(), torch.zeros_like(curvature))


def fit_mix(layers: Tensor, labels: Tensor, classes: int, penalty: float) -> Mix:
    """Fit the shares and a classifier together; all layers start alike.

    The loss is mean cross-entropy + penalty / 2 · |weight|² + 0.001 · |w|²: without the last, the
    shares of a small set would run to 0 and 1.

    Args:
        layers: One vector a layer and example, (L + 1, N, D).
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

    minimise(loss, [mixed_by, weight, bias])
    shares = mixed_by.detach().softmax(0)
    return Mix(shares, basis @ weight.detach(), bias.detach(), means, sizes)
