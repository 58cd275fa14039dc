"""The multi-label head, and the class weights of the classification head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch.nn import functional as F

from finetune.heads import POOLINGS, Classification, HeadConfig, MultiLabel
from tests.made.nets import tiny_config

CONFIG = tiny_config(vocab_size=20, max_position_embeddings=16)


class TestMultiLabel:
    @pytest.mark.parametrize("pooling", sorted(POOLINGS))
    def test_there_is_a_logit_a_class_for_every_pooling(self, pooling: str) -> None:
        head = MultiLabel(CONFIG, HeadConfig(pooling=pooling), 5)
        logits = head(torch.randn(3, 4, 16), None)
        assert logits.shape == (3, 5)
        assert head.outputs(logits, {}) is logits
        assert head.loss(logits, torch.ones(3, 5)).backward() is None

    def test_loss_is_the_mean_log_loss_of_all_decisions(self) -> None:
        logits, labels = torch.randn(6, 4), (torch.rand(6, 4) > 0.5).float()
        expected = log_loss(
            labels.flatten().numpy(), logits.double().sigmoid().flatten().numpy(), labels=[0, 1]
        )
        loss = MultiLabel(CONFIG, HeadConfig(), 4).loss(logits, labels)
        assert float(loss) == pytest.approx(expected, rel=1e-5)

    def test_loss_of_half_precision_is_float32(self) -> None:
        loss = MultiLabel(CONFIG, HeadConfig(), 2).loss(
            torch.zeros(1, 2, dtype=torch.bfloat16), torch.tensor([[1, 0]])
        )
        assert loss.dtype == torch.float32
        assert float(loss) == pytest.approx(np.log(2))


class TestClassWeights:
    def head(self, weights: list[float] | None) -> Classification:
        return Classification(CONFIG, HeadConfig(), 3, weights)

    def test_loss_is_the_mean_of_weighted_losses(self) -> None:
        logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
        weights = torch.tensor([0.5, 2.0, 1.0])
        each = F.cross_entropy(logits, labels, reduction="none") * weights[labels]
        assert torch.allclose(self.head(weights.tolist()).loss(logits, labels), each.mean())

    def test_example_counts_the_same_alone_and_in_a_batch(self) -> None:
        logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
        head = self.head([0.5, 2.0, 1.0])
        alone = [head.loss(logits[i : i + 1], labels[i : i + 1]) for i in range(4)]
        assert torch.allclose(torch.stack(alone).mean(), head.loss(logits, labels))

    def test_without_weights_it_is_plain_cross_entropy(self) -> None:
        logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
        expected = F.cross_entropy(logits, labels)
        assert torch.allclose(self.head(None).loss(logits, labels), expected)

    def test_unlabelled_examples_do_not_count(self) -> None:
        logits, labels = torch.randn(3, 3), torch.tensor([0, -100, 2])
        head = self.head([1.0, 3.0, 2.0])
        assert torch.allclose(head.loss(logits, labels), head.loss(logits[::2], labels[::2]))
        assert float(head.loss(logits, torch.full((3,), -100))) == 0.0

    def test_weights_are_no_part_of_a_checkpoint(self) -> None:
        weighted, plain = self.head([0.5, 2.0, 1.0]), self.head(None)
        assert weighted.state_dict().keys() == plain.state_dict().keys()
        plain.load_state_dict(weighted.state_dict())

    def test_weights_go_where_the_head_goes(self) -> None:
        head = self.head([0.5, 2.0, 1.0]).to("meta")
        assert head.class_weights is not None
        assert head.class_weights.device.type == "meta"

    def test_number_of_weights_must_be_that_of_classes(self) -> None:
        with pytest.raises(ValueError, match="expected 3 class weights, got 2"):
            self.head([1.0, 1.0])
