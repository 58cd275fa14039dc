"""Pretrain a text encoder from raw text and fine-tune it on tasks.

The names below are the public API. Each is imported from its package when first used, so that
`import finetune`, and with it `finetune --help`, does not wait for torch. All classes of settings
are among them.
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
        SpanConfig,
    )
    from finetune.jobs import pretrain
    from finetune.jobs.evaluation import evaluate
    from finetune.jobs.keywords import fit
    from finetune.jobs.prediction import Predictor, load
    from finetune.runs.fits import find_task
    from finetune.runs.settings import FitRun, PretrainRun
    from finetune.task.interface import Example, Task
    from finetune.text.corpus.corpus import CorpusConfig
    from finetune.text.corpus.masking import MaskingConfig
    from finetune.text.features.long_texts import LongConfig
    from finetune.text.features.windows import WindowConfig
    from finetune.text.tokenizer.tokenizer import Tokenizer
    from finetune.text.tokenizer.vocabulary import TokenizerConfig
    from finetune.tracking import TrackingConfig
    from finetune.training.config import (
        CacheConfig,
        CheckpointConfig,
        LoaderConfig,
        RegularizationConfig,
        TrainerConfig,
    )
    from finetune.training.loop.data import CorpusData
    from finetune.training.loop.finetuner import FineTuner
    from finetune.training.loop.pretrainer import Pretrainer
    from finetune.training.loop.progress import LengthConfig
    from finetune.training.loop.task_data import TaskData
    from finetune.training.optimizer import OptimizerConfig
    from finetune.training.schedules import ScheduleConfig
    from finetune.training.unfreezing.policies import UnfreezeConfig

_HOMES = {
    "CacheConfig": "training.config",
    "CheckpointConfig": "training.config",
    "CheckpointError": "errors",
    "Classification": "heads",
    "ConfigError": "errors",
    "CorpusConfig": "text.corpus.corpus",
    "CorpusData": "training.loop.data",
    "DataError": "errors",
    "Encoder": "encoder",
    "EncoderConfig": "encoder",
    "Example": "task.interface",
    "FineTuner": "training.loop.finetuner",
    "FinetuneError": "errors",
    "FitRun": "runs.settings",
    "HeadConfig": "heads",
    "LengthConfig": "training.loop.progress",
    "LoaderConfig": "training.config",
    "LongConfig": "text.features.long_texts",
    "MaskedLM": "heads",
    "MaskingConfig": "text.corpus.masking",
    "MultiLabel": "heads",
    "MultipleChoice": "heads",
    "OptimizerConfig": "training.optimizer",
    "Predictor": "jobs.prediction",
    "PretrainRun": "runs.settings",
    "Pretrainer": "training.loop.pretrainer",
    "Regression": "heads",
    "RegularizationConfig": "training.config",
    "ScheduleConfig": "training.schedules",
    "Span": "heads",
    "SpanConfig": "heads",
    "Task": "task.interface",
    "TaskData": "training.loop.task_data",
    "Tokenizer": "text.tokenizer.tokenizer",
    "TokenizerConfig": "text.tokenizer.vocabulary",
    "TrackingConfig": "tracking",
    "TrainerConfig": "training.config",
    "UnfreezeConfig": "training.unfreezing.policies",
    "WindowConfig": "text.features.windows",
    "evaluate": "jobs.evaluation",
    "find_checkpoint": "checkpoints.hub",
    "find_task": "runs.fits",
    "fit": "jobs.keywords",
    "load": "jobs.prediction",
    "pretrain": "jobs",
}

__all__ = [
    "CacheConfig",
    "CheckpointConfig",
    "CheckpointError",
    "Classification",
    "ConfigError",
    "CorpusConfig",
    "CorpusData",
    "DataError",
    "Encoder",
    "EncoderConfig",
    "Example",
    "FineTuner",
    "FinetuneError",
    "FitRun",
    "HeadConfig",
    "LengthConfig",
    "LoaderConfig",
    "LongConfig",
    "MaskedLM",
    "MaskingConfig",
    "MultiLabel",
    "MultipleChoice",
    "OptimizerConfig",
    "Predictor",
    "PretrainRun",
    "Pretrainer",
    "Regression",
    "RegularizationConfig",
    "ScheduleConfig",
    "Span",
    "SpanConfig",
    "Task",
    "TaskData",
    "Tokenizer",
    "TokenizerConfig",
    "TrackingConfig",
    "TrainerConfig",
    "UnfreezeConfig",
    "WindowConfig",
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
