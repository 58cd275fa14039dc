"""The settings of each kind of run: its files and folders, and a section for each part of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError
from finetune.heads import HeadConfig
from finetune.ranges import MOST_SEED, MOST_STEPS, MOST_TOKENS, check_values, within
from finetune.runs.families import family_of
from finetune.runs.folder import RunFolder
from finetune.settings.fields import read
from finetune.settings.keywords import from_keywords
from finetune.settings.values import load
from finetune.text.corpus.corpus import CorpusConfig
from finetune.text.corpus.masking import MaskingConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig
from finetune.tracking import TrackingConfig
from finetune.training.config import (
    CacheConfig,
    CheckpointConfig,
    LoaderConfig,
    RegularizationConfig,
    TrainerConfig,
)
from finetune.training.loop.progress import LengthConfig
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import ScheduleConfig
from finetune.training.unfreezing.policies import UnfreezeConfig


@dataclass
class TokenizerRun:
    """Train a tokenizer on a corpus."""

    corpus: list[str]
    """Files and folders of text, as for pretrain."""
    out: str
    """Folder to write the tokenizer to."""
    text_field: str = "text"
    """Name of the field with the text (jsonl, parquet, hub)."""
    file_is_document: bool = False
    """Read each text file as one document; otherwise a blank line ends a document."""
    vocabulary: TokenizerConfig = field(default_factory=TokenizerConfig)

    def __post_init__(self) -> None:
        """Check the values; each section has checked its own."""
        check_values(self)


@dataclass
class CorpusRun:
    """Prepare a corpus for pretraining: tokenize and split it into the cache, and train nothing."""

    corpus: list[str]
    """Files and folders of text, as for pretrain."""
    tokenizer: str
    """Folder of a tokenizer or run."""
    seed: int = within(0, MOST_SEED, default=1)
    """Random seed of the split."""
    cache_dir: str | None = None
    """Cache folder for tokenized texts; none = FINETUNE_CACHE, or ~/.cache/finetune."""
    data: CorpusConfig = field(default_factory=CorpusConfig)

    def __post_init__(self) -> None:
        """Check the values; each section has checked its own."""
        check_values(self)


@dataclass
class PretrainRun:
    """Pretrain an encoder by masked language modelling.

    >>> from finetune import EncoderConfig, PretrainRun
    >>> from finetune.training.loop.progress import LengthConfig
    >>> run = PretrainRun(["data/corpus.txt"], "runs/small",
    ...                   encoder=EncoderConfig(hidden_size=128, num_attention_heads=2),
    ...                   length=LengthConfig(max_minutes=20))
    >>> run.data.max_length, run.masks.mask_rate
    (128, 0.15)
    """

    corpus: list[str]
    """Files and folders of text: .txt, .tokens, .jsonl (each also .gz), .parquet, or hf://NAME.
    With weights, PATH:WEIGHT each, blocks are drawn in these proportions."""
    out: str
    """Folder to write the run to."""
    tokenizer: str | None = None
    """Folder of a tokenizer or run; none = train a tokenizer on the corpus, saved with the run."""
    word_vectors: str | None = None
    """File of word vectors (.txt or .vec of word2vec, GloVe or fastText) that the word embeddings
    start from; their width must be embedding_size."""
    seed: int = within(0, MOST_SEED, default=1)
    """Random seed of the weights, the split, the order, the masks and the dropout."""
    resume: bool = False
    """Continue the interrupted run in --out from its last checkpoint."""
    extend_epochs: int | None = within(1, MOST_STEPS, default=None)
    """With --resume: train a finished run N epochs beyond its length. The schedule starts again
    over them, from warm-up and peak learning rate to its end; the optimizer state is kept."""
    overwrite: bool = False
    """Delete the run in --out and start again."""
    find_lr: bool = False
    """Try increasing learning rates for 100 steps, save the curve, suggest a rate and exit."""
    cache_dir: str | None = None
    """Cache folder for tokenized texts; none = FINETUNE_CACHE, or ~/.cache/finetune."""
    baselines: bool = True
    """With a causal encoder, also score an n-gram model on the validation text: seconds."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    vocabulary: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: CorpusConfig = field(default_factory=CorpusConfig)
    masks: MaskingConfig = field(default_factory=MaskingConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        """Check the values; each section has checked its own."""
        check_values(self)


OBJECTIVES = ("mlm", "clm")
"""Masked and causal language modelling."""


@dataclass
class AdaptRun:
    """Continue an encoder's language modelling on the texts of its later task."""

    encoder_from: str = field(metadata={"flag": "--encoder"})
    """Encoder to start from: folder of a run or checkpoint, Hugging Face folder, or hub name."""
    out: str
    """Folder to write the run to."""
    corpus: list[str] | None = None
    """Files and folders of text, as for pretrain."""
    task: str | None = None
    """Task whose texts are read instead of a corpus, such as glue/sst2 or classify/imdb."""
    data: str | None = None
    """Folder with the task's official files; none = FINETUNE_DATA, or download from the hub."""
    train: str | None = None
    """File to read instead of the task's official training file."""
    limit: int | None = within(1, MOST_STEPS, default=None)
    """Use only N texts of the task, drawn at random, to try a setup."""
    seed: int = within(0, MOST_SEED, default=1)
    """Random seed of the split, the order, the masks, the dropout and of a new head's weights."""
    resume: bool = False
    """Continue the interrupted run in --out from its last checkpoint."""
    extend_epochs: int | None = within(1, MOST_STEPS, default=None)
    """With --resume: train a finished run N epochs beyond its length. The schedule starts again
    over them, from warm-up and peak learning rate to its end; the optimizer state is kept."""
    overwrite: bool = False
    """Delete the run in --out and start again."""
    find_lr: bool = False
    """Try increasing learning rates for 100 steps, save the curve, suggest a rate and exit."""
    cache_dir: str | None = None
    """Cache folder for tokenized texts; none = FINETUNE_CACHE, or ~/.cache/finetune."""
    dropout: float | None = within(0, 1, below=True, default=None)
    """Dropout in the encoder while it is adapted; none = as in its config."""
    objective: str | None = field(default=None, metadata={"words": OBJECTIVES})
    """mlm: predict masked tokens, attending in both directions; clm: predict the next token,
    attending to earlier ones (causal); none = what the encoder was pretrained for."""
    text: CorpusConfig = field(default_factory=CorpusConfig)
    masks: MaskingConfig = field(default_factory=MaskingConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(rate_decay=2.6))
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(schedule="slanted_triangular")
    )
    length: LengthConfig = field(default_factory=lambda: LengthConfig(max_epochs=1))
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        """Check the values; each section has checked its own."""
        check_values(self)


def default_folder(task: str) -> str:
    """Where a run is written to if nothing is said: `runs/glue-sst2`."""
    return f"runs/{task.replace('/', '-')}"


def fit_settings(task: str) -> type[FitRun]:
    """The class of a fine-tuning run's settings: FitRun, or the one of the task's family.

    Raises:
        ConfigError: There is no such family.
    """
    settings = family_of(task).settings
    return FitRun if settings is None else settings()


@dataclass
class FitRun:
    """Fine-tune an encoder on a task.

    A family of tasks may have settings besides, in a class of its own; then its length of a
    sequence may be another one too (384 for answers in a passage), which this class does not know.

    >>> from finetune import FitRun, HeadConfig
    >>> run = FitRun("runs/pretrained", "glue/cola", head=HeadConfig(pooling="mean"))
    >>> run.optimizer.learning_rate, run.max_length
    (5e-05, 128)
    """

    encoder_from: str = field(metadata={"flag": "--encoder"})
    """Folder of a run or checkpoint, Hugging Face folder, or hub name; none = random weights."""
    task: str = field(default="", metadata={"hidden": True})
    """Family and name, such as glue/sst2 (on the command line: the command and its first word)."""
    out: str | None = None
    """Folder to write the run to; none = runs/FAMILY-TASK, or runs/FAMILY-NAME of your data."""
    data: str | None = None
    """Folder with the official files (glue_data/ …); none = FINETUNE_DATA, or the hub."""
    train: str | None = None
    """File to train on instead of the official one."""
    validation: str | None = None
    """File to validate on instead of the official one."""
    test: str | None = None
    """File to test on, or to predict, instead of the official one."""
    tokenizer: str | None = None
    """Folder of a tokenizer or run, for --encoder none; other encoders have a tokenizer already."""
    word_vectors: str | None = None
    """For --encoder none: file of word vectors (.txt or .vec of word2vec, GloVe or fastText) that
    the word embeddings start from; their width must be embedding_size."""
    max_length: int = within(1, MOST_TOKENS, default=128)
    """Longest sequence in tokens, special tokens included; longer texts are truncated."""
    seed: int = within(0, MOST_SEED, default=1)
    """Random seed of the head's weights, the order of batches and the dropout."""
    seeds: list[int] | None = within(0, MOST_SEED, default=None)
    """Several seeds: one run each (RUN/seed-1 …), then mean and standard deviation."""
    resume: bool = False
    """Continue the interrupted run in --out from its last checkpoint."""
    extend_epochs: int | None = within(1, MOST_STEPS, default=None)
    """With --resume: train a finished run N epochs beyond its length. The schedule starts again
    over them, from warm-up and peak learning rate to its end; the optimizer state is kept."""
    overwrite: bool = False
    """Delete the run in --out and start again."""
    find_lr: bool = False
    """Try increasing learning rates for 100 steps, save the curve, suggest a rate and exit."""
    cache_dir: str | None = None
    """Cache folder for tokenized texts; none = FINETUNE_CACHE, or ~/.cache/finetune."""
    dropout: float | None = within(0, 1, below=True, default=None)
    """Dropout in the encoder while fine-tuning; none = as in its config."""
    limit: int | None = within(1, MOST_STEPS, default=None)
    """Examples of each split to use, and texts for --adapt, drawn the same way every time, for a
    quick test of a setup."""
    train_examples: int | None = within(1, MOST_STEPS, default=None)
    """Examples to train on, drawn by the seed, each class in proportion; of one seed, the fewer are
    among the more. Other splits are used whole: for learning curves."""
    choose_on_half: bool = False
    """Validate on one half of each validation split, drawn by its texts; the other half, on which
    nothing is chosen, is scored by finetune evaluate RUN --split fresh."""
    monitor: str | None = None
    """Validation metric that chooses the best checkpoint and stops by --patience, such as macro_f1,
    auc or loss; none = the task's first metric."""
    adapt: str | None = field(default=None, metadata={"alone": "1"})
    """First continue pretraining on the task's texts, in OUT-adapt: epochs (2) or 500steps."""
    dry_run: bool = False
    """Show the plan of the run and exit, without training."""
    baselines: bool = True
    """Also score elementary baselines, such as a bag of words: seconds, once per run folder."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    unfreezing: UnfreezeConfig = field(default_factory=UnfreezeConfig)
    caching: CacheConfig = field(default_factory=CacheConfig)
    regularization: RegularizationConfig = field(default_factory=RegularizationConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=5e-5))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        """Check the values; each section has checked its own."""
        check_values(self)

    @classmethod
    def from_yaml(cls, path: str | Path, **settings: Any) -> FitRun:
        """Read settings from a YAML file, such as `configs/glue/tiny.yaml` or RUN/config.yaml.

        >>> from finetune import FitRun
        >>> run = FitRun.from_yaml("runs/own/config.yaml", learning_rate=1e-3, out="runs/next")
        >>> run.task, run.optimizer.learning_rate
        ('classify/reviews', 0.001)

        Args:
            path: The file.
            settings: Further settings, which override the file's: `task`, `encoder`, `max_epochs`
                and all other names that `finetune.fit` takes.

        Returns:
            The settings, of the class that the task's family has for them.

        Raises:
            ConfigError: A key, a keyword or a value is wrong, or a required one is missing.
        """
        content = load(Path(path))
        task = settings.get("task") or (isinstance(content, dict) and content.get("task"))
        kind = fit_settings(str(task)) if task and cls is FitRun else cls
        return read(kind, Path(path), from_keywords(kind, settings))

    def adaptation(self) -> AdaptRun:
        """The settings of the stage before, in a folder beside the run's.

        Raises:
            ConfigError: Its length is neither a number of epochs nor of steps, or there is nothing
                to adapt.
        """
        found = re.fullmatch(r"([1-9]\d*)\s*(epochs?|steps?)?", str(self.adapt))
        if found is None:
            raise ConfigError(
                f"adapt: expected epochs as 2 or steps as 500steps, got '{self.adapt}'"
            )
        folder = RunFolder(Path(str(self.out))).adapted
        encoder = self.encoder_from
        is_adapted = os.path.abspath(encoder) == os.path.abspath(folder.path)
        if is_adapted and folder.config_file.is_file():  # as the run's own config.yaml says it
            encoder = folder.read_config()["encoder_from"]
        if encoder == "none":
            raise ConfigError("adapt: an encoder of random weights has nothing to adapt; pretrain")
        number = int(found[1])
        steps = (found[2] or "").startswith("step")
        return AdaptRun(
            encoder_from=encoder,
            out=str(folder.path),
            task=self.task,
            data=self.data,
            train=self.train,
            limit=self.limit,
            seed=self.seed,
            resume=self.resume and folder.config_file.is_file(),
            overwrite=self.overwrite,
            cache_dir=self.cache_dir,
            text=CorpusConfig(max_length=self.max_length),
            loader=self.loader,
            length=LengthConfig(max_steps=number) if steps else LengthConfig(max_epochs=number),
            trainer=self.trainer,
            checkpoints=CheckpointConfig(self.checkpoints.checkpoint_every_steps),
            tracking=self.tracking,
        )

    def files(self) -> dict[str, Path]:
        """The files that are named in place of official ones, by split."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: Path(file) for split, file in named.items() if file is not None}
