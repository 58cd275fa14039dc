"""The settings of each kind of run: its files and folders, and a section for each room below."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from finetune.encoder import EncoderConfig
from finetune.heads import HeadConfig
from finetune.text.corpus import CorpusConfig
from finetune.text.masking import MaskingConfig
from finetune.text.vocabulary import TokenizerConfig
from finetune.tracking import TrackingConfig
from finetune.training.checkpointing import CheckpointConfig
from finetune.training.data import LoaderConfig
from finetune.training.optimizer import OptimizerConfig
from finetune.training.progress import LengthConfig
from finetune.training.schedules import ScheduleConfig
from finetune.training.trainer import TrainerConfig


@dataclass
class TokenizerRun:
    """Train a tokenizer on a corpus."""

    corpus: list[str]
    """Files and folders of text, as for pretrain."""
    out: str
    """Folder for the tokenizer."""
    text_field: str = "text"
    """Field of a row that holds the text (jsonl, parquet, hub)."""
    file_is_document: bool = False
    """A text file is one document, whatever blank lines it has."""
    vocabulary: TokenizerConfig = field(default_factory=TokenizerConfig)


@dataclass
class PretrainRun:
    """Pretrain an encoder by masked language modelling."""

    corpus: list[str]
    """Files and folders of text: .txt, .tokens, .jsonl (each also .gz), .parquet, or hf://NAME."""
    out: str
    """The run's folder."""
    tokenizer: str | None = None
    """Tokenizer or run folder; without one it is trained on the corpus and kept with the run."""
    seed: int = 1
    """Keys the weights, the split, the order, the masks and the dropout."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    overwrite: bool = False
    """Replace the run in --out."""
    cache_dir: str | None = None
    """Folder for tokenized texts; default: FINETUNE_CACHE or ~/.cache/finetune."""
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


@dataclass
class FitRun:
    """Fine-tune an encoder on a task."""

    encoder_from: str = field(metadata={"flag": "--encoder"})
    """Run or checkpoint to start from; none = random weights, sized by the `encoder` section."""
    task: str = field(default="", metadata={"hidden": True})
    """Family and name, such as glue/sst2 (on the command line: the command and its first word)."""
    out: str | None = None
    """The run's folder; default: runs/FAMILY-TASK."""
    data: str | None = None
    """Folder with the official files (glue_data/ …); default: FINETUNE_DATA, else the hub."""
    train: str | None = None
    """File to train on instead of the official one."""
    validation: str | None = None
    """File to validate on instead of the official one."""
    test: str | None = None
    """File to test on, or to answer, instead of the official one."""
    tokenizer: str | None = None
    """Tokenizer or run folder, with --encoder none; otherwise the checkpoint brings its own."""
    max_length: int = 128
    """Longest sequence in tokens, special tokens included; longer pairs lose their end."""
    seed: int = 1
    """Keys the head's weights, the order of batches and the dropout."""
    seeds: list[int] | None = None
    """Several seeds, a run each (RUN/seed-1 …) and their mean and standard deviation."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    overwrite: bool = False
    """Replace the run in --out."""
    cache_dir: str | None = None
    """Folder for tokenized texts; default: FINETUNE_CACHE or ~/.cache/finetune."""
    dropout: float | None = None
    """Dropout in the encoder while fine-tuning; none = as its config says."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=5e-5))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def files(self) -> dict[str, Path]:
        """The files that are named in place of official ones, by split."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: Path(file) for split, file in named.items() if file is not None}
