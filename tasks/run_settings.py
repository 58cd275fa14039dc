"""The settings of a fine-tuning run of each family: those of every run, and the family's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from finetune.decoder.config import DecoderConfig, SearchConfig
from finetune.errors import ConfigError
from finetune.heads.config import SpanConfig
from finetune.ranges import MOST_TOKENS, within
from finetune.runs.settings import FitRun
from finetune.text.features.long_texts import LongConfig
from finetune.text.features.windows import WindowConfig
from finetune.training.optimizer import OptimizerConfig
from tasks.own.names import OWN, slug
from tasks.own.text import ClassifyConfig


def _text_sets() -> list[str]:
    from tasks.own.text_sets import TEXT_SETS

    return list(TEXT_SETS)


def _write_sets() -> list[str]:
    from tasks.write.sets import WRITE_SETS

    return list(WRITE_SETS)


def is_public(name: str) -> bool:
    """Whether a name is that of a public set, in any usual spelling."""
    from tasks.own.text_sets import TEXT_SETS, set_key

    return set_key(name) in TEXT_SETS


@dataclass
class GlueRun(FitRun):
    """Fine-tune an encoder on a GLUE task."""

    train_wnli: bool = False
    """Train on WNLI; otherwise every example gets the most frequent label, as is usual."""
    long_texts: LongConfig = field(default_factory=LongConfig)


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
    """Longest sequence in tokens, special tokens included; longer passages are read as --long
    says."""
    long_texts: LongConfig = field(default_factory=LongConfig)


@dataclass
class OwnRun(FitRun):
    """Fine-tune an encoder on your own data."""

    name: str | None = None
    """Name of your data in reports and lists; none = from the training file and label column."""

    def __post_init__(self) -> None:
        """Check the values; name the task after the data, or the data after the task."""
        super().__post_init__()
        family, _, name = self.task.partition("/")
        if self.name is None and name not in ("", OWN):
            self.name = name
        if self.name is None:
            return
        if not re.fullmatch(r"[\w.-]{1,100}", self.name) or not self.name.strip("-."):
            raise ConfigError(
                "name: expected at most 100 letters, digits, '.', '-' and '_', got "
                f"'{self.name[:120]}'; choose one such as {slug(self.name)}"
            )
        if family:
            self.task = f"{family}/{self.name}"


@dataclass
class AnswerRun(OwnRun, SpanRun):
    """Fine-tune an encoder on your own questions whose answers are spans of a passage."""


@dataclass
class ChooseRun(OwnRun, ChoiceRun):
    """Fine-tune an encoder on your own multiple-choice questions about a passage."""


@dataclass
class WriteRun(OwnRun):
    """Train an encoder and a decoder to write a text for each text: sequence to sequence."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=5e-4))

    def __post_init__(self) -> None:
        """Check the values; a task that is no public set is named after the data."""
        if self.name in _write_sets():
            raise ConfigError(f"name: '{self.name}' is a public set; choose another --name")
        if self.dataset is None:
            super().__post_init__()
        else:
            FitRun.__post_init__(self)

    @property
    def dataset(self) -> str | None:
        """The public set that the task names; None for one's own files."""
        name = self.task.removeprefix("write/")
        return name if name in _write_sets() else None


@dataclass
class ClassifyRun(OwnRun):
    """Fine-tune an encoder to classify texts or text pairs, or to predict a number for each."""

    dataset: str | None = field(default=None, metadata={"offers": _text_sets})
    """Public data set, instead of your own files: imdb, trec6, trec50 or agnews."""
    table: ClassifyConfig = field(default_factory=ClassifyConfig)
    long_texts: LongConfig = field(default_factory=LongConfig)

    def __post_init__(self) -> None:
        """Check the values; name the task after the public set, or the set after the task."""
        of_task = self.task.removeprefix("classify/")
        is_own = of_task in ("", OWN) or (self.train is not None and not is_public(of_task))
        if self.dataset is None and self.name is None and not is_own:
            self.dataset = of_task
        if self.dataset is not None and self.name is not None:
            raise ConfigError("--dataset names the data, and so does --name: give one of them")
        if self.name is not None and is_public(self.name):
            raise ConfigError(f"name: '{self.name}' is a public data set; choose another --name")
        if self.dataset is None:
            super().__post_init__()
        else:
            FitRun.__post_init__(self)
            self.task = f"classify/{self.dataset}"
