"""Import, export, import: the same encoder bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from finetune.checkpoints.folder import load_checkpoint, save_checkpoint
from finetune.checkpoints.hf import read_hf
from finetune.checkpoints.hub import import_hf
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError
from finetune.export import hf
from finetune.export.hf import export_hf
from finetune.heads import Classification, HeadConfig, MaskedLM, Regression
from finetune.text.tokenizer.tokenizer import Tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
DISTILBERT = {
    "vocab_size": 60,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 20,
}
NAMES = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
THEIRS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertModel", SIZES, ""),
    "bert masked_lm": ("BertForMaskedLM", SIZES, "ForMaskedLM"),
    "bert untied": ("BertForMaskedLM", {**SIZES, "tie_word_embeddings": False}, "ForMaskedLM"),
    "bert classification": (
        "BertForSequenceClassification",
        {**SIZES, **NAMES, "classifier_dropout": 0.3, "hidden_act": "relu"},
        "ForSequenceClassification",
    ),
    "bert several labels": (
        "BertForSequenceClassification",
        {**SIZES, **NAMES, "problem_type": "multi_label_classification"},
        "ForSequenceClassification",
    ),
    "bert regression": (
        "BertForSequenceClassification",
        {**SIZES, "num_labels": 1},
        "ForSequenceClassification",
    ),
    "bert span": ("BertForQuestionAnswering", SIZES, "ForQuestionAnswering"),
    "bert choice": ("BertForMultipleChoice", SIZES, "ForMultipleChoice"),
    "roberta masked_lm": ("RobertaForMaskedLM", {**SIZES, "pad_token_id": 1}, "ForMaskedLM"),
    "roberta classification": (
        "RobertaForSequenceClassification",
        {**SIZES, **NAMES, "type_vocab_size": 1, "pad_token_id": 1},
        "ForSequenceClassification",
    ),
    "distilbert masked_lm": ("DistilBertForMaskedLM", DISTILBERT, "ForMaskedLM"),
    "distilbert span": ("DistilBertForQuestionAnswering", DISTILBERT, "ForQuestionAnswering"),
    "electra masked_lm": ("ElectraForMaskedLM", {**SIZES, "embedding_size": 8}, "ForMaskedLM"),
    "electra span": (
        "ElectraForQuestionAnswering",
        {**SIZES, "embedding_size": 8},
        "ForQuestionAnswering",
    ),
}
"""Class of theirs, its settings, and how the Auto class that loads it ends."""


def of_theirs(name: str, folder: Path, tokenizer: Tokenizer) -> nn.Module:
    """A folder that `transformers` wrote, of random weights with norms and biases of their own."""
    class_name, settings, _ = THEIRS[name]
    torch.manual_seed(0)
    kind = getattr(transformers, class_name)
    model: Any = kind(kind.config_class(**settings)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    if name == "bert untied":  # one of the two is in no use
        model.cls.predictions.bias.data = model.cls.predictions.decoder.bias.data.clone()
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", THEIRS)
def test_import_export_import_is_the_identity(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = of_theirs(name, tmp_path / "theirs", tokenizer)
    first = import_hf(str(tmp_path / "theirs"), tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "back")
    second = read_hf(tmp_path / "back")

    assert second.form == first.form
    assert second.encoder_config == first.encoder_config
    assert (second.head, second.labels) == (first.head, first.labels)
    assert set(second.weights) == set(first.weights)
    for key, tensor in first.weights.items():
        assert torch.equal(second.weights[key], tensor), key
    assert_same_outputs(model, tmp_path / "back", THEIRS[name][2])


@torch.inference_mode()
def assert_same_outputs(model: nn.Module, folder: Path, ending: str) -> None:
    again = getattr(transformers, f"AutoModel{ending}").from_pretrained(folder).eval()
    assert type(again) is type(model)
    expected = model.state_dict()
    assert set(again.state_dict()) == set(expected)
    for name, tensor in again.state_dict().items():
        # Those of RoBERTa's rows that no position uses are not kept.
        unused = 2 if name == "roberta.embeddings.position_embeddings.weight" else 0
        assert torch.equal(tensor[unused:], expected[name][unused:]), name
    ids = torch.arange(5, 19).view(2, 7)
    inputs = ids[None] if ending == "ForMultipleChoice" else ids
    for ours, theirs in zip(_tensors(again, inputs), _tensors(model, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def _tensors(model: nn.Module, ids: Tensor) -> list[Tensor]:
    return [tensor for tensor in model(ids).to_tuple() if isinstance(tensor, Tensor)]


def save(
    folder: Path,
    tokenizer: Tokenizer,
    config: EncoderConfig,
    kind: str = "classification",
    head: HeadConfig | None = None,
) -> Path:
    """A checkpoint of ours with fresh weights."""
    head = head or HeadConfig()
    encoder = Encoder(config)
    heads = {
        "classification": lambda: Classification(config, head, 2),
        "regression": lambda: Regression(config, head),
        "masked_lm": lambda: MaskedLM(config, encoder.embeddings.word_embeddings),
    }
    save_checkpoint(
        folder,
        nn.ModuleDict({"encoder": encoder, "head": heads[kind]()}),
        tokenizer,
        encoder_config=config,
        head={"kind": kind, "pooling": head.pooling},
        labels=("no", "yes") if kind == "classification" else (),
    )
    return folder


CONFIG = EncoderConfig(**SIZES)


def test_encoder_without_segments_gets_a_table_of_zeros(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(CONFIG, type_vocab_size=0)
    export_hf(save(tmp_path / "it", tokenizer, config), tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    table = model.bert.embeddings.token_type_embeddings.weight
    assert torch.equal(table, torch.zeros(2, 16))
    told = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the cat", "a dog")
    assert "token_type_ids" not in told


def test_tokenizer_tells_segments_where_there_are_some(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export_hf(save(tmp_path / "it", tokenizer, CONFIG), tmp_path / "out")
    told = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the cat", "a dog")
    assert set(told["token_type_ids"]) == {0, 1}
    assert told["token_type_ids"] == sorted(told["token_type_ids"])


def test_checkpoint_without_a_run_is_as_long_as_its_positions(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export_hf(save(tmp_path / "it", tokenizer, CONFIG), tmp_path / "out")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert found.model_max_length == 20


def test_damaged_weights_are_one_clear_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    place = save(tmp_path / "it", tokenizer, CONFIG)
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="model.safetensors: expected weights in safetensors"):
        export_hf(place, tmp_path / "out")


def test_folder_is_whole_or_not_at_all(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = save(tmp_path / "it", tokenizer, CONFIG)
    export_hf(place, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        export_hf(save(tmp_path / "other", tokenizer, CONFIG, "regression"), tmp_path / "out")
    with pytest.raises(OSError, match="No space left"):
        export_hf(place, tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it", "other", "out"]


def test_checkpoint_stays_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    place = save(tmp_path / "it", tokenizer, CONFIG, "masked_lm")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    export_hf(place, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert load_checkpoint(place).head["kind"] == "masked_lm"
