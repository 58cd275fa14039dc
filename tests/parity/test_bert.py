"""BERT as in `transformers`: the same weights give the same numbers and gradients, to 1e-5."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertModel

from finetune.encoder import Encoder, EncoderConfig
from finetune.heads import MaskedLM

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    # Ten times the default: or else a tiny net hardly tells one token from another.
    "initializer_range": 0.2,
}

ENCODER_NAMES = {
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

HEAD_NAMES = {
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "bias": "cls.predictions.decoder.bias",
    "decoder": "cls.predictions.decoder",
}


def encoder_name(name: str) -> str:
    for ours, theirs in ENCODER_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def head_name(name: str) -> str:
    module, _, rest = name.partition(".")
    return f"{HEAD_NAMES[module]}.{rest}" if rest else HEAD_NAMES[module]


def shuffle_weights(model: nn.Module) -> None:
    """Give norms and biases values of their own, so that none of them can be mistaken."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)


@pytest.fixture(params=["eager", "sdpa"])
def config(request: pytest.FixtureRequest) -> BertConfig:
    torch.manual_seed(0)
    return BertConfig(**SIZES, attn_implementation=request.param)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Three texts of 9, 5 and 3 tokens, in two segments, padded to 9."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([9, 5, 3])
    attention_mask = torch.arange(9) < lengths[:, None]
    ids = torch.randint(1, 60, (3, 9), generator=generator)
    return {
        "input_ids": ids.masked_fill(~attention_mask, 0),
        "attention_mask": attention_mask,
        "token_type_ids": (torch.arange(9) >= lengths[:, None] // 2).long(),
    }


def for_transformers(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, "attention_mask": batch["attention_mask"].long()}


def assert_gradients_agree(ours: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter]) -> None:
    assert set(ours) <= set(theirs)
    for name, parameter in ours.items():
        torch.testing.assert_close(
            parameter.grad,
            theirs[name].grad,
            atol=1e-5,
            rtol=1e-5,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def copy_of(theirs: BertModel) -> tuple[Encoder, dict[str, nn.Parameter]]:
    """Make our encoder with their weights, and our parameters under their names."""
    encoder = Encoder(EncoderConfig(**SIZES))
    parameters = {encoder_name(name): p for name, p in encoder.named_parameters()}
    weights = dict(theirs.named_parameters())
    assert set(parameters) == set(weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return encoder.eval(), parameters


def test_hidden_states_and_gradients_agree_with_bert_model(
    config: BertConfig, batch: dict[str, Tensor]
) -> None:
    theirs = BertModel(config, add_pooling_layer=False).eval()
    shuffle_weights(theirs)
    encoder, parameters = copy_of(theirs)

    expected = theirs(**for_transformers(batch), output_hidden_states=True)
    output = encoder(batch, output_hidden_states=True)

    for ours, other in zip(output.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5)
    weights = torch.randn(3, 9, 32) / 288 * batch["attention_mask"][..., None]
    (output.last_hidden_state * weights).sum().backward()
    (expected.last_hidden_state * weights).sum().backward()
    assert_gradients_agree(parameters, dict(theirs.named_parameters()))


def test_attention_maps_agree_with_bert_model(batch: dict[str, Tensor]) -> None:
    theirs = BertModel(BertConfig(**SIZES, attn_implementation="eager"), add_pooling_layer=False)
    theirs.eval()
    encoder, _ = copy_of(theirs)
    expected = theirs(**for_transformers(batch), output_attentions=True).attentions
    for ours, other in zip(
        encoder(batch, output_attentions=True).attentions, expected, strict=True
    ):
        torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_masked_lm_logits_loss_and_gradients_agree(
    config: BertConfig, batch: dict[str, Tensor], tied: bool
) -> None:
    config.tie_word_embeddings = tied
    theirs = BertForMaskedLM(config).eval()
    shuffle_weights(theirs)
    encoder, parameters = copy_of(theirs.bert)
    head = MaskedLM(
        EncoderConfig(**SIZES, tie_word_embeddings=tied), encoder.embeddings.word_embeddings
    )
    head_parameters = {head_name(name): p for name, p in head.named_parameters()}
    weights = dict(theirs.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in head_parameters.items():
            parameter.copy_(weights[name])
    masked = batch["attention_mask"] & (torch.arange(9) % 3 == 1)
    labels = torch.randint(0, 60, (3, 9)).masked_fill(~masked, -100)

    expected = theirs(**for_transformers(batch), labels=labels)
    logits = head(encoder(batch).last_hidden_state[masked])
    loss = head.loss(logits, labels[masked])

    torch.testing.assert_close(logits, expected.logits[masked], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.loss.backward()
    renamed = {f"bert.{name}": p for name, p in parameters.items()} | head_parameters
    assert_gradients_agree(renamed, weights)
