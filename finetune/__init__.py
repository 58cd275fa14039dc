"""Pretrain a text encoder from raw text and fine-tune it on tasks.

The names below are the public face. Each is imported from its room when it is first used, so that
`import finetune`, and with it `finetune --help`, does not wait for torch. The settings of a room
(`finetune.text.CorpusConfig`, `finetune.heads.SpanConfig` …) are imported from there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.encoder import Encoder, EncoderConfig
    from finetune.errors import CheckpointError, ConfigError, DataError, FinetuneError
    from finetune.families import find_task
    from finetune.heads import (
        Classification,
        HeadConfig,
        MaskedLM,
        MultiLabel,
        MultipleChoice,
        Regression,
        Span,
    )
    from finetune.predictor import Predictor, load
    from finetune.pretrained import find_checkpoint
    from finetune.run_settings import FitRun, PretrainRun
    from finetune.runs import fit, pretrain
    from finetune.scoring import evaluate
    from finetune.task import Example, Task
    from finetune.text.tokenizer import Tokenizer
    from finetune.training.data import CorpusData
    from finetune.training.finetuner import FineTuner
    from finetune.training.pretrainer import Pretrainer
    from finetune.training.task_data import TaskData

_HOMES = {
    "CheckpointError": "errors",
    "Classification": "heads",
    "ConfigError": "errors",
    "CorpusData": "training.data",
    "DataError": "errors",
    "Encoder": "encoder",
    "EncoderConfig": "encoder",
    "Example": "task",
    "FineTuner": "training.finetuner",
    "FinetuneError": "errors",
    "FitRun": "run_settings",
    "HeadConfig": "heads",
    "MaskedLM": "heads",
    "MultiLabel": "heads",
    "MultipleChoice": "heads",
    "Predictor": "predictor",
    "PretrainRun": "run_settings",
    "Pretrainer": "training.pretrainer",
    "Regression": "heads",
    "Span": "heads",
    "Task": "task",
    "TaskData": "training.task_data",
    "Tokenizer": "text.tokenizer",
    "evaluate": "scoring",
    "find_checkpoint": "pretrained",
    "find_task": "families",
    "fit": "runs",
    "load": "predictor",
    "pretrain": "runs",
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
