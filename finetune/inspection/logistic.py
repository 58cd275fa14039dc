"""A linear classifier, fitted to its optimum: multinomial logistic regression, L2 penalty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = (1.0, 0.1, 0.01, 0.001, 0.0001)
"""Tried on held-out examples, the strongest first."""
STEPS = 200
"""Of the optimiser, at most."""


@dataclass(frozen=True)
class Linear:
    """Weights of a classifier on standardised features."""

    weight: Tensor
    """float64 (F, C)."""
    bias: Tensor
    """float64 (C,)."""
    mean: Tensor
    """Of the features it was fitted on, (F,)."""
    scale: Tensor
    """Their standard deviations, (F,)."""
    penalty: float

    def logits(self, features: Tensor) -> Tensor:
        """Score the classes, (N, F) -> float64 (N, C)."""
        return ((features.double() - self.mean) / self.scale) @ self.weight + self.bias


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


def fit_linear(features: Tensor | Rotated, labels: Tensor, classes: int, penalty: float) -> Linear:
    """Fit mean cross-entropy + penalty / 2 · |weight|²; the bias is free.

    Args:
        features: (N, F); each is standardised first.
        labels: int64 (N,).
        classes: C.
        penalty: Above 0.
    """
    rotated = features if isinstance(features, Rotated) else Rotated(features)
    stretch = rotated.stretch(penalty)[:, None]
    inputs = rotated.inputs * stretch.T
    weight = torch.zeros(len(stretch), classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        size = (weight * stretch).square().sum()
        return F.cross_entropy(inputs @ weight + bias, labels) + penalty / 2 * size

    minimise(loss, [weight, bias])
    found = rotated.axes @ (weight.detach() * stretch)
    return Linear(found, bias.detach(), rotated.mean, rotated.scale, penalty)


def fit_chosen(
    features: Tensor,
    labels: Tensor,
    classes: int,
    held_out: Tensor,
    penalties: Sequence[float] = PENALTIES,
) -> Linear:
    """Fit under each penalty and keep what names held-out examples best.

    Args:
        features: (N, F).
        labels: int64 (N,).
        classes: C.
        held_out: True for the examples that choose the penalty and are not fitted, bool (N,).
        penalties: Each above 0; one at least.

    Returns:
        The classifier with the lowest mean cross-entropy on the held-out examples.
    """
    rotated, known = Rotated(features[~held_out]), labels[~held_out]
    fitted = [fit_linear(rotated, known, classes, penalty) for penalty in penalties]
    test, right = features[held_out], labels[held_out]
    return min(fitted, key=lambda one: float(F.cross_entropy(one.logits(test), right)))
