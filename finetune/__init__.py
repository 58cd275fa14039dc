"""Pretrain a text encoder from raw text and fine-tune it on tasks.

The names below are the public face. Each is imported from its room when it is first used, so that
`import finetune`, and with it `finetune --help`, does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.checkpoint import Checkpoint, load_checkpoint
    from finetune.encoder import Encoder, EncoderConfig
    from finetune.errors import CheckpointError, ConfigError, DataError, FinetuneError
    from finetune.heads import Classification, HeadConfig, MaskedLM, Regression
    from finetune.predictor import Predictor, load
    from finetune.run_settings import FitRun, PretrainRun
    from finetune.runs import fit, pretrain
    from finetune.scoring import evaluate
    from finetune.task import Example, Task
    from finetune.text.tokenizer import Tokenizer
    from finetune.training.finetuner import FineTuner
    from finetune.training.pretrainer import Pretrainer

_HOMES = {
    "Checkpoint": "checkpoint",
    "CheckpointError": "errors",
    "Classification": "heads",
    "ConfigError": "errors",
    "DataError": "errors",
    "Encoder": "encoder",
    "EncoderConfig": "encoder",
    "Example": "task",
    "FineTuner": "training.finetuner",
    "FinetuneError": "errors",
    "FitRun": "run_settings",
    "HeadConfig": "heads",
    "MaskedLM": "heads",
    "Predictor": "predictor",
    "PretrainRun": "run_settings",
    "Pretrainer": "training.pretrainer",
    "Regression": "heads",
    "Task": "task",
    "Tokenizer": "text.tokenizer",
    "evaluate": "scoring",
    "fit": "runs",
    "load": "predictor",
    "load_checkpoint": "checkpoint",
    "pretrain": "runs",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Classification",
    "ConfigError",
    "DataError",
    "Encoder",
    "EncoderConfig",
    "Example",
    "FineTuner",
    "FinetuneError",
    "FitRun",
    "HeadConfig",
    "MaskedLM",
    "Predictor",
    "PretrainRun",
    "Pretrainer",
    "Regression",
    "Task",
    "Tokenizer",
    "evaluate",
    "fit",
    "load",
    "load_checkpoint",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"finetune.{_HOMES[name]}"), name)
