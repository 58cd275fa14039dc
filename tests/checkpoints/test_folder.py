"""A checkpoint folder is whole or not there, holds no code, and gives back what was put in."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from finetune.checkpoints.folder import (
    Checkpoint,
    find_folder,
    load_checkpoint,
    load_trainer_state,
    save_checkpoint,
)
from finetune.checkpoints.stored import load_weights
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError
from finetune.files import writing as files
from finetune.heads import Classification, HeadConfig, MaskedLM, Regression
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        ["the cat sees the dog", "a dog sees a cat"] * 9, TokenizerConfig(vocab_size=24)
    )


class Model(nn.Module):
    """What a checkpoint is made from."""

    def __init__(self, head: Callable[[Encoder], nn.Module], seed: int = 0, **encoder: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 32, "max_position_embeddings": 8, "vocab_size": 24}
        self.encoder = Encoder(EncoderConfig(**sizes | encoder))
        self.head = head(self.encoder)


def masked_lm(encoder: Encoder) -> nn.Module:
    return MaskedLM(encoder.config, encoder.embeddings.word_embeddings)


def classification(pooling: str) -> Callable[[Encoder], nn.Module]:
    return lambda encoder: Classification(encoder.config, HeadConfig(pooling), 3)


def regression(encoder: Encoder) -> nn.Module:
    return Regression(encoder.config, HeadConfig())


def save(folder: Path, model: Model, tokenizer: Tokenizer, **more: Any) -> None:
    config = model.encoder.config
    save_checkpoint(folder, model, tokenizer, encoder_config=config, head={"kind": "any"}, **more)


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


MODELS = {
    "tied": (masked_lm, {}),
    "untied": (masked_lm, {"tie_word_embeddings": False}),
    "factorised": (masked_lm, {"embedding_size": 8}),
    "cls": (classification("cls"), {}),
    "concat": (classification("concat"), {"norm_position": "pre"}),
    "regression": (regression, {"attention_score": "additive", "position": "rotary"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_saved(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    head, encoder = MODELS[name]
    saved, loaded = Model(head, seed=1, **encoder), Model(head, seed=2, **encoder)
    if name == "concat":  # moves the running statistics of its batch normalisation
        saved.head(torch.randn(4, 5, 16))
    save(tmp_path / "it", saved, tokenizer, task="glue/x", labels=("no", "yes"))
    checkpoint = load_checkpoint(tmp_path / "it")
    checkpoint.load_into(loaded)
    assert_same(loaded.state_dict(), saved.state_dict())
    assert_same(checkpoint.encoder().state_dict(), saved.encoder.state_dict())
    assert not checkpoint.encoder().training
    assert checkpoint.encoder_config == saved.encoder.config
    assert (checkpoint.task, checkpoint.labels) == ("glue/x", ("no", "yes"))
    assert checkpoint.head == {"kind": "any"}
    assert checkpoint.tokenizer().fingerprint == tokenizer.fingerprint


def test_tied_embeddings_are_stored_once_and_stay_tied(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save(tmp_path / "it", Model(masked_lm), tokenizer)
    checkpoint = load_checkpoint(tmp_path / "it")
    shape = (24, 16)
    tables = [name for name, tensor in checkpoint.weights().items() if tensor.shape == shape]
    assert tables == ["encoder.embeddings.word_embeddings.weight"]
    loaded = Model(masked_lm, seed=2)
    checkpoint.load_into(loaded)
    assert loaded.head.weight is loaded.encoder.embeddings.word_embeddings.weight


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


STAGES = {
    "the weights": (safetensors.torch, "save_file"),
    "config.json": (Path, "write_text"),
    "the tokenizer": (Tokenizer, "save"),
    "the trainer's state": (torch, "save"),
    "flushing": (os, "fsync"),
    "making the folder": (Path, "mkdir"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_at_any_stage_leaves_the_old_checkpoint(
    stage: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old = tmp_path / "last", Model(masked_lm, seed=1)
    save(folder, old, tokenizer, trainer_state={"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(*STAGES[stage], full_disk)
        with pytest.raises(OSError, match="No space left"):
            save(folder, Model(masked_lm, seed=2), tokenizer, trainer_state={"step": 2})
    assert_same(load_checkpoint(folder).weights(), dict(old.state_dict()))
    assert load_trainer_state(folder) == {"step": 1}
    assert os.listdir(tmp_path) == ["last"]


class Killed(BaseException):
    """The process is gone: no handler runs after it."""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_at_any_rename_leaves_a_whole_checkpoint(
    renames: int, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 0 renames the old one is there, after 1 it has another name, after 2 the new one."""
    folder, rename, left = tmp_path / "best", Path.rename, iter(range(renames))
    models = {seed: Model(masked_lm, seed=seed) for seed in (1, 2, 3)}
    save(folder, models[1], tokenizer, trainer_state={"step": 1})

    def dying(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return rename(self, target)

    def dying_after(path: Path) -> None:
        if path.exists():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        if renames == 2:
            patch.setattr(files, "remove", dying_after)
        with pytest.raises(Killed):
            save(folder, models[2], tokenizer, trainer_state={"step": 2})
    kept = 2 if renames == 2 else 1
    found = find_folder(folder)
    assert found == (files.old_of(folder) if renames == 1 else folder)
    assert_same(load_checkpoint(folder).weights(), dict(models[kept].state_dict()))
    assert load_trainer_state(folder) == {"step": kept}
    save(folder, models[3], tokenizer)  # and the next one cleans up
    assert_same(load_checkpoint(folder).weights(), dict(models[3].state_dict()))
    assert os.listdir(tmp_path) == ["best"]


def test_what_does_not_fit_is_named() -> None:
    model = Model(masked_lm)
    weights = dict(model.state_dict())
    where = Path("it")
    bias = weights.pop("head.bias")
    with pytest.raises(CheckpointError, match=r"1 missing \['head.bias'\] and 0 unknown \[\]"):
        load_weights(model, weights, where)
    weights |= {"head.bias": bias, "head.more": bias}
    with pytest.raises(CheckpointError, match=r"0 missing \[\] and 1 unknown \['head.more'\]"):
        load_weights(model, weights, where)
    del weights["head.more"]
    weights["head.bias"] = bias[:-1]
    with pytest.raises(CheckpointError, match=r"head.bias should have shape \(24,\), got \(23,\)"):
        load_weights(model, weights, where)


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save(tmp_path / "it", Model(masked_lm, vocab_size=20), tokenizer)
    with pytest.raises(CheckpointError, match="the tokenizer has 24 tokens .* 20 rows; use the"):
        load_checkpoint(tmp_path / "it").tokenizer()


class Evil:
    """Runs code where a pickle of it is read without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


def test_no_code_is_read_from_a_trainer_state(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    save(tmp_path / "last", Model(masked_lm), tokenizer)
    torch.save({"step": Evil()}, tmp_path / "last" / "trainer.pt")
    with pytest.raises(CheckpointError, match=r"trainer.pt: expected the state .* --overwrite"):
        load_trainer_state(tmp_path / "last")
    assert not (tmp_path / "evil").exists()


def test_a_trainer_state_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], fused=True)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "best": None, "names": ["a"], "seconds": 0.5}
    save(tmp_path / "last", Model(masked_lm), tokenizer, trainer_state=state)
    read = load_trainer_state(tmp_path / "last")
    assert read is not None
    assert {**read, "optimizer": None} == {**state, "optimizer": None}
    moments = read["optimizer"]["state"][0]
    assert torch.equal(moments["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_without_a_trainer_state_there_is_nothing_to_resume(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert load_trainer_state(tmp_path / "last") is None
    save(tmp_path / "last", Model(masked_lm), tokenizer)
    assert load_trainer_state(tmp_path / "last") is None


def test_of_a_run_the_best_checkpoint_is_taken_else_the_last(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for name in ("last", "best"):
        place = tmp_path / "checkpoints" / name
        save(place, Model(masked_lm), tokenizer)
        assert load_checkpoint(tmp_path).folder == place


def broken(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    save(tmp_path / "it", Model(masked_lm), tokenizer)
    return tmp_path / "it"


def test_damaged_weights_are_one_clear_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    weights = broken(tokenizer, tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    checkpoint: Checkpoint = load_checkpoint(tmp_path / "it")
    with pytest.raises(CheckpointError, match="model.safetensors: expected weights in safetensors"):
        checkpoint.weights()
    weights.unlink()
    with pytest.raises(CheckpointError, match="model.safetensors: expected weights in safetensors"):
        checkpoint.weights()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json: expected JSON, got"),
        (json.dumps({"model_type": "bert"}), "another format; .* must be imported first"),
        (
            json.dumps({"format": "finetune", "format_version": 1}),
            "expected a field 'encoder', got none",
        ),
        (
            json.dumps({"format": "finetune", "format_version": 99}),
            "expected format_version 1, got 99; use the version of finetune that wrote it",
        ),
        ("[]", "expected a JSON object, got list"),
    ],
)
def test_a_damaged_config_is_one_clear_error(
    text: str, message: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (broken(tokenizer, tmp_path) / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "it")


def test_where_there_is_no_checkpoint_the_error_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="got neither; give the --out of a pretraining run"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="got no such folder"):
        load_checkpoint(tmp_path / "nowhere")
