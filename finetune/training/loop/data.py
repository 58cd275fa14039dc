"""Batches in an order that can be taken up anywhere, and a corpus to pretrain on.

A batch has the examples of one optimizer step. The batches of an epoch are a pure function of
(seed, epoch); each is divided among the processes, and there into the micro-batches that a process
computes one after the other. So the examples of a step do not depend on how many take part, and the
position in the data is two numbers, the epoch and its batches behind: a run can be taken up
anywhere, by another number of processes too, and that costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from finetune.errors import ConfigError
from finetune.text.corpus.corpus import Corpus
from finetune.text.corpus.counter_rng import PermutedBatches
from finetune.text.corpus.masking import MaskingConfig, mask_blocks
from finetune.text.corpus.mixture import MixedBlocks
from finetune.text.corpus.packing import Blocks, document_mask, document_positions
from finetune.text.features.pairs import IGNORED
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig
from finetune.training.loop.accumulation import FILLER
from finetune.training.loop.resume import TrainingProgress
from finetune.training.loop.streams import divided, stream_batches
from finetune.training.loop.workers import Batch, batch_loader
from finetune.training.randomness import keyed_seed
from finetune.training.ranks import ALONE, Ranks

Indices = npt.NDArray[np.int64]
MOST_STORED = 1 << 26
"""Blocks whose order is stored (0.5 GiB); that of more is computed."""


def check_parts(loader: LoaderConfig, processes: int) -> None:
    """Refuse a batch that has not an example for each micro-batch of each process.

    Raises:
        ConfigError: It has not.
    """
    parts = processes * loader.micro_batches
    if loader.batch_size < parts:
        raise ConfigError(
            f"batch_size {loader.batch_size}: expected at least {parts}, an example for each "
            f"of devices ({processes}) × micro_batches ({loader.micro_batches}); raise it, or "
            "lower one of them"
        )


class OrderedData(pl.LightningDataModule):
    """Batches whose order is a function of (seed, epoch), startable at any batch."""

    def __init__(self, loader: LoaderConfig, *, seed: int) -> None:
        """Keep the settings.

        Args:
            loader: Batch size, micro-batches and workers.
            seed: Keys the order.
        """
        super().__init__()
        self.config = loader
        self.seed = seed
        self._start = TrainingProgress()
        self._batches: int | None = None

    def setup(self, stage: str) -> None:
        """Have each epoch's batches asked for again, whatever the Trainer's settings are.

        Raises:
            ConfigError: The Trainer would divide again what is divided among processes already, or
                does not accumulate the micro-batches; or a batch has fewer examples than parts.
        """
        if self.trainer is None:
            return
        # Lightning would keep the first epoch's order, and its masks, for the whole run.
        self.trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]
        if self.trainer.world_size > 1 and shares_out(self.trainer):
            raise ConfigError(
                "each process gets its part of a batch already; make the Trainer with "
                "use_distributed_sampler=False"
            )
        accumulated, parts = self.trainer.accumulate_grad_batches, self.config.micro_batches
        if accumulated % parts:
            raise ConfigError(
                f"a batch has {parts} micro-batches, and the Trainer accumulates {accumulated}; "
                f"make it with accumulate_grad_batches={parts}"
            )
        check_parts(self.config, self.trainer.world_size)

    def order(self, epoch: int) -> Sequence[Indices]:
        """Example numbers of each batch of an epoch, over all processes."""
        raise NotImplementedError

    def divide(self, batch: Indices, parts: int) -> list[Indices]:
        """Divide a batch into parts that take about as long; without enough examples, some empty.

        A batch that stays whole keeps its order.
        """
        return np.array_split(batch, parts)

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """Makes the batch of given example numbers, as it is in that epoch."""
        raise NotImplementedError

    def start_at(self, progress: TrainingProgress) -> None:
        """Let the epoch in which a run stands begin where it stands."""
        self._start = progress

    def behind(self, epoch: int) -> int:
        """Batches of an epoch that lie behind when it begins: none, unless it is taken up."""
        return self._start.batch if epoch == self._start.epoch else 0

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch, each one optimizer step, whatever the number of processes."""
        if self._batches is None:
            self._batches = len(self.order(0))  # the same in every epoch
        return self._batches

    @property
    def micro_batches_per_epoch(self) -> int:
        """What each process computes in an epoch."""
        return self.batches_per_epoch * self.config.micro_batches

    @property
    def device_batch_size(self) -> int:
        """Examples that are computed at once where one process computes a batch."""
        return -(-self.config.batch_size // self.config.micro_batches)

    def train_dataloader(self) -> DataLoader[Batch]:
        """The batches of the trainer's current epoch that are still ahead, of this process."""
        epoch, rank, ranks = 0, 0, 1
        if self.trainer:
            epoch, rank, ranks = (
                self.trainer.current_epoch,
                self.trainer.global_rank,
                self.trainer.world_size,
            )
        return self.parts_loader(
            epoch,
            ranks * self.config.micro_batches,
            self.order(epoch)[self.behind(epoch) :],
            slice(rank, None, ranks),
        )

    def parts_loader(
        self,
        epoch: int,
        parts: int,
        batches: Sequence[Indices] | None = None,
        own: slice = slice(None),
    ) -> DataLoader[Batch]:
        """A loader of the parts of an epoch's batches, each for a process to compute at once.

        Every process has as many: one with a part more would wait for the others for ever. So in
        place of an empty part, as the last batch of an epoch may have, comes a filler: an example
        that counts nowhere, written as ~ its number.

        Args:
            epoch: Whose masks, if there are any.
            parts: Of each batch, over all processes.
            batches: Which; left out, all of the epoch.
            own: The parts of each batch that are wanted.
        """
        wanted = _Parts(
            self.order(epoch) if batches is None else batches,
            lambda batch: [
                part if len(part) else ~batch[:1] for part in self.divide(batch, parts)[own]
            ],
            len(range(parts)[own]),
        )
        return self.batch_loader(_WithFillers(self.training_set(epoch)), wanted)

    def batch_loader(
        self, dataset: Dataset[Batch], batches: Iterable[Indices]
    ) -> DataLoader[Batch]:
        """A loader of given batches, made by the configured workers."""
        return batch_loader(dataset, batches, self.config.num_workers)


@dataclass(frozen=True)
class _Parts:
    """The parts of batches that are for this process, made as they are asked for."""

    batches: Sequence[Indices]
    of: Callable[[Indices], list[Indices]]
    """A batch -> its parts."""
    each: int
    """Parts of a batch."""

    def __len__(self) -> int:
        return len(self.batches) * self.each

    def __iter__(self) -> Iterator[Indices]:
        return (part for batch in self.batches for part in self.of(batch))


class _WithFillers(Dataset[Batch]):
    """Example numbers -> a batch; one that is marked where the numbers are written as a filler."""

    def __init__(self, dataset: Dataset[Batch]) -> None:
        self.dataset = dataset

    def __getitem__(self, indices: Indices) -> Batch:
        if indices[0] >= 0:
            return self.dataset[indices]
        return {**self.dataset[~indices], FILLER: torch.ones(1)}


def shares_out(trainer: pl.Trainer) -> bool:
    """Whether a Trainer replaces a loader's sampler by one that knows nothing of batches."""
    return bool(trainer._accelerator_connector.use_distributed_sampler)


def cut(order: Indices, batch_size: int) -> list[Indices]:
    """Cut an order into batches; the last one may be shorter."""
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class CorpusData(OrderedData):
    """Blocks of a corpus, with new masks in each epoch; for a causal encoder, shifted by one.

    >>> from finetune import CorpusData, Tokenizer
    >>> from finetune.text import CorpusConfig, build_corpus
    >>> tokenizer = Tokenizer.load("runs/pretrained/tokenizer")
    >>> corpus = build_corpus(["data/corpus.txt"], tokenizer, CorpusConfig(max_length=16),
    ...                       seed=1, cache_dir="data/cache")
    >>> batch = next(iter(CorpusData(corpus, tokenizer).train_dataloader()))
    >>> batch["input_ids"].shape, batch["positions"].shape == batch["labels"].shape
    (torch.Size([32, 16]), True)
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        masking: MaskingConfig | None = None,
        loader: LoaderConfig | None = None,
        *,
        seed: int = 0,
        causal: bool = False,
        separate: bool = False,
        streams: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            corpus: Its training and validation blocks.
            tokenizer: Names the mask and the special tokens.
            masking: Which positions, and what replaces them; BERT's when left out.
            loader: Batch size and workers; 32 and none when left out.
            seed: Keys the order and the masks.
            causal: Every token is to be predicted from those before it; nothing is masked.
            separate: Attention stays inside a document, and positions start with it.
            streams: Row b of a batch continues row b of the batch before.
        """
        super().__init__(loader or LoaderConfig(), seed=seed)
        self.corpus, self.streams = corpus, streams
        self._make = {
            "tokenizer": tokenizer,
            "masking": masking or MaskingConfig(),
            "causal": causal,
            "separate": separate,
        }

    def order(self, epoch: int) -> Sequence[Indices]:
        """A permutation of the training blocks, cut into batches; or streams of them."""
        if self.streams:
            return stream_batches(len(self.corpus.train), self.config.batch_size)
        key, count = keyed_seed(self.seed, "blocks", epoch), len(self.corpus.train)
        if count > MOST_STORED:
            return PermutedBatches(count, self.config.batch_size, key)
        rng = np.random.default_rng(key)
        return cut(rng.permutation(len(self.corpus.train)), self.config.batch_size)

    def divide(self, batch: Indices, parts: int) -> list[Indices]:
        """Divide a batch into parts; of streams, each part has the same ones in every batch."""
        if not self.streams:
            return super().divide(batch, parts)
        return divided(batch, min(self.config.batch_size, len(self.corpus.train)), parts)

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """The training blocks with the masks of an epoch."""
        blocks = self.corpus.train.of_epoch(epoch)
        return MaskedBlocks(blocks, seed=self.seed, epoch=epoch, **self._make)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """The first validation blocks; of several processes, this one's part."""
        return self.validation_loader(Ranks.of(self.trainer))

    def validation_loader(self, ranks: Ranks = ALONE) -> DataLoader[Batch] | list[Any]:
        """The first validation blocks, under the same masks each time.

        Args:
            ranks: Processes that divide them.
        """
        blocks = self.corpus.validation
        if not len(blocks):
            return []
        count = min(len(blocks), self.config.validation_batches * self.config.batch_size)
        batches, rows = cut(np.arange(count), self.device_batch_size), self.device_batch_size
        own = ranks.part(batches)
        if self.streams:  # of each batch, the rows of this process
            rows = min(rows, count)
            own = [divided(b, rows, ranks.size)[ranks.rank] for b in stream_batches(count, rows)]
        dataset = MaskedBlocks(
            blocks,
            seed=keyed_seed(self.seed, "validation"),
            epoch=0,
            **self._make,  # type: ignore[arg-type]
        )
        return self.batch_loader(dataset, own)


class MaskedBlocks(Dataset[Batch]):
    """Block numbers -> a batch for the Pretrainer; depends on seed, epoch and numbers only."""

    def __init__(
        self,
        blocks: Blocks | MixedBlocks,
        *,
        tokenizer: Tokenizer,
        masking: MaskingConfig,
        seed: int,
        epoch: int,
        causal: bool,
        separate: bool,
    ) -> None:
        """Keep what the masks depend on."""
        self.blocks, self.masking, self.seed, self.epoch = blocks, masking, seed, epoch
        self.causal, self.separate = causal, separate
        self.facts = {
            "vocab_size": tokenizer.vocab_size,
            "mask_token_id": tokenizer.mask_token_id,
            "special_ids": tokenizer.special_ids,
        }

    def __getitem__(self, indices: Indices) -> Batch:
        """The batch of these blocks: `input_ids` (B, T), `positions` (N,), `labels` (N,).

        Of no blocks it is empty: see `Ranks.part`.
        """
        if not len(indices):
            return {}
        block = self.blocks.blocks(indices)
        if self.causal:
            inputs, labels = block.input_ids, _next_tokens(block.input_ids)
            if self.separate:  # nothing that a token sees foretells the next document's first one
                labels[:, :-1][np.diff(block.document_ids, axis=1) != 0] = IGNORED
        else:
            inputs, labels = mask_blocks(
                block.input_ids,
                block.word_starts,
                self.masking,
                seed=self.seed,
                epoch=self.epoch,
                block_indices=indices,
                **self.facts,  # type: ignore[arg-type]
            )
        positions = np.flatnonzero(labels != IGNORED)
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": inputs,
            "positions": positions,
            "labels": labels.reshape(-1)[positions],
        }
        if self.separate:
            arrays["attention_mask"] = document_mask(block.document_ids)
            arrays["position_ids"] = document_positions(block.document_ids)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _next_tokens(input_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    labels = np.full_like(input_ids, IGNORED)
    labels[:, :-2] = input_ids[:, 1:-1]  # the frame's [SEP] cuts the text anywhere: not its end
    return labels
