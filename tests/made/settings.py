"""Settings for runs of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.runs.settings import PretrainRun
from finetune.text.corpus.corpus import CorpusConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig
from finetune.tracking import TrackingConfig
from finetune.training.config import CheckpointConfig, LoaderConfig, TrainerConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.optimizer import OptimizerConfig
from tasks.run_settings import GlueRun
from tests.made.nets import tiny_config

BLOCKS = CorpusConfig(max_length=16, validation_fraction=0.1)
"""Blocks of 16 tokens, a tenth of the documents held out."""


def pretraining(corpus: Path, out: Path, *, workers: int = 0, **changes: Any) -> PretrainRun:
    """A pretraining of 25 steps, with BERT's dropout: what resuming has to get right."""
    defaults: dict[str, Any] = {
        "corpus": [str(corpus)],
        "out": str(out),
        "cache_dir": str(out.parent / "cache"),
        "encoder": tiny_config(),
        "vocabulary": TokenizerConfig(vocab_size=60),
        "data": BLOCKS,
        "loader": LoaderConfig(batch_size=16, num_workers=workers),
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "length": LengthConfig(max_steps=25),
        "trainer": TrainerConfig(log_every_steps=5, validate_every_steps=6, progress=False),
        "checkpoints": CheckpointConfig(checkpoint_every_steps=4),
        "tracking": TrackingConfig(wandb=False),
    }
    return PretrainRun(**{**defaults, **changes})


def fine_tuning(data: Path, out: Path, **changes: Any) -> GlueRun:
    """Three epochs of SST-2, from random weights, with BERT's dropout."""
    defaults: dict[str, Any] = {
        "encoder_from": "none",
        "task": "glue/sst2",
        "out": str(out),
        "data": str(data),
        "cache_dir": str(out.parent / "cache"),
        "max_length": 16,
        "encoder": tiny_config(),
        "loader": LoaderConfig(batch_size=8),
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "length": LengthConfig(max_epochs=3),
        "trainer": TrainerConfig(log_every_steps=5, progress=False),
        "checkpoints": CheckpointConfig(checkpoint_every_steps=4),
        "tracking": TrackingConfig(wandb=False),
    }
    return GlueRun(**{**defaults, **changes})
