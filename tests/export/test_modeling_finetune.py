"""The code in an exported folder computes what our encoders and heads do, to 1e-5."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finetune.checkpoints.folder import load_checkpoint, save_checkpoint
from finetune.checkpoints.hf import OWN, read_hf
from finetune.checkpoints.hub import import_hf
from finetune.encoder import Encoder, EncoderConfig
from finetune.export import modeling_finetune
from finetune.export.hf import CODE, export_hf
from finetune.export.model import HEADS, load_model
from finetune.heads import ALL_POOLINGS, HeadConfig, MaskedLM
from finetune.heads.pooling import AttentionPooling
from finetune.settings.values import load
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import SIZES

CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"
ROTARY = {"position": "rotary", "norm_position": "pre"}  # as configs/pretrain/tiny.yaml has them
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny.yaml": ROTARY,
    "sinusoidal": {"position": "sinusoidal", "initializer_range": 0.3},
    "no positions": {"position": "none"},
    "learned, pre-norm": {"norm_position": "pre"},
    "first attention without a norm": {**ROTARY, "first_attention_norm": False},
    "local": {**ROTARY, "local_attention": 2, "global_every": 2, "local_rotary_theta": 50.0},
    "norm of the output": {"norm_position": "output"},
    "alibi": {"position": "alibi", "local_attention": 2},
    "alibi, causal, three heads": {"position": "alibi", "causal": True, "num_attention_heads": 3}
    | {"hidden_size": 12},
    "relative": {"position": "relative"},
    "relative, causal, dot": {"position": "relative", "causal": True, "attention_score": "dot"},
    "rms": {"norm": "rms", "embedding_size": 8},
    "no residuals": {**ROTARY, "residual": False},
    "local, otherwise as BERT": {"local_attention": 2, "global_every": 2},
    "causal": {"causal": True},
    "causal, pre-norm": {**ROTARY, "causal": True},
    "dot": {"attention_score": "dot"},
    "bilinear": {"attention_score": "bilinear"},
    "additive": {"attention_score": "additive"},
    "gated": {**ROTARY, "hidden_act": "swiglu"},
    "no segments": {**ROTARY, "type_vocab_size": 0},
    "narrow embeddings": {**ROTARY, "embedding_size": 8},
    "untied": {**ROTARY, "tie_word_embeddings": False},
    "dropout": {**ROTARY, "embedding_dropout_prob": 0.4, "hidden_dropout_prob": 0.2},
}
LABELS = {"classification": ("no", "yes"), "multi_label": ("a", "b", "c"), "choice": ("A", "B")}


def saved(folder: Path, tokenizer: Tokenizer, kind: str, pooling: str, **changes: Any) -> Path:
    """A checkpoint with random weights; norms and statistics are random too."""
    torch.manual_seed(0)
    config = EncoderConfig(**SIZES | changes)
    encoder, labels = Encoder(config), LABELS.get(kind, ())
    made: Any
    if kind == "masked_lm":
        made = MaskedLM(config, encoder.embeddings.word_embeddings)
    else:
        made = HEADS[kind](config, HeadConfig(pooling=pooling), len(labels)) if kind else None
    model = nn.ModuleDict({"encoder": encoder} | ({"head": made} if made is not None else {}))
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5) if "var" in name else nn.init.normal_(
                tensor, mean=float("norm.weight" in name), std=0.2
            )
    head = {"kind": kind, "pooling": pooling} if kind else {}
    save_checkpoint(
        folder, model, tokenizer, encoder_config=config, head=head, task="a/b", labels=labels
    )
    return folder


def batch(kind: str, vocab: int = 60) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab, (4, 9), generator=generator)
    lengths = torch.tensor([9, 6, 3, 1])
    mask = (torch.arange(9) < lengths[:, None]).long()
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 2)}
    if kind == "choice":
        return {name: tensor.unflatten(0, (2, 2)) for name, tensor in given.items()}
    return given


def theirs(folder: Path) -> Any:
    """The exported model, by the classes of the file that is exported."""
    architecture = read_architecture(folder)
    return getattr(modeling_finetune, architecture).from_pretrained(folder).eval()


def read_architecture(folder: Path) -> str:
    config = modeling_finetune.FinetuneConfig.from_pretrained(folder)
    return str(config.architectures[0])


@torch.inference_mode()
def assert_same(place: Path, folder: Path, kind: str) -> None:
    checkpoint = load_checkpoint(place)
    given = batch(kind)
    segments = given["token_type_ids"] if checkpoint.encoder_config.type_vocab_size else None
    expected = load_model(checkpoint)(given["input_ids"], given["attention_mask"], segments)
    found = theirs(folder)(**given).to_tuple()
    assert len(found) == len(expected)
    attended = given["attention_mask"].bool()
    for ours, other in zip(expected, found, strict=True):
        if kind == "regression":
            ours = ours.unsqueeze(-1)
        if kind in ("", "masked_lm"):  # what stands on padding is nobody's answer
            ours, other = ours[attended], other[attended]
        assert ours.float().std() > 1e-3
        torch.testing.assert_close(other, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["", "masked_lm", "classification"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_the_encoder_computes_the_same(
    variant: str, kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    changes = {"initializer_range": 0.1, **VARIANTS[variant]}
    place = saved(tmp_path / "it", tokenizer, kind, "mean", **changes)
    written = export_hf(place, tmp_path / "out")
    assert written.architecture.startswith("Finetune")
    assert written.lacking
    assert_same(place, tmp_path / "out", kind)


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "choice", "span"])
@pytest.mark.parametrize(
    ("causal", "pooling"),
    [(False, name) for name in ALL_POOLINGS]
    + [(True, name) for name in ALL_POOLINGS if name != "cls"],
)
def test_every_head_computes_the_same(
    kind: str, pooling: str, causal: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, kind, pooling, **ROTARY, causal=causal)
    export_hf(place, tmp_path / "out")
    assert_same(place, tmp_path / "out", kind)


def test_a_text_without_tokens_is_zeros_in_both() -> None:
    ours, hidden = AttentionPooling(4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    vectors = modeling_finetune.attended(ours.query, hidden, mask)
    assert torch.equal(vectors, ours(hidden, mask))
    assert not vectors[1].any()
    assert vectors[0].all()


@pytest.mark.parametrize("pooling", sorted(set(ALL_POOLINGS) - {"cls"}))
def test_pooling_that_bert_lacks_takes_the_code_along(
    pooling: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, "classification", pooling)
    written = export_hf(place, tmp_path / "out")
    assert f"bert pools by 'cls' only, got '{pooling}'" in str(written.remark)
    assert_same(place, tmp_path / "out", "classification")


def test_model_that_bert_computes_has_no_code(tokenizer: Tokenizer, tmp_path: Path) -> None:
    place = saved(tmp_path / "it", tokenizer, "classification", "cls")
    written = export_hf(place, tmp_path / "out")
    assert (written.architecture, written.remark) == ("BertForSequenceClassification", None)
    assert not (tmp_path / "out" / CODE).exists()


@pytest.mark.parametrize("name", ["tiny", "mini", "base"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_encoder_of_a_shipped_config_leaves_with_a_classifier(
    name: str, pooling: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    settings = load(CONFIGS / f"{name}.yaml").get("encoder") or {}
    small = {size: SIZES[size] for size in SIZES}
    place = saved(tmp_path / "it", tokenizer, "classification", pooling, **settings | small)
    written = export_hf(place, tmp_path / "out")
    native = name != "tiny" and pooling == "cls"
    assert written.architecture == f"{'Bert' if native else 'Finetune'}ForSequenceClassification"
    if not native:
        assert_same(place, tmp_path / "out", "classification")


def test_reasons_are_all_given_at_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    changes = {**ROTARY, "attention_score": "dot", "hidden_act": "swiglu"}
    place = saved(tmp_path / "it", tokenizer, "classification", "mean", **changes)
    remark = str(export_hf(place, tmp_path / "out").remark)
    for reason in (
        "bert has attention_score 'scaled_dot' only, got 'dot', has position 'learned' only, got",
        "has norm_position 'post' only, got 'pre', has no hidden_act 'swiglu', pools by 'cls' only",
        "modernbert has attention_score 'scaled_dot' only, got 'dot', has first_attention_norm",
        "load it with trust_remote_code=True",
    ):
        assert reason in remark


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        ("masked_lm", "cls"),
        ("classification", "mean"),
        ("classification", "concat"),
        ("regression", "segments-attention"),
        ("span", "cls"),
        ("choice", "max"),
    ],
)
def test_folder_comes_back_bit_for_bit(
    kind: str, pooling: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, kind, pooling, **VARIANTS["local"])
    export_hf(place, tmp_path / "out")
    first, back = load_checkpoint(place), read_hf(tmp_path / "out")
    assert back.encoder_config == first.encoder_config
    assert back.left_out == []
    assert back.head["kind"] == kind
    assert kind in ("masked_lm", "span") or back.head["pooling"] == pooling
    expected = first.weights()
    assert set(back.weights) == set(expected)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in expected.items())
    import_hf(str(tmp_path / "out"), tmp_path / "again")
    export_hf(tmp_path / "again", tmp_path / "out2")
    for name in ("model.safetensors", CODE):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes()


ALONE = """
import sys, torch, transformers
folder, ending = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
kind = getattr(transformers, "AutoModel" + ending)
model = kind.from_pretrained(folder, trust_remote_code=True).eval()
inputs = tokenizer(["a cat", "the dog sat"], padding=True, return_tensors="pt")
with torch.inference_mode():
    before = model(**inputs)[0]
model.save_pretrained(folder + "-again")
tokenizer.save_pretrained(folder + "-again")
again = kind.from_pretrained(folder + "-again", trust_remote_code=True).eval()
with torch.inference_mode():
    assert torch.equal(again(**inputs)[0], before)
print(type(model).__name__, before.shape[0], before.shape[-1])
"""


def run_alone(folder: Path, code: str, *words: object) -> str:
    """What a new Python prints that has no `finetune`, no network and a cache of its own."""
    code = f"import sys; sys.modules['finetune'] = None\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "ending", "shape"),
    [
        ("classification", "ForSequenceClassification", "2 2"),
        ("masked_lm", "ForMaskedLM", "2 60"),
    ],
)
def test_auto_classes_load_the_folder_without_finetune(
    kind: str, ending: str, shape: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, kind, "mean", **ROTARY)
    export_hf(place, tmp_path / "out")
    said = run_alone(tmp_path, ALONE, tmp_path / "out", ending)
    name, _, found = said.splitlines()[-1].partition(" ")
    assert name == f"Finetune{ending or 'Model'}"
    assert found == shape


@pytest.mark.parametrize("kind", ["multi_label", "span"])
def test_example_of_the_card_runs_as_it_stands(
    kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export_hf(saved(tmp_path / "it", tokenizer, kind, "mean", **ROTARY), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert "trust_remote_code=True" in code
    assert run_alone(tmp_path, code).strip()


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("classification", {"labels": torch.tensor([0, 1, 1, 0])}),
        ("multi_label", {"labels": torch.tensor([[0, 1, 1]] * 4)}),
        ("regression", {"labels": torch.tensor([0.5, 1.0, 2.0, 0.0])}),
        ("choice", {"labels": torch.tensor([0, 1])}),
        ("masked_lm", {"labels": torch.randint(5, 60, (4, 9))}),
        ("span", {"start_positions": torch.zeros(4), "end_positions": torch.zeros(4)}),
    ],
)
def test_model_is_trained_further_there(
    kind: str, labels: dict[str, Tensor], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, kind, "mean", **ROTARY)
    export_hf(place, tmp_path / "out")
    model = theirs(tmp_path / "out").train()
    if kind == "span":
        labels = {name: value.long() for name, value in labels.items()}
    loss = model(**batch(kind), **labels).loss
    assert loss.ndim == 0
    assert loss > 0
    loss.backward()
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert missing == []


def test_hidden_states_and_attentions_are_given_where_asked(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = saved(tmp_path / "it", tokenizer, "", "cls", **ROTARY)
    export_hf(place, tmp_path / "out")
    encoder = load_checkpoint(place).encoder()
    given = batch("")
    with torch.inference_mode():
        found = theirs(tmp_path / "out")(**given, output_hidden_states=True, output_attentions=True)
        ours = encoder(
            {**given, "attention_mask": given["attention_mask"].bool()},
            output_hidden_states=True,
            output_attentions=True,
        )
    for name in ("hidden_states", "attentions"):
        for one, other in zip(getattr(found, name), getattr(ours, name), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_config_has_the_defaults_of_the_encoder() -> None:
    theirs_config = modeling_finetune.FinetuneConfig()
    settings = EncoderConfig().to_dict()
    of_training = {"gradient_checkpointing", "locked_dropout", "word_dropout_prob", "memory"}
    refused = {"block", "lstm_size", "weight_dropout_prob", "conv_widths"}
    refused |= {"local_pattern", "global_tokens"}
    for name in settings.keys() - of_training - refused:
        assert getattr(theirs_config, name) == settings[name], name


@pytest.mark.parametrize("setting", [{"global_tokens": "cls"}, {"local_pattern": "strided"}])
def test_what_the_exported_code_does_not_compute_is_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    config = EncoderConfig(local_attention=2, **setting)
    (reason,) = OWN.lacks(config, None, "cls")
    assert name in reason
