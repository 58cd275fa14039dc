"""Pretrain a text encoder from raw text and fine-tune it on tasks.

The names below are the public API. Each is imported from its package when first used, so that
`import finetune`, and with it `finetune --help`, does not wait for torch. The settings of a package
(`finetune.text.CorpusConfig`, `finetune.heads.SpanConfig` …) are imported from there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.checkpoints.hub import find_checkpoint
    from finetune.encoder import Encoder, EncoderConfig
    from finetune.errors import CheckpointError, ConfigError, DataError, FinetuneError
    from finetune.heads import (
        Classification,
        HeadConfig,
        MaskedLM,
        MultiLabel,
        MultipleChoice,
        Regression,
        Span,
    )
    from finetune.jobs import fit, pretrain
    from finetune.jobs.evaluation import evaluate
    from finetune.jobs.prediction import Predictor, load
    from finetune.runs.families import find_task
    from finetune.runs.settings import FitRun, PretrainRun
    from finetune.task.interface import Example, Task
    from finetune.text.tokenizer.tokenizer import Tokenizer
    from finetune.training.loop.data import CorpusData
    from finetune.training.loop.finetuner import FineTuner
    from finetune.training.loop.pretrainer import Pretrainer
    from finetune.training.loop.task_data import TaskData

_HOMES = {
    "CheckpointError": "errors",
    "Classification": "heads",
    "ConfigError": "errors",
    "CorpusData": "training.loop.data",
    "DataError": "errors",
    "Encoder": "encoder",
    "EncoderConfig": "encoder",
    "Example": "task.interface",
    "FineTuner": "training.loop.finetuner",
    "FinetuneError": "errors",
    "FitRun": "runs.settings",
    "HeadConfig": "heads",
    "MaskedLM": "heads",
    "MultiLabel": "heads",
    "MultipleChoice": "heads",
    "Predictor": "jobs.prediction",
    "PretrainRun": "runs.settings",
    "Pretrainer": "training.loop.pretrainer",
    "Regression": "heads",
    "Span": "heads",
    "Task": "task.interface",
    "TaskData": "training.loop.task_data",
    "Tokenizer": "text.tokenizer.tokenizer",
    "evaluate": "jobs.evaluation",
    "find_checkpoint": "checkpoints.hub",
    "find_task": "runs.families",
    "fit": "jobs",
    "load": "jobs.prediction",
    "pretrain": "jobs",
}

__all__ = [
    "CheckpointError",
    "Classification",
    "ConfigError",
    "CorpusData",
    "DataError",
    "Encoder",
    "EncoderConfig",
    "Example",
    "FineTuner",
    "FinetuneError",
    "FitRun",
    "HeadConfig",
    "MaskedLM",
    "MultiLabel",
    "MultipleChoice",
    "Predictor",
    "PretrainRun",
    "Pretrainer",
    "Regression",
    "Span",
    "Task",
    "TaskData",
    "Tokenizer",
    "evaluate",
    "find_checkpoint",
    "find_task",
    "fit",
    "load",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"finetune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
