from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from finetune.inspection.logistic import PENALTIES, fit_chosen, fit_linear


def narrow(count: int = 300, width: int = 20, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Features that vary a thousand times as much along some axes as along others."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    stretched = torch.randn(count, width, generator=generator) * torch.logspace(1, -2, width)
    labels = stretched[:, :classes] + 4 * torch.randn(count, classes, generator=generator)
    return stretched @ turn + 3, labels.argmax(1)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_optimum_is_that_of_scikit_learn(penalty: float) -> None:
    features, labels = narrow()
    found = fit_linear(features, labels, 3, penalty)
    inputs = features.double().numpy()
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    peer = LogisticRegression(C=1 / (penalty * len(labels)), tol=1e-9, max_iter=10_000)
    peer.fit(inputs, labels.numpy())
    mine = found.logits(features).softmax(1).numpy()
    np.testing.assert_allclose(mine, peer.predict_proba(inputs), atol=2e-4)
    np.testing.assert_allclose(found.weight.T.numpy(), peer.coef_, atol=5e-3)


def test_feature_that_never_changes_counts_as_zero() -> None:
    features, labels = narrow()
    wider = torch.cat([features, torch.full((len(features), 2), 7.0)], dim=1)
    found, plain = (fit_linear(one, labels, 3, 0.01) for one in (wider, features))
    assert found.weight[-2:].abs().max() == 0
    torch.testing.assert_close(found.logits(wider), plain.logits(features), atol=1e-4, rtol=1e-4)


def test_penalty_is_the_one_that_held_out_examples_want() -> None:
    features, labels = narrow()
    held_out = torch.arange(len(labels)) % 4 == 0
    found = fit_chosen(features, labels, 3, held_out)
    losses = {
        penalty: float(
            torch.nn.functional.cross_entropy(
                fit_linear(features[~held_out], labels[~held_out], 3, penalty).logits(
                    features[held_out]
                ),
                labels[held_out],
            )
        )
        for penalty in PENALTIES
    }
    assert found.penalty == min(losses, key=lambda penalty: losses[penalty])


def test_class_that_no_example_has_gets_a_low_score() -> None:
    features, labels = narrow()
    logits = fit_linear(features, labels, 4, 0.01).logits(features)
    assert int(logits.argmax(1).max()) < 3
