"""What a folder of Hugging Face holds is taken over or named; nothing is passed over silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from finetune.checkpoints.hf import read_hf
from finetune.errors import CheckpointError

Make = Callable[..., Any]
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
WORDS = "bert.embeddings.word_embeddings.weight"


def write(folder: Path, tensors: dict[str, Tensor], **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **settings}))
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def edit(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_every_tensor_is_named_once(make: Make, tmp_path: Path) -> None:
    make("ForPreTraining", tmp_path)
    found = read_hf(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sorted([*found.kept, *found.left_out]) == sorted(stored)
    assert found.left_out == ["cls.seq_relationship.bias", "cls.seq_relationship.weight"]
    assert found.head == {"kind": "masked_lm"}
    assert {"pooler.weight", "pooler.bias", "head.dense.weight"} <= set(found.weights)


def test_pooler_of_a_plain_model_is_kept(make: Make, tmp_path: Path) -> None:
    theirs = make("Model", tmp_path)
    found = read_hf(tmp_path)
    assert (found.head, found.left_out, found.labels) == ({}, [], ())
    assert torch.equal(found.weights["pooler.weight"], theirs.pooler.dense.weight)


def test_model_without_a_pooler_has_none(make: Make, tmp_path: Path) -> None:
    make("ForMaskedLM", tmp_path)
    assert not [key for key in read_hf(tmp_path).weights if key.startswith("pooler.")]


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize("norms", [("weight", "bias"), ("gamma", "beta")])
def test_names_of_older_versions_are_read(
    prefix: str, norms: tuple[str, str], make: Make, tmp_path: Path
) -> None:
    def old(name: str) -> str:
        if "LayerNorm" in name:
            name = name.replace("weight", norms[0]).replace("bias", norms[1])
        return prefix + name

    state = make("Model").state_dict()
    tensors = {old(name): tensor for name, tensor in state.items()}
    tensors[f"{prefix}embeddings.position_ids"] = torch.arange(16)[None]
    found = read_hf(write(tmp_path / "it", tensors, architectures=["BertModel"]))
    assert found.left_out == [f"{prefix}embeddings.position_ids"]
    for ours, theirs in found.form.pairs(found.encoder_config, None):
        assert torch.equal(found.weights[ours], state[theirs.removeprefix("bert.")])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_become_float32(
    dtype: torch.dtype, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    found = read_hf(write(tmp_path / "it", {name: each.to(dtype) for name, each in stored.items()}))
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}
    words = found.weights["encoder.embeddings.word_embeddings.weight"]
    assert torch.equal(words, stored[WORDS].to(dtype).float())


def test_tied_output_weights_are_kept_by_name_only(
    stored: dict[str, Tensor], tmp_path: Path
) -> None:
    output = "cls.predictions.decoder.weight"
    found = read_hf(write(tmp_path / "it", {**stored, output: stored[WORDS].clone()}))
    assert output in found.kept
    assert "head.decoder.weight" not in found.weights
    other = read_hf(write(tmp_path / "other", {**stored, output: stored[WORDS] + 1}))
    assert other.left_out == [output]  # config.json ties it: other numbers there are not used


@pytest.mark.parametrize("alone", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_bias_of_masked_lm_has_two_names(
    alone: str, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    names = {"cls.predictions.bias", "cls.predictions.decoder.bias"}
    tensors = {name: each for name, each in stored.items() if name not in names - {alone}}
    found = read_hf(write(tmp_path / "it", tensors))
    assert torch.equal(found.weights["head.bias"], stored["cls.predictions.bias"])
    assert alone in found.kept


def test_two_biases_for_one_output_are_refused(stored: dict[str, Tensor], tmp_path: Path) -> None:
    tensors = {**stored, "cls.predictions.decoder.bias": torch.zeros(40)}
    message = "expected the same numbers in cls.predictions.decoder.bias and cls.predictions.bias"
    with pytest.raises(CheckpointError, match=message):
        read_hf(write(tmp_path / "it", tensors))


@pytest.mark.parametrize(
    ("problem", "labels", "kind"),
    [
        ("single_label_classification", 3, "classification"),
        ("multi_label_classification", 3, "multi_label"),
        ("regression", 1, "regression"),
        (None, 1, "regression"),
        (None, 2, "classification"),
        ("regression", 2, None),  # ours predicts one number
    ],
)
def test_kind_of_a_classifier_follows_the_problem(
    problem: str | None, labels: int, kind: str | None, make: Make, tmp_path: Path
) -> None:
    make("ForSequenceClassification", tmp_path, problem_type=problem, num_labels=labels)
    found = read_hf(tmp_path)
    assert found.head.get("kind") == kind
    named = kind in ("classification", "multi_label")
    assert found.labels == tuple(f"LABEL_{n}" for n in range(labels) if named)
    if kind is None:
        assert found.left_out == ["classifier.bias", "classifier.weight"]
        assert "pooler.weight" in found.weights


@pytest.mark.parametrize(
    ("family", "ending", "left_out"),
    [
        ("Bert", "ForTokenClassification", {"classifier"}),
        ("Bert", "ForNextSentencePrediction", {"cls.seq_relationship"}),
        ("Roberta", "ForTokenClassification", {"classifier"}),
        ("Electra", "ForPreTraining", {"discriminator_predictions"}),
        ("Electra", "ForSequenceClassification", {"classifier"}),
        ("Electra", "ForMultipleChoice", {"classifier", "sequence_summary"}),
    ],
)
def test_head_that_computes_something_else_is_left_out_by_name(
    family: str, ending: str, left_out: set[str], make: Make, tmp_path: Path
) -> None:
    make(ending, tmp_path, family, **({"num_choices": 2} if "Choice" in ending else {}))
    found = read_hf(tmp_path)
    assert found.head == {}
    for start in left_out:
        assert any(name.startswith(f"{start}.") for name in found.left_out)
    assert all(name.startswith(tuple(left_out)) for name in found.left_out)


def test_relu_behind_the_pooled_token_is_no_head_of_ours(make: Make, tmp_path: Path) -> None:
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    make("ForSequenceClassification", tmp_path, "DistilBert", **sizes)
    assert {name.partition(".")[0] for name in read_hf(tmp_path).left_out} == {
        "pre_classifier",
        "classifier",
    }


def test_masked_lm_head_with_another_activation_is_left_out(make: Make, tmp_path: Path) -> None:
    make("ForMaskedLM", tmp_path, "Roberta", hidden_act="relu", pad_token_id=1)
    found = read_hf(tmp_path)  # RoBERTa's head has gelu whatever its blocks have
    assert found.head == {}
    assert "lm_head.dense.weight" in found.left_out


def test_unused_positions_of_roberta_are_dropped(make: Make, tmp_path: Path) -> None:
    theirs = make("Model", tmp_path, "Roberta", pad_token_id=1)
    found = read_hf(tmp_path)
    assert found.encoder_config.max_position_embeddings == 14
    positions = found.weights["encoder.embeddings.position_embeddings.weight"]
    assert torch.equal(positions, theirs.embeddings.position_embeddings.weight[2:])


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_folder_of_a_sentence_encoder_is_read(place: str, make: Make, tmp_path: Path) -> None:
    make("Model", tmp_path / place)
    kind = "sentence_transformers.models."
    modules = [{"path": place, "type": f"{kind}Transformer"}]
    modules += [{"path": "1_Pooling", "type": f"{kind}Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    found = read_hf(tmp_path)
    assert found.folder == tmp_path / place
    assert found.left_out == ["1_Pooling (sentence_transformers.models.Pooling)"]


def refused(message: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_hf(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": None}, "expected a model_type that can be imported, got none"),
        ({"model_type": "llama"}, "got 'llama'; choose one of bert"),
        ({"model_type": "robertA"}, "did you mean 'roberta'?"),
        ({"model_type": "albert"}, "albert cannot be imported: all its blocks share one set of we"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'absolute', got"),
        ({"is_decoder": True}, "expected is_decoder False, got True"),
        ({"hidden_act": "tanhexp"}, "unknown hidden_act 'tanhexp'; choose one of"),
        ({"hidden_act": "gelu_nw"}, "did you mean 'gelu_new'?"),
        ({"hidden_act": ["gelu"]}, "unknown hidden_act .'gelu'.; did you mean 'gelu'"),
        ({"model_type": ["bert"]}, "expected a model_type that can be imported, got .'bert'.;"),
        ({"num_attention_heads": 3}, "num_attention_heads .3. must divide hidden_size .16."),
        ({"hidden_size": "16"}, "hidden_size must be a whole number from 1 to .*, got '16'"),
        ({"quantization_config": {}}, "expected plain weights, got a quantization_config"),
    ],
)
def test_field_that_ours_cannot_express_is_named(
    settings: dict[str, Any], message: str, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    refused(message, write(tmp_path / "it", stored, **settings))


def test_tensor_that_is_missing_is_named(stored: dict[str, Tensor], tmp_path: Path) -> None:
    name = "bert.encoder.layer.1.output.dense.bias"
    del stored[name]
    refused(f"got 1 missing, the first of them {name}", write(tmp_path / "it", stored))
    stored[name] = torch.zeros(16)
    del stored["cls.predictions.transform.dense.bias"]
    refused("first of them cls.predictions.transform.dense.bias", write(tmp_path / "it", stored))


def test_tensor_that_belongs_nowhere_is_named(stored: dict[str, Tensor], tmp_path: Path) -> None:
    name = "bert.encoder.layer.2.output.dense.bias"  # a block more than config.json tells of
    folder = write(tmp_path / "it", {**stored, name: torch.zeros(16)})
    refused(f"{name} is not a tensor of a bert model with these settings", folder)


def test_tensor_of_another_shape_is_named(stored: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write(tmp_path / "it", stored, vocab_size=41)
    refused(rf"{WORDS} should be floating-point \(41, 16\), got float32 \(40, 16\)", folder)


def test_whole_numbers_are_no_weights(stored: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write(tmp_path / "it", {**stored, WORDS: stored[WORDS].to(torch.int8)})
    refused(rf"{WORDS} should be floating-point \(40, 16\), got int8", folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(
    value: float, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    stored[WORDS][3, 4] = value
    refused(
        f"expected finite numbers in {WORDS}, got NaN or infinity", write(tmp_path / "it", stored)
    )


def test_tensor_under_two_names_is_refused(stored: dict[str, Tensor], tmp_path: Path) -> None:
    norm = "bert.embeddings.LayerNorm.gamma"
    refused(
        "expected each tensor once, got .*LayerNorm.* under two names",
        write(tmp_path / "it", stored | {norm: stored[norm.replace("gamma", "weight")]}),
    )


def test_labels_out_of_order_are_refused(make: Make, tmp_path: Path) -> None:
    make("ForSequenceClassification", tmp_path)
    edit(tmp_path, id2label={"1": "no", "2": "yes"})
    refused("expected id2label with a name for 0, 1, 2", tmp_path)


@pytest.mark.parametrize("count", ["two", None, [2]])
def test_count_of_labels_that_is_no_number_is_refused(
    count: object, make: Make, tmp_path: Path
) -> None:
    make("ForSequenceClassification", tmp_path)
    edit(tmp_path, id2label=None, num_labels=count)
    refused("expected num_labels to be a whole number from 1 to 1,000,000, got ", tmp_path)


@pytest.mark.parametrize("named", [3, {"a": "BertModel"}, [], None, "BertModel"])
def test_architectures_that_are_no_list_name_none(
    named: object, make: Make, tmp_path: Path
) -> None:
    make("ForMaskedLM", tmp_path)
    edit(tmp_path, architectures=named)
    assert read_hf(tmp_path).head == {"kind": "masked_lm"}  # the tensors tell
