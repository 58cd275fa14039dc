from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import GATED_ACTIVATIONS
from finetune.encoder.feedforward import ACTIVATIONS
from finetune.errors import ConfigError
from finetune.heads import (
    POOLINGS,
    BatchNorm,
    Classification,
    HeadConfig,
    MaskedLM,
    MultipleChoice,
    Regression,
    Span,
    SpanConfig,
)

V, D = 30, 8


def tiny(**changes: Any) -> EncoderConfig:
    return EncoderConfig(**{"vocab_size": V, "hidden_size": D, "num_attention_heads": 2, **changes})


def masked_lm(**changes: Any) -> tuple[MaskedLM, nn.Embedding]:
    config = tiny(**changes)
    words = nn.Embedding(V, config.word_embedding_size)
    return MaskedLM(config, words), words


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(3, 5, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def attention_mask() -> Tensor:
    return torch.arange(5) < torch.tensor([5, 3, 1])[:, None]


def test_a_tied_weight_belongs_to_the_encoder_alone() -> None:
    head, words = masked_lm()
    assert head.weight is words.weight
    assert all(p is not words.weight for p in head.parameters())
    assert sorted(head.state_dict()) == [
        "bias", "dense.bias", "dense.weight", "norm.bias", "norm.weight",
    ]  # fmt: skip


def test_a_tied_weight_learns_from_both_its_uses() -> None:
    head, words = masked_lm()
    head.loss(head(words(torch.tensor([1, 2]))), torch.tensor([3, 4])).backward()
    assert words.weight.grad is not None
    assert words.weight.grad.any(dim=1).all()


def test_an_untied_weight_is_the_heads_own() -> None:
    head, words = masked_lm(tie_word_embeddings=False)
    assert head.weight is not words.weight
    assert any(p is head.weight for p in head.parameters())


def test_a_tied_weight_stays_tied_in_a_copy_and_in_another_dtype() -> None:
    head, words = masked_lm()
    model = nn.ModuleDict({"words": words, "head": head})
    twin = copy.deepcopy(model).double()
    assert isinstance(twin["head"], MaskedLM)
    assert twin["head"].weight is twin["words"].weight
    assert twin["head"].weight.dtype == torch.float64


def test_the_transform_narrows_to_the_embedding_size(hidden: Tensor) -> None:
    head, _ = masked_lm(embedding_size=6)
    assert head.dense.weight.shape == (6, D)
    assert head(hidden[0]).shape == (5, V)


@pytest.mark.parametrize("hidden_act", ACTIVATIONS | GATED_ACTIVATIONS)
def test_the_transform_takes_the_plain_activation(hidden_act: str, hidden: Tensor) -> None:
    head, words = masked_lm(hidden_act=hidden_act)
    plain = ACTIVATIONS[GATED_ACTIVATIONS.get(hidden_act, hidden_act)]
    expected = head.norm(plain(head.dense(hidden[0]))) @ words.weight.T + head.bias
    torch.testing.assert_close(head(hidden[0]), expected)


def test_masked_lm_loss_is_the_mean_over_labelled_tokens() -> None:
    head, _ = masked_lm()
    logits, labels = torch.randn(6, V), torch.tensor([3, -100, 0, 7, -100, 29])
    rows = [0, 2, 3, 5]
    expected = -logits.log_softmax(dim=-1)[rows, labels[rows]].mean()
    torch.testing.assert_close(head.loss(logits, labels), expected)


@pytest.mark.parametrize("count", [0, 3])
def test_masked_lm_loss_without_a_label_is_zero(count: int) -> None:
    head, _ = masked_lm()
    loss = head.loss(torch.randn(count, V), torch.full((count,), -100))
    assert loss.item() == 0.0


def test_mean_and_max_leave_padding_out(hidden: Tensor, attention_mask: Tensor) -> None:
    for row, length in enumerate([5, 3, 1]):
        states = hidden[row, :length]
        expected = {
            "cls": states[0],
            "last": states[-1],
            "mean": states.mean(dim=0),
            "max": states.amax(dim=0),
            "concat": torch.cat((states[0], states.amax(dim=0), states.mean(dim=0))),
        }
        for name, pool in POOLINGS.items():
            torch.testing.assert_close(pool(hidden, attention_mask)[row], expected[name])


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_without_a_mask_takes_all_tokens(name: str, hidden: Tensor) -> None:
    everything = torch.ones(3, 5, dtype=torch.bool)
    torch.testing.assert_close(POOLINGS[name](hidden, None), POOLINGS[name](hidden, everything))


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_of_no_token_is_finite(name: str, hidden: Tensor) -> None:
    nothing = torch.zeros(3, 5, dtype=torch.bool)
    assert POOLINGS[name](hidden, nothing).abs().max() < 10


def test_cls_pooling_is_berts_pooler(hidden: Tensor) -> None:
    head = Classification(tiny(), HeadConfig(pooling="cls"), 4).eval()
    pooler, output = head.layers[0], head.layers[3]
    assert isinstance(pooler, nn.Linear)
    assert isinstance(output, nn.Linear)
    expected = output(torch.tanh(pooler(hidden[:, 0])))
    torch.testing.assert_close(head(hidden, None), expected)


def test_concat_pooling_has_ulmfits_two_blocks() -> None:
    head = Classification(tiny(), HeadConfig(pooling="concat"), 4)
    shapes = [layer.weight.shape for layer in head.layers if isinstance(layer, nn.Linear)]
    assert shapes == [(50, 3 * D), (4, 50)]
    assert [type(layer).__name__ for layer in head.layers] == [
        "BatchNorm", "Dropout", "Linear", "ReLU", "BatchNorm", "Dropout", "Linear",
    ]  # fmt: skip


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_head_trains_with_any_batch_size(name: str, batch_size: int, hidden: Tensor) -> None:
    inputs = hidden[:batch_size]
    for head, labels in (
        (Classification(tiny(), HeadConfig(pooling=name), 4), torch.arange(batch_size)),
        (Regression(tiny(), HeadConfig(pooling=name)), torch.randn(batch_size)),
    ):
        logits = head(inputs, None)
        assert logits.shape == ((batch_size, 4) if head.kind == "classification" else (batch_size,))
        head.loss(logits, labels).backward()
        for parameter_name, parameter in head.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name


def test_batch_norm_of_one_example_uses_running_statistics() -> None:
    norm, row = BatchNorm(4), torch.randn(1, 4)
    training = norm(row)
    torch.testing.assert_close(training, norm.eval()(row))


def test_head_dropout_falls_back_to_the_hidden_dropout() -> None:
    config = tiny(hidden_dropout_prob=0.3)
    assert HeadConfig().dropout(config) == 0.3
    assert HeadConfig(head_dropout=0.0).dropout(config) == 0.0


def test_losses_are_computed_in_float32() -> None:
    classes, number = Classification(tiny(), HeadConfig(), 3), Regression(tiny(), HeadConfig())
    logits = torch.randn(4, 3).bfloat16()
    labels = torch.tensor([0, 1, 2, 0])
    loss = classes.loss(logits, labels)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits.float(), labels))
    loss = number.loss(logits[:, 0], torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    expected = ((logits[:, 0].float() - torch.arange(1.0, 5.0)) ** 2).mean()
    torch.testing.assert_close(loss, expected)
    masked, _ = masked_lm()
    assert masked.loss(torch.randn(4, V).bfloat16(), labels).dtype == torch.float32


def test_kinds_are_the_names_in_a_checkpoint() -> None:
    assert [head.kind for head in (MaskedLM, Classification, Regression)] == [
        "masked_lm", "classification", "regression",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pooling": "average"},
            "pooling must be one of cls, last, mean, max, concat, attention, segments, "
            "segments-attention, align, got "
            "'average'$",
        ),
        ({"pooling": "meen"}, "pooling must be one of .*, got 'meen'; did you mean 'mean'"),
        ({"layers": "mixed"}, "layers must be one of last, mix, got 'mixed'; did you mean 'mix'"),
        ({"head_dropout": 1.0}, r"head_dropout must be a number from 0 to below 1.*, got 1\.0"),
        ({"head_dropout": "no"}, r"head_dropout must be a number from 0 to below 1.*, got 'no'"),
    ],
)
def test_a_bad_head_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HeadConfig(**settings)


CAUSAL: dict[str, Any] = {
    "causal": True,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
HEADS = {
    "classification": lambda config, head: Classification(config, head, 2),
    "regression": Regression,
    "choice": lambda config, head: MultipleChoice(config, head, 2),
    "span": lambda config, head: Span(config, head, SpanConfig(n_best=2)),
}


@pytest.mark.parametrize("pooling", [None, "last", "mean", "max", "concat"])
@pytest.mark.parametrize("kind", HEADS)
def test_over_a_causal_encoder_an_answer_depends_on_the_whole_text(
    kind: str, pooling: str | None
) -> None:
    """Of two texts that begin alike and end otherwise, each alone and padded among others."""
    torch.manual_seed(0)
    encoder = Encoder(tiny(**CAUSAL)).eval()
    head = HEADS[kind](encoder.config, HeadConfig(pooling)).eval()
    ids = torch.tensor([[2, 7, 8, 3, 0, 0], [2, 7, 8, 9, 4, 3]])
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    batch = {"input_ids": ids, "attention_mask": mask}
    logits = head(encoder(batch).last_hidden_state, mask)
    context = {"context": torch.tensor([[1, 3], [1, 3]])}
    found = head.outputs(logits, context)[:, 0, 2] if kind == "span" else logits.reshape(2, -1)
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    alone = encoder({"input_ids": ids[:1, :4]}).last_hidden_state
    if kind in ("classification", "span"):
        torch.testing.assert_close(head(alone)[0], logits[0, :4] if kind == "span" else logits[0])


def test_no_answer_is_learnt_from_the_last_token_of_a_causal_encoder() -> None:
    torch.manual_seed(0)
    head = HEADS["span"](tiny(**CAUSAL), HeadConfig())
    hidden = torch.randn(2, 5, D, requires_grad=True)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    plain = head.layer(hidden)
    logits = head(hidden, mask)
    for row, last in enumerate((4, 2)):
        torch.testing.assert_close(logits[row, 0], plain[row, last])
        assert (logits[row, last:] < -1e30).all()  # the last token is no part of an answer
        torch.testing.assert_close(logits[row, 1:last], plain[row, 1:last])
    loss = head.loss(logits, torch.zeros(2, 2, dtype=torch.int64))
    assert 0 < float(loss.detach()) < 5
    loss.backward()
    assert hidden.grad is not None
    assert not hidden.grad[:, 0].any()  # [CLS] has seen nothing
    assert hidden.grad[0, 4].any()
    assert hidden.grad[1, 2].any()


@pytest.mark.parametrize("kind", ["classification", "regression", "choice"])
def test_the_first_token_of_a_causal_encoder_is_refused(kind: str) -> None:
    message = "pooling 'cls' reads the first token, .*; choose last, mean, max or concat$"
    with pytest.raises(ConfigError, match=message):
        HEADS[kind](tiny(causal=True), HeadConfig("cls"))


@pytest.mark.parametrize(("causal", "pooling"), [(False, "cls"), (True, "last")])
def test_the_usual_pooling_is_that_of_the_encoder(causal: bool, pooling: str) -> None:
    head = Classification(tiny(causal=causal), HeadConfig(), 2)
    assert head.config == HeadConfig(pooling)
    assert head.first_only is not causal


@pytest.mark.parametrize("pooling", ["cls", "mean", "concat"])
def test_regression_may_start_at_the_mean_of_the_labels(pooling: str) -> None:
    head = Regression(tiny(), HeadConfig(pooling=pooling)).eval()
    head.start_at(1000.0)
    assert head(torch.zeros(2, 5, tiny().hidden_size)).tolist() == pytest.approx([1000.0] * 2, 1e-3)
