from __future__ import annotations

from pathlib import Path

import pytest

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.cost import activation_bytes, parameters
from finetune.errors import ConfigError
from finetune.heads import MaskedLM
from finetune.machine import memory
from finetune.training.config import TrainerConfig
from finetune.training.loop.trainer import check_training
from tests.made.nets import tiny_config

GIB = 2**30
SMALL = tiny_config(vocab_size=50)


def has(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "_limits", lambda: iter([int(size), 2**60]))


def test_what_is_counted_is_what_is_made() -> None:
    encoder = Encoder(SMALL)
    head = MaskedLM(SMALL, encoder.embeddings.word_embeddings)
    made = sum(each.numel() for each in encoder.parameters())
    assert parameters(SMALL) == made
    both = {id(each): each.numel() for part in (encoder, head) for each in part.parameters()}
    assert parameters(SMALL, language_model=True) == sum(both.values())


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = parameters(SMALL) * memory.TRAINED
    has(monkeypatch, needed)
    check_training(SMALL, TrainerConfig(accelerator="cpu"))
    has(monkeypatch, needed - 1)
    with pytest.raises(ConfigError, match="training this encoder of .*; this machine has .*lower"):
        check_training(SMALL, TrainerConfig(accelerator="cpu"))
    check_training(SMALL, TrainerConfig(accelerator="cpu"), all_trained=False)
    with pytest.raises(ConfigError, match="this machine has"):
        check_training(SMALL, TrainerConfig(accelerator="cpu", devices=8), all_trained=False)


def test_a_batch_is_counted_where_its_size_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, GIB)
    cpu = TrainerConfig(accelerator="cpu")
    check_training(SMALL, cpu, batch=(32, 128))
    with pytest.raises(ConfigError, match="100,000 sequences of 5,000 tokens needs about .* GiB"):
        check_training(SMALL, cpu, batch=(100_000, 5000))
    saved = EncoderConfig(**{**SMALL.to_dict(), "gradient_checkpointing": True})
    assert activation_bytes(saved, 32, 128) < activation_bytes(SMALL, 32, 128)


def test_an_encoder_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, 1000)
    with pytest.raises(ConfigError, match="an encoder of .* parameters in float32 needs about"):
        Encoder(SMALL)


def test_nothing_is_refused_where_nothing_tells_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_limits", lambda: iter(()))
    memory.check_fits(2**200, "it")


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_swap", lambda: 0)
    machine = memory.machine_bytes()
    assert machine is not None
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.machine_bytes() == machine
    (tmp_path / "memory.max").write_text("123456789\n")
    assert memory.machine_bytes() == 123456789


@pytest.mark.parametrize(
    ("size", "words"),
    [(1600 * GIB, "1,600 GiB"), (GIB, "1 GiB"), (GIB // 4, "0.25 GiB"), (1 << 20, "0.00098 GiB")],
)
def test_bytes_are_told_in_gib(size: int, words: str) -> None:
    assert memory.in_gib(size) == words
