"""What a head is, and the cross-entropy that most heads share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from finetune.heads import (
    POOLINGS,
    Classification,
    HeadConfig,
    MultiLabel,
    MultipleChoice,
    Regression,
    Span,
    SpanConfig,
    cross_entropy,
)
from tests.made.nets import tiny_config

CONFIG = tiny_config()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothing_is_the_cross_entropy_against_the_smoothed_target(smoothing: float) -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    target = (1 - smoothing) * F.one_hot(labels, 4) + smoothing / 4
    expected = -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
    found = cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)


def test_what_has_no_label_does_not_count() -> None:
    logits, labels = torch.randn(3, 4), torch.tensor([2, -100, 1])
    expected = cross_entropy(logits[[0, 2]], labels[[0, 2]], label_smoothing=0.1)
    found = cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(found, expected)
    none = cross_entropy(logits, torch.full((3,), -100), label_smoothing=0.1)
    assert float(none) == 0.0


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
def test_the_loss_of_a_classification_is_it(weights: Any) -> None:
    head = Classification(CONFIG, HeadConfig(), 3, weights)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, -100, 2, 2])
    found = cross_entropy(logits, labels, class_weights=head.class_weights)
    torch.testing.assert_close(found, head.loss(logits, labels))


def test_decisions_of_one_example_count_each() -> None:
    logits, labels = torch.randn(2, 5, 2), torch.tensor([[0, 4], [-100, -100]])
    ends = [-logits[0, :, end].log_softmax(0)[label] for end, label in enumerate([0, 4])]
    torch.testing.assert_close(cross_entropy(logits, labels), sum(ends) / 2)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_head_says_whether_it_reads_the_first_token_alone(pooling: str) -> None:
    head = HeadConfig(pooling)
    pooled = (
        Classification(CONFIG, head, 3),
        MultiLabel(CONFIG, head, 3),
        MultipleChoice(CONFIG, head, 4),
        Regression(CONFIG, head),
    )
    assert {one.first_only for one in pooled} == {pooling == "cls"}
    assert not Span(CONFIG, head, SpanConfig()).first_only
