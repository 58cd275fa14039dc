"""Each family of Hugging Face, imported: the same numbers and gradients as theirs, to 1e-5."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from finetune.checkpoints.hf import FORMS, Imported, read_hf
from finetune.encoder import Encoder
from finetune.heads import Classification, HeadConfig, MaskedLM, MultipleChoice, Span, SpanConfig

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 19,
    "initializer_range": 0.2,
}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
DISTILBERT |= {"vocab_size": 60, "max_position_embeddings": 19, "initializer_range": 0.2}


@dataclass(frozen=True)
class Case:
    """A config that is not the default one, and what the family takes."""

    form: str
    settings: dict[str, Any] = field(default_factory=dict)
    segments: int = 0
    pad: int = 0
    tolerance: float = 1e-5

    def config(self, **more: Any) -> Any:
        """Theirs; the explicit attention unless another is named."""
        classes = FORMS[self.form].classes
        config = getattr(transformers, f"{classes}Config")
        sizes = DISTILBERT if self.form == "distilbert" else SIZES
        return config(
            **{"pad_token_id": self.pad, "attn_implementation": "eager"}
            | sizes
            | self.settings
            | more
        )

    def model(self, ending: str, **more: Any) -> nn.Module:
        """Theirs, with random weights, in eval mode."""
        torch.manual_seed(0)
        made: nn.Module = getattr(transformers, FORMS[self.form].classes + ending)(
            self.config(**more)
        )
        for parameter in made.parameters():  # no norm and no bias may be mistaken for another
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
        return made.eval()


CASES = {
    "bert": Case("bert", segments=2),
    "bert, relu, four segments": Case(
        "bert", {"hidden_act": "relu", "type_vocab_size": 4, "layer_norm_eps": 1e-5}, segments=4
    ),
    "bert, gelu_new, other padding": Case("bert", {"hidden_act": "gelu_new"}, segments=2, pad=7),
    "roberta": Case("roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}, pad=1),
    "roberta, other padding": Case("roberta", {"type_vocab_size": 1}, pad=3),
    "distilbert": Case("distilbert"),
    "distilbert, relu": Case("distilbert", {"activation": "relu"}),
    "electra": Case("electra", {"embedding_size": 24}, segments=2),
    "modernbert": Case("modernbert", {"local_attention": 4, "num_hidden_layers": 5}, pad=3),
    "modernbert, biases, another pattern": Case(
        "modernbert",
        {
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            "norm_bias": True,
            "mlp_bias": True,
            "attention_bias": True,
            "classifier_bias": True,
        },
        pad=3,
    ),
    "modernbert, all blocks see everything": Case(
        "modernbert", {"global_attn_every_n_layers": 1, "hidden_activation": "gelu"}, pad=3
    ),
    "electra, no projection": Case("electra", {"embedding_size": 32}, segments=2),
}
UNUSED = (["cls.predictions.bias"], ["lm_head.bias"])


def imported(model: nn.Module, folder: Path) -> Imported:
    """Save theirs, read it as ours."""
    model.save_pretrained(folder)
    return read_hf(folder)


def encoder_of(found: Imported) -> Encoder:
    encoder = Encoder(found.encoder_config).eval()
    load(encoder, "encoder.", found)
    return encoder


def load(module: nn.Module, prefix: str, found: Imported) -> None:
    weights = {
        key.removeprefix(prefix): tensor
        for key, tensor in found.weights.items()
        if key.startswith(prefix)
    }
    module.load_state_dict(weights)  # every tensor of ours, and none besides


def batch_of(case: Case) -> dict[str, Tensor]:
    """Three texts of 9, 5 and 3 tokens, padded to 9, in segments where there are any."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([9, 5, 3])
    attention_mask = torch.arange(9) < lengths[:, None]
    ids = torch.randint(10, 60, (3, 9), generator=generator)
    batch = {
        "input_ids": ids.masked_fill(~attention_mask, case.pad),
        "attention_mask": attention_mask,
    }
    if case.segments:
        segments = torch.randint(0, case.segments, (3, 9), generator=generator)
        batch["token_type_ids"] = segments
    return batch


def for_transformers(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, "attention_mask": batch["attention_mask"].long()}


def near(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def assert_gradients_agree(ours: nn.Module, theirs: nn.Module, found: Imported) -> None:
    """Compare the gradients of all tensors of ours with those that theirs are made of."""
    kind = found.head.get("kind")
    expected = {name: tensor.grad for name, tensor in theirs.named_parameters()}
    parts: dict[str, list[Tensor]] = {}
    own = dict(ours.named_parameters())
    for key, name in found.form.pairs(found.encoder_config, kind):
        if key in own:
            parts.setdefault(name, []).append(own[key].grad)
    twins = {first: second for second, first in found.form.aliases.items()}
    for name, gradients in parts.items():
        bare = name.removeprefix(found.form.prefix)
        name = bare if bare in expected else name  # a model without a head has no prefix
        if name not in expected:
            assert name.endswith(".bias")  # ours is of zeros, and learns
            continue
        grad = expected[name] if expected[name] is not None else expected[twins[name]]
        rows = torch.cat(gradients)
        near(rows, grad[len(grad) - len(rows) :])


class Whole(nn.Module):
    def __init__(self, encoder: Encoder, head: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        if head is not None:
            self.head = head


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hidden_states_and_gradients_agree(name: str, attention: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = case.model("Model", attn_implementation=attention)
    found = imported(theirs, tmp_path)
    encoder, batch = encoder_of(found), batch_of(case)
    seen = batch["attention_mask"]

    expected = theirs(**for_transformers(batch), output_hidden_states=True)
    output = encoder(batch, output_hidden_states=True)

    assert len(output.hidden_states) == len(expected.hidden_states)
    for ours, other in zip(output.hidden_states, expected.hidden_states, strict=True):
        near(ours[seen], other[seen])
    weights = torch.randn(3, 9, 32) / 288 * seen[..., None]
    (output.last_hidden_state * weights).sum().backward()
    (expected.last_hidden_state * weights).sum().backward()
    assert_gradients_agree(Whole(encoder), theirs, found)


@pytest.mark.parametrize("name", CASES)
def test_texts_of_any_length_agree(name: str, tmp_path: Path) -> None:
    theirs = CASES[name].model("Model")
    encoder = encoder_of(imported(theirs, tmp_path))
    for length in (1, 7, 15):
        ids = torch.randint(10, 60, (2, length))
        near(encoder({"input_ids": ids}).last_hidden_state, theirs(ids).last_hidden_state)


@pytest.mark.parametrize("name", CASES)
def test_attention_maps_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = case.model("Model")
    found, batch = imported(theirs, tmp_path), batch_of(case)
    encoder = encoder_of(found)
    expected = theirs(**for_transformers(batch), output_attentions=True).attentions
    ours = encoder(batch, output_attentions=True).attentions
    assert len(ours) == len(expected) == found.encoder_config.num_hidden_layers
    seen = batch["attention_mask"]
    for left, right in zip(ours, expected, strict=True):
        near(left.transpose(1, 2)[seen], right.transpose(1, 2)[seen])  # (tokens, H, T)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", [name for name in CASES if name != "bert, gelu_new"])
def test_masked_lm_logits_loss_and_gradients_agree(name: str, tied: bool, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = case.model("ForMaskedLM", tie_word_embeddings=tied)
    found = imported(theirs, tmp_path)
    assert found.head == {"kind": "masked_lm"}
    # Untied, theirs computes with the bias of the decoder, and stores another besides.
    assert found.left_out == [] or (not tied and found.left_out in UNUSED)
    assert found.encoder_config.tie_word_embeddings is tied
    encoder, batch = encoder_of(found), batch_of(case)
    head = MaskedLM(found.encoder_config, encoder.embeddings.word_embeddings)
    load(head, "head.", found)
    masked = batch["attention_mask"] & (torch.arange(9) % 3 == 1)
    labels = torch.randint(0, 60, (3, 9)).masked_fill(~masked, -100)

    expected = theirs(**for_transformers(batch), labels=labels)
    logits = head(encoder(batch).last_hidden_state[masked])
    loss = head.loss(logits, labels[masked])

    near(logits, expected.logits[masked])
    near(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_gradients_agree(Whole(encoder, head), theirs, found)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_classification_logits_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    names = {0: "no", 1: "perhaps", 2: "yes"}
    theirs = case.model("ForSequenceClassification", id2label=names, classifier_dropout=0.3)
    found = imported(theirs, tmp_path)
    assert found.head == {"kind": "classification", "pooling": "cls", "head_dropout": 0.3}
    assert (found.labels, found.left_out) == (("no", "perhaps", "yes"), [])
    head = Classification(found.encoder_config, HeadConfig(head_dropout=0.3), 3).eval()
    load(head, "head.", found)
    batch = batch_of(case)
    logits = head(encoder_of(found)(batch).last_hidden_state, batch["attention_mask"])
    near(logits, theirs(**for_transformers(batch)).logits)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra"])
def test_span_logits_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = case.model("ForQuestionAnswering")
    found = imported(theirs, tmp_path)
    assert (found.head["kind"], found.left_out) == ("span", [])
    head = Span(found.encoder_config, HeadConfig(), SpanConfig()).eval()
    load(head, "head.", found)
    batch = batch_of(case)
    logits = head(encoder_of(found)(batch).last_hidden_state)
    expected = theirs(**for_transformers(batch))
    seen = batch["attention_mask"]
    near(logits[seen], torch.stack((expected.start_logits, expected.end_logits), dim=-1)[seen])


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_multiple_choice_logits_agree(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = case.model("ForMultipleChoice")
    found = imported(theirs, tmp_path)
    assert (found.head["kind"], found.labels, found.left_out) == ("choice", (), [])
    head = MultipleChoice(found.encoder_config, HeadConfig(), 3).eval()
    load(head, "head.", found)
    batch = batch_of(case)
    logits = head(encoder_of(found)(batch).last_hidden_state, batch["attention_mask"])
    of_a_question = {key: each[None] for key, each in for_transformers(batch).items()}
    near(logits, theirs(**of_a_question).logits)


@pytest.mark.parametrize("every", [2, 3])
def test_local_blocks_in_tiles_give_what_modernbert_gives(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.encoder.config.SMALLEST_TILE", 2)
    settings = {"local_attention": 6, "num_hidden_layers": 4, "global_attn_every_n_layers": every}
    theirs = Case("modernbert", settings, pad=3).model("Model", max_position_embeddings=40)
    ours = encoder_of(imported(theirs, tmp_path))
    lengths = torch.tensor([31, 18, 3])
    mask = torch.arange(31) < lengths[:, None]
    batch = {"input_ids": torch.randint(10, 60, (3, 31)), "attention_mask": mask}
    assert not ours.config.untiled(31)
    expected = theirs(**for_transformers(batch)).last_hidden_state[mask]
    got = ours(batch).last_hidden_state[mask]
    near(got, expected)
    words = ours.embeddings.word_embeddings.weight, theirs.get_input_embeddings().weight
    gradients = [
        torch.autograd.grad(states.sin().sum(), word)[0]
        for states, word in zip((got, expected), words, strict=True)
    ]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
