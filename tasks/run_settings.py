"""The settings of a fine-tuning run of each family: those of every run, and the family's."""

from __future__ import annotations

from dataclasses import dataclass, field

from finetune.heads.span import SpanConfig
from finetune.ranges import MOST_TOKENS, within
from finetune.runs.settings import FitRun
from finetune.text.features.windows import WindowConfig
from tasks.own.text import ClassifyConfig


def _text_sets() -> list[str]:
    from tasks.own.text_sets import TEXT_SETS

    return list(TEXT_SETS)


@dataclass
class GlueRun(FitRun):
    """Fine-tune an encoder on a GLUE task."""

    train_wnli: bool = False
    """Train on WNLI; otherwise every example gets the most frequent label, as is usual."""


@dataclass
class SpanRun(FitRun):
    """Fine-tune an encoder on questions whose answers are spans of a passage."""

    max_length: int = within(1, MOST_TOKENS, default=384)
    """Longest sequence in tokens, special tokens included; longer texts are cut into windows."""
    windows: WindowConfig = field(default_factory=WindowConfig)
    spans: SpanConfig = field(default_factory=SpanConfig)


@dataclass
class ChoiceRun(FitRun):
    """Fine-tune an encoder on multiple-choice questions about a passage."""

    max_length: int = within(1, MOST_TOKENS, default=384)
    """Longest sequence in tokens, special tokens included; longer passages are truncated."""


@dataclass
class ClassifyRun(FitRun):
    """Fine-tune an encoder to classify texts or text pairs, or to predict a number for each."""

    dataset: str | None = field(default=None, metadata={"words": _text_sets})
    """Public data set, instead of your own files: imdb, trec6, trec50 or agnews."""
    table: ClassifyConfig = field(default_factory=ClassifyConfig)

    def __post_init__(self) -> None:
        """Check the values; name the task after the public set, or the set after the task."""
        super().__post_init__()
        if self.dataset is None and self.task not in ("", "classify/own"):
            self.dataset = self.task.removeprefix("classify/")
        if self.dataset is not None:
            self.task = f"classify/{self.dataset}"
