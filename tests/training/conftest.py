"""A small corpus, a small labelled task, and settings for runs of seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.encoder import EncoderConfig
from finetune.runs.settings import PretrainRun
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.tracking import TrackingConfig
from finetune.training.loop.checkpointing import CheckpointConfig
from finetune.training.loop.data import LoaderConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.trainer import TrainerConfig
from finetune.training.optimizer import OptimizerConfig
from tasks.run_settings import GlueRun

WORDS = (
    "the a cat dog bird sees hears likes red blue small old house tree river and but near".split()
)
ENCODER = EncoderConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
"""With BERT's dropout: what resuming has to get right."""


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(sentences(0, 300)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(sentences(0, 300), TokenizerConfig(vocab_size=60))


@pytest.fixture(scope="session")
def blocks(corpus: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus in blocks of 16 tokens, a tenth of its documents held out."""
    config = CorpusConfig(max_length=16, validation_fraction=0.1)
    return build_corpus([corpus], tokenizer, config, 1, tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SST-2 whose label says whether the first word is `the`."""
    root: Path = tmp_path_factory.mktemp("data")
    folder = root / "glue_data" / "SST-2"
    folder.mkdir(parents=True)
    for split, seed, count in (("train", 1, 90), ("dev", 2, 30)):
        rows = [f"{text}\t{int(text.startswith('the'))}" for text in sentences(seed, count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return root


@pytest.fixture
def pretraining(corpus: Path, tmp_path: Path) -> Callable[..., PretrainRun]:
    def make(out: str, *, workers: int = 0, **changes: Any) -> PretrainRun:
        defaults: dict[str, Any] = {
            "corpus": [str(corpus)],
            "out": str(tmp_path / out),
            "cache_dir": str(tmp_path / "cache"),
            "encoder": ENCODER,
            "vocabulary": TokenizerConfig(vocab_size=60),
            "data": CorpusConfig(max_length=16, validation_fraction=0.1),
            "loader": LoaderConfig(batch_size=16, num_workers=workers),
            "optimizer": OptimizerConfig(learning_rate=1e-2),
            "length": LengthConfig(max_steps=25),
            "trainer": TrainerConfig(log_every_steps=5, validate_every_steps=6, progress=False),
            "checkpoints": CheckpointConfig(checkpoint_every_steps=4),
            "tracking": TrackingConfig(wandb=False),
        }
        return PretrainRun(**{**defaults, **changes})

    return make


@pytest.fixture
def fine_tuning(data: Path, tmp_path: Path) -> Callable[..., GlueRun]:
    def make(out: str, **changes: Any) -> GlueRun:
        defaults: dict[str, Any] = {
            "encoder_from": "none",
            "task": "glue/sst2",
            "out": str(tmp_path / out),
            "data": str(data),
            "cache_dir": str(tmp_path / "cache"),
            "max_length": 16,
            "encoder": ENCODER,
            "loader": LoaderConfig(batch_size=8),
            "optimizer": OptimizerConfig(learning_rate=1e-2),
            "length": LengthConfig(max_epochs=3),
            "trainer": TrainerConfig(log_every_steps=5, progress=False),
            "checkpoints": CheckpointConfig(checkpoint_every_steps=4),
            "tracking": TrackingConfig(wandb=False),
        }
        return GlueRun(**{**defaults, **changes})

    return make
