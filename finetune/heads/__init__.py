"""Heads: hidden states to logits, and logits with labels to a loss.

A head knows the encoder's sizes and nothing of the task: many tasks share few heads. Losses are
computed in float32 whatever the logits' precision.
"""

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.heads.choice import MultipleChoice
    from finetune.heads.config import ALL_POOLINGS, HeadConfig, SpanConfig
    from finetune.heads.masked_lm import MaskedLM
    from finetune.heads.pooled import BatchNorm, Classification, MultiLabel, PooledHead, Regression
    from finetune.heads.pooling import POOLINGS, text_segments
    from finetune.heads.protocol import (
        IGNORED,
        Head,
        TaskHead,
        cross_entropy,
        head_logits,
        reads_one,
        states_for,
        suffix_for,
    )
    from finetune.heads.seq2seq import Seq2Seq
    from finetune.heads.span import Span, best_spans

__all__ = [
    "ALL_POOLINGS",
    "IGNORED",
    "POOLINGS",
    "BatchNorm",
    "Classification",
    "Head",
    "HeadConfig",
    "MaskedLM",
    "MultiLabel",
    "MultipleChoice",
    "PooledHead",
    "Regression",
    "Seq2Seq",
    "Span",
    "SpanConfig",
    "TaskHead",
    "best_spans",
    "cross_entropy",
    "head_logits",
    "reads_one",
    "states_for",
    "suffix_for",
    "text_segments",
]

__getattr__ = lazy_names(
    __name__,
    __all__,
    ("config", "pooling", "protocol", "pooled", "choice", "masked_lm", "span", "seq2seq"),
)
