"""What contestants share: sizes, batches of made text, and the process they compute in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.heads import Classification, HeadConfig, TaskHead
from finetune.task.interface import Task
from finetune.text.features.pairs import Features, length_batches
from finetune.training.answering import UnitBatches
from finetune.training.config import LoaderConfig
from finetune.training.loop.data import OrderedData
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.freed_memory import keep_freed_memory
from finetune.training.loop.trainer import flush_denormals

PAD, CLS, SEP, MASK = 0, 2, 3, 4
# Words a sentence in SST-2's train.tsv: quantiles in steps of 5 %; a WordPiece vocabulary of 8,192
# makes about 1.2 tokens of a word.
SST2_WORDS = [1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 18, 21, 26, 52]
# Tokens of a sequence in training files of the tasks, with MiniLM's (BERT's) vocabulary, cut to 128
# (SQuAD: one window of 384): quantiles in steps of 5 %.
TOKENS = {
    "cola": [4, 6, 7, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 17, 20, 47],
    "rte": [13, 29, 33, 37, 40, 43, 45, 47, 50, 53, 56, 59, 62, 67, 72, 85, 103, 120]
    + [128, 128, 128],
    "squad": [36, 67, 80, 92, 102, 110, 117, 126, 133, 141, 149, 157, 166, 176, 186, 198, 211]
    + [233, 257, 298, 384],
}


@dataclasses.dataclass(frozen=True)
class Size:
    """An encoder's size, as the field writes it: blocks × width."""

    blocks: int
    width: int
    vocab_size: int = 30522

    def __str__(self) -> str:
        """Write it as `2x128`."""
        return f"{self.blocks}x{self.width}"

    def sizes(self) -> dict[str, Any]:
        """Name the sizes as BERT's config and ours both do."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": self.width // 64,
            "intermediate_size": 4 * self.width,
        }

    def ours(self) -> EncoderConfig:
        """Make our config; all else is BERT's default, dropout of 0.1 included."""
        return EncoderConfig(**self.sizes())

    def theirs(self) -> Any:
        """Make the config of `transformers`; all else is its default."""
        from transformers import BertConfig

        return BertConfig(**self.sizes())


TINY, MINI = Size(2, 128), Size(4, 256)


def prepare(threads: int | None) -> None:
    """Set what both contestants share: seed, threads, denormals flushed, freed memory reused."""
    torch.manual_seed(0)
    flush_denormals()
    keep_freed_memory()  # of the process: the peer gains from it too
    if threads is not None:
        torch.set_num_threads(threads)


def masked_batches(size: Size, rows: int, length: int, rate: float) -> Iterator[dict[str, Any]]:
    """Make random batches without padding, as a packed corpus gives them.

    Yields:
        `input_ids` and `labels` (B, T) as `transformers` wants them, and ours: `positions` (N,) of
        the masked tokens in the flattened batch.
    """
    rng = np.random.default_rng(0)
    while True:
        original = rng.integers(MASK + 1, size.vocab_size, (rows, length))
        masked = rng.random((rows, length)) < rate
        yield {
            "input_ids": torch.from_numpy(np.where(masked, MASK, original)),
            "labels": torch.from_numpy(np.where(masked, original, -100)),
            "positions": torch.from_numpy(np.flatnonzero(masked)),
        }


def ours_of(batch: dict[str, Any]) -> dict[str, Any]:
    """The same batch with the labels that are wanted, as ours has them."""
    return batch | {"labels": batch["labels"].flatten()[batch["positions"]]}


def drawn_lengths(quantiles: Sequence[float], count: int) -> npt.NDArray[np.float64]:
    """Lengths of so many texts, by their quantiles; not rounded."""
    rng = np.random.default_rng(0)
    return np.interp(rng.random(count), np.linspace(0, 1, len(quantiles)), quantiles)


def sentences(count: int, vocab_size: int) -> list[Features]:
    """Make sentences of random tokens with SST-2's lengths, and random labels."""
    rng = np.random.default_rng(1)
    made = []
    for tokens in np.rint(1.2 * drawn_lengths(SST2_WORDS, count)).astype(int):
        ids = [CLS, *rng.integers(MASK + 1, vocab_size, tokens).tolist(), SEP]
        made.append(Features(ids, [0] * len(ids), int(rng.integers(2))))
    return made


class Sentences(OrderedData):
    """Made sentences in batches by length, as fine-tuning takes them from a task."""

    def __init__(self, features: list[Features], batch_size: int) -> None:
        """Keep the sentences."""
        super().__init__(LoaderConfig(batch_size=batch_size), seed=0)
        self.features = features

    def order(self, epoch: int) -> list[Any]:
        """Batch the sentences of like length."""
        lengths = np.array([len(feature.input_ids) for feature in self.features])
        return length_batches(lengths, self.config.batch_size, seed=self.seed, epoch=epoch)

    def training_set(self, epoch: int) -> UnitBatches:
        """Pad a batch to its longest sentence."""
        return UnitBatches(self.features, PAD)


class Unscored(Task):
    """A task of two classes that is trained on and never scored."""

    name, monitor, labels = "unscored", "accuracy", ("0", "1")
    train_split, validation_splits, test_splits = "train", (), ()


def unscored(encoder: Encoder, head: TaskHead) -> FineTuner:
    """Put a head on an encoder, for steps that nothing scores."""
    task: Any = Unscored  # what would score it is missing on purpose
    return FineTuner(encoder, head, task)


def classifier(size: Size) -> FineTuner:
    """Make an encoder with a head of two classes."""
    config = size.ours()
    return unscored(Encoder(config), Classification(config, HeadConfig(), 2))
