"""What a head is, and the cross-entropy that most heads share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.encoder import Encoder
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
    head_logits,
    reads_one,
    states_for,
    suffix_for,
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
def test_a_head_says_whether_it_reads_the_first_or_the_last_token_alone(pooling: str) -> None:
    head = HeadConfig(pooling)
    pooled = (
        Classification(CONFIG, head, 3),
        MultiLabel(CONFIG, head, 3),
        MultipleChoice(CONFIG, head, 4),
        Regression(CONFIG, head),
    )
    assert {one.first_only for one in pooled} == {pooling == "cls"}
    assert {one.last_only for one in pooled} == {pooling == "last"}
    span = Span(CONFIG, head, SpanConfig())
    assert not span.first_only
    assert not span.last_only


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROWS = torch.tensor([[2, 7, 8, 3, 0, 0], [0, 2, 9, 9, 5, 3], [2, 3, 0, 0, 0, 0]])
VARIANTS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"position": "relative"},
    {"norm_position": "pre"},
    {"local_attention": 2, "global_every": 2, "position": "rotary"},
    {"local_attention": 1, "global_every": 2, "global_tokens": "question", "position": "rotary"},
    {"block": "lstm"},
    {"locked_dropout": True},
]


@pytest.mark.parametrize(
    ("variant", "pooling"),
    # Not the first token of a causal encoder, which a head refuses.
    [(one, how) for one in VARIANTS for how in ("cls", "last")[one.get("causal", 0) :]],
    ids=str,
)
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
@pytest.mark.parametrize("padded", [True, False])
def test_one_tokens_state_gives_the_logits_and_gradients_that_all_states_give(
    variant: dict[str, Any], pooling: str, depth: int | None, padded: bool
) -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(**NO_DROPOUT, **variant)).train()
    head = Classification(encoder.config, HeadConfig(pooling), 3)
    mask = ROWS != 0
    batch = {"input_ids": ROWS, "attention_mask": mask} if padded else {"input_ids": ROWS + 1}
    batch["token_type_ids"] = (torch.arange(6) > 2).long().expand(3, 6)

    def logits_and_gradients(all_tokens: bool) -> tuple[Tensor, dict[str, Tensor]]:
        if depth is None:
            hidden = states_for(head, encoder, batch, all_tokens=all_tokens)
        else:
            prefix = encoder.prefix(batch, depth)
            hidden = suffix_for(head, encoder, batch, prefix, depth, all_tokens=all_tokens)
        assert hidden.shape[:2] == (3, 6 if all_tokens else 1)
        logits = head_logits(head, hidden, batch)
        logits.square().sum().backward()
        gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad()
        return logits, gradients

    expected, expected_gradients = logits_and_gradients(True)
    logits, gradients = logits_and_gradients(False)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("depth", [None, 1])
def test_the_last_block_computes_the_last_tokens_alone(depth: int | None) -> None:
    encoder, rows = Encoder(tiny_config(causal=True)).eval(), []
    for block in encoder.blocks:
        block.feedforward.register_forward_hook(
            lambda _, args, output: rows.append(output.shape[:-1].numel())
        )
    head, batch = Classification(CONFIG, HeadConfig("last"), 3), {"input_ids": ROWS}
    if depth is None:
        states_for(head, encoder, batch)
    else:
        suffix_for(head, encoder, batch, encoder.prefix(batch, depth), depth)
    assert rows == [18, 3]
    assert reads_one(head, encoder, 6)
    assert not reads_one(Classification(CONFIG, HeadConfig("mean"), 3), encoder, 6)
    assert not reads_one(head, Encoder(tiny_config(position="relative")), 6)


def test_padding_is_not_computed_for_a_last_token_either() -> None:
    encoder, rows = Encoder(tiny_config(**NO_DROPOUT, causal=True)).train(), []
    for block in encoder.blocks:
        block.feedforward.register_forward_hook(
            lambda _, args, output: rows.append(output.shape[:-1].numel())
        )
    ids = torch.tensor([[2, 7, 8, 9, 5, 3], [2, 3, 0, 0, 0, 0], [2, 8, 3, 0, 0, 0]])
    states_for(
        Classification(CONFIG, HeadConfig("last"), 3),
        encoder,
        {"input_ids": ids, "attention_mask": ids != 0},
    )
    assert rows == [11, 3]


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and warns of every decision
def test_a_traced_graph_of_a_last_token_is_for_any_batch() -> None:
    encoder = Encoder(tiny_config(causal=True)).eval().requires_grad_(False)
    head = Classification(CONFIG, HeadConfig("last"), 3).eval().requires_grad_(False)

    def logits(ids: Tensor, mask: Tensor) -> Tensor:
        batch = {"input_ids": ids, "attention_mask": mask}
        return head_logits(head, states_for(head, encoder, batch), batch)

    traced = torch.jit.trace(logits, (ROWS[:2], ROWS[:2] != 0))
    torch.testing.assert_close(traced(ROWS, ROWS != 0), logits(ROWS, ROWS != 0))
