from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMultipleChoice

from finetune.encoder import Encoder, EncoderConfig
from finetune.heads import POOLINGS, HeadConfig, MultipleChoice

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "initializer_range": 0.2,
}
NAMES = {
    "embeddings.norm": "embeddings.LayerNorm",
    ".attention.query.": ".attention.self.query.",
    ".attention.key.": ".attention.self.key.",
    ".attention.value.": ".attention.self.value.",
    ".attention.output.": ".attention.output.dense.",
    ".attention_norm.": ".attention.output.LayerNorm.",
    ".feedforward.intermediate.": ".intermediate.dense.",
    ".feedforward.output.": ".output.dense.",
    ".feedforward_norm.": ".output.LayerNorm.",
    "blocks.": "encoder.layer.",
}
HEAD_NAMES = {"layers.0.": "bert.pooler.dense.", "layers.3.": "classifier."}


def renamed(name: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name


def head(count: int = 4, **changes: Any) -> MultipleChoice:
    return MultipleChoice(EncoderConfig(**SIZES), HeadConfig(**changes), count)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Three questions of four options, of 3 to 9 tokens in two segments."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 10, (12,), generator=generator)
    lengths[0] = 9
    attention_mask = torch.arange(9) < lengths[:, None]
    ids = torch.randint(1, 60, (12, 9), generator=generator)
    return {
        "input_ids": ids.masked_fill(~attention_mask, 0),
        "attention_mask": attention_mask,
        "token_type_ids": (torch.arange(9) >= lengths[:, None] // 2).long(),
    }


def test_logits_loss_and_gradients_agree_with_bert_for_multiple_choice(
    batch: dict[str, Tensor],
) -> None:
    torch.manual_seed(0)
    theirs = BertForMultipleChoice(BertConfig(**SIZES)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    encoder, ours = Encoder(EncoderConfig(**SIZES)).eval(), head().eval()
    parameters = {"bert." + renamed(n, NAMES): p for n, p in encoder.named_parameters()}
    parameters |= {renamed(n, HEAD_NAMES): p for n, p in ours.named_parameters()}
    weights = dict(theirs.named_parameters())
    assert set(parameters) == set(weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    labels = torch.tensor([2, 0, 3])

    given = {name: tensor.view(3, 4, 9) for name, tensor in batch.items()}
    given["attention_mask"] = given["attention_mask"].long()
    expected = theirs(**given, labels=labels)
    logits = ours(encoder(batch).last_hidden_state, batch["attention_mask"])
    loss = ours.loss(logits, labels)

    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.loss.backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(
            parameter.grad, weights[name].grad, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 26])
def test_any_number_of_options_works_and_trains(pooling: str, count: int) -> None:
    choice = head(count, pooling=pooling)
    logits = choice(torch.randn(2 * count, 5, 32), torch.ones(2 * count, 5, dtype=torch.bool))
    assert logits.shape == (2, count)
    choice.loss(logits, torch.tensor([count - 1, 0])).backward()
    for name, parameter in choice.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_weights_know_nothing_of_the_number_of_options() -> None:
    head(5).load_state_dict(head(3).state_dict())


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_an_option_is_scored_without_regard_to_its_place(pooling: str) -> None:
    choice, hidden = head(pooling=pooling).eval(), torch.randn(8, 5, 32)
    order = torch.tensor([2, 0, 3, 1])
    moved = hidden.view(2, 4, 5, 32)[:, order].reshape(8, 5, 32)
    torch.testing.assert_close(choice(moved), choice(hidden)[:, order])


def test_questions_do_not_mix() -> None:
    choice, hidden = head().eval(), torch.randn(8, 5, 32)
    torch.testing.assert_close(choice(hidden)[1:], choice(hidden[4:]))


def test_equal_options_cost_the_loss_of_guessing() -> None:
    for count in (2, 4):
        loss = head(count).loss(torch.zeros(3, count), torch.tensor([0, 1, 1]))
        assert loss.item() == pytest.approx(math.log(count))


def test_an_unlabelled_question_takes_no_part_in_the_loss() -> None:
    choice, logits = head(), torch.randn(3, 4)
    loss = choice.loss(logits, torch.tensor([1, -100, 3]))
    torch.testing.assert_close(loss, F.cross_entropy(logits[[0, 2]], torch.tensor([1, 3])))
    assert choice.loss(logits, torch.full((3,), -100)).item() == 0.0


def test_the_loss_is_computed_in_float32() -> None:
    logits, labels = torch.randn(3, 4).bfloat16(), torch.tensor([0, 1, 2])
    loss = head().loss(logits, labels)
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), labels))


def test_its_kind_is_its_name_in_a_checkpoint() -> None:
    assert MultipleChoice.kind == "choice"


def test_answers_are_read_off_the_logits_as_they_are() -> None:
    logits = torch.randn(2, 4)
    assert head().outputs(logits, {}) is logits
