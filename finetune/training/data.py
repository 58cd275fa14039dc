"""The two LightningDataModules: a corpus to pretrain on, a task to fine-tune on.

The batches of an epoch are a pure function of (seed, epoch), and an epoch can begin at any of its
batches: the position in the data is two numbers, and taking it up again costs nothing.
"""

from __future__ import annotations

import hashlib
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from finetune.errors import ConfigError, DataError
from finetune.task import Example, Task
from finetune.text.corpus import Corpus
from finetune.text.feature_file import load_features, save_features
from finetune.text.features import Features, collate, length_batches, padding_share
from finetune.text.masking import IGNORED, MaskingConfig, mask_blocks
from finetune.text.packing import Blocks, document_mask, document_positions
from finetune.text.tokenizer import Tokenizer
from finetune.training.randomness import keyed_seed
from finetune.training.resume import Standing

Batch = dict[str, Tensor]
Indices = npt.NDArray[np.int64]


@dataclass
class LoaderConfig:
    """Batches and who makes them."""

    batch_size: int = 32
    """Sequences in a batch, for each process."""
    num_workers: int = 0
    """Processes that make batches ahead; 0 = the training process does it."""
    validation_batches: int = 32
    """Pretraining: validation stops after so many batches."""

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ConfigError: A count is out of range.
        """
        for name, least in (("batch_size", 1), ("num_workers", 0), ("validation_batches", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, found {getattr(self, name)}")


class OrderedData(pl.LightningDataModule):
    """Batches whose order is a function of (seed, epoch), startable at any batch."""

    def __init__(self, loader: LoaderConfig, *, seed: int) -> None:
        """Keep the settings.

        Args:
            loader: Batch size and workers.
            seed: Keys the order.
        """
        super().__init__()
        self.config = loader
        self.seed = seed
        self._start = Standing()
        self._batches: int | None = None

    def order(self, epoch: int) -> list[Indices]:
        """Example numbers of each batch of an epoch, over all processes."""
        raise NotImplementedError

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """Makes the batch of given example numbers, as it is in that epoch."""
        raise NotImplementedError

    def start_at(self, standing: Standing) -> None:
        """Let the epoch in which a run stands begin where it stands."""
        self._start = standing

    def batches_for(self, processes: int) -> int:
        """Batches of an epoch for each of so many processes.

        Raises:
            DataError: There is not a batch for each.
        """
        if self._batches is None:
            self._batches = len(self.order(0))  # the same in every epoch
        if self._batches < processes:
            raise DataError(
                f"an epoch has {self._batches} batches, too few for {processes} processes; "
                "lower devices or batch_size"
            )
        return self._batches // processes

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch, for each process."""
        return self.batches_for(self.trainer.world_size if self.trainer else 1)

    def train_dataloader(self) -> DataLoader[Batch]:
        """The batches of the trainer's current epoch that are still ahead, of this process."""
        epoch, rank, ranks = 0, 0, 1
        if self.trainer:
            epoch, rank, ranks = (
                self.trainer.current_epoch,
                self.trainer.global_rank,
                self.trainer.world_size,
            )
        own = self.order(epoch)[rank::ranks][: self.batches_per_epoch]
        behind = self._start.batch if epoch == self._start.epoch else 0
        return self._loader(self.training_set(epoch), own[behind:])

    def _loader(self, dataset: Dataset[Batch], batches: Sequence[Indices]) -> DataLoader[Batch]:
        with warnings.catch_warnings():  # as many workers as were asked for, also on fewer cores
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            return DataLoader(
                dataset,
                batch_size=None,  # the data set makes whole batches
                sampler=batches,
                num_workers=self.config.num_workers,
                collate_fn=_as_it_is,
                worker_init_fn=_start_worker,
                generator=torch.Generator(),  # not the one that dropout draws from
                pin_memory=torch.cuda.is_available(),
            )


def _as_it_is(batch: Any) -> Any:
    return batch


def _start_worker(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the training process decides
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def cut(order: Indices, batch_size: int) -> list[Indices]:
    """Cut an order into batches; the last one may be shorter."""
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class CorpusData(OrderedData):
    """Blocks of a corpus, masked anew in each epoch; for a causal encoder, shifted by one."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        masking: MaskingConfig,
        loader: LoaderConfig,
        *,
        seed: int,
        causal: bool = False,
        separate: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            corpus: Its training and validation blocks.
            tokenizer: Tells the mask and the special tokens.
            masking: Which positions, and what replaces them.
            loader: Batch size and workers.
            seed: Keys the order and the masks.
            causal: Every token is to be named from those before it; nothing is masked.
            separate: Attention stays inside a document, and positions start with it.
        """
        super().__init__(loader, seed=seed)
        self.corpus = corpus
        self._make = {
            "tokenizer": tokenizer,
            "masking": masking,
            "causal": causal,
            "separate": separate,
        }

    def order(self, epoch: int) -> list[Indices]:
        """A permutation of the training blocks, cut into batches."""
        rng = np.random.default_rng(keyed_seed(self.seed, "blocks", epoch))
        return cut(rng.permutation(len(self.corpus.train)), self.config.batch_size)

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """The training blocks with the masks of an epoch."""
        return MaskedBlocks(self.corpus.train, seed=self.seed, epoch=epoch, **self._make)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """The first validation blocks, under the same masks each time."""
        blocks = self.corpus.validation
        if not len(blocks):
            return []
        batches = cut(np.arange(len(blocks)), self.config.batch_size)
        dataset = MaskedBlocks(
            blocks,
            seed=keyed_seed(self.seed, "validation"),
            epoch=0,
            **self._make,  # type: ignore[arg-type]
        )
        return self._loader(dataset, batches[: self.config.validation_batches])


class MaskedBlocks(Dataset[Batch]):
    """Block numbers -> a batch for the Pretrainer; depends on seed, epoch and numbers only."""

    def __init__(
        self,
        blocks: Blocks,
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
        """The batch of these blocks: `input_ids` (B, T), `positions` (N,), `labels` (N,)."""
        block = self.blocks.blocks(indices)
        if self.causal:
            inputs, labels = block.input_ids, _next_tokens(block.input_ids)
            if self.separate:  # the next document's first token is nobody's to name
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
    labels[:, :-1] = input_ids[:, 1:]
    return labels


class TaskData(OrderedData):
    """A task's splits as features: tokenized once, kept as arrays, batched by length."""

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        loader: LoaderConfig,
        *,
        max_length: int,
        seed: int,
        cache_dir: Path,
    ) -> None:
        """Keep the parts; nothing is read yet.

        Args:
            task: Reads its files.
            tokenizer: Splits their texts.
            loader: Batch size and workers.
            max_length: Longest sequence in tokens.
            seed: Keys the order.
            cache_dir: Where tokenized splits are kept.
        """
        super().__init__(loader, seed=seed)
        self.task, self.tokenizer, self.max_length = task, tokenizer, max_length
        self.cache_dir = cache_dir
        self._examples: dict[str, list[Example]] = {}
        self._features: dict[str, list[Features]] = {}
        self._lengths: dict[str, Indices] = {}

    def examples(self, split: str) -> list[Example]:
        """The examples of a split, read once.

        Raises:
            DataError: The split has none, or a row is bad.
        """
        if split not in self._examples:
            self._examples[split] = self.task.examples(split)
            if not self._examples[split]:
                raise DataError(
                    f"{self.task.name}: the {split} split has no examples; name another file"
                )
        return self._examples[split]

    def features(self, split: str) -> list[Features]:
        """The features of a split, tokenized once for all runs with this tokenizer and length."""
        if split not in self._features:
            path = self.cache_dir / f"features-{self._key(split)}.npz"
            kept = load_features(path)
            if kept is None:
                kept = self.task.features(self.examples(split), self.tokenizer, self.max_length)
                save_features(kept, path)
            self._features[split] = kept
        return self._features[split]

    def _key(self, split: str) -> str:
        digest = hashlib.blake2b(digest_size=16)
        parts = (self.task.name, split, self.tokenizer.fingerprint, str(self.max_length), "1")
        digest.update("\x1f".join((*parts, *self.task.labels)).encode())
        for example in self.examples(split):
            digest.update(repr((example.texts, example.label)).encode())
        return digest.hexdigest()

    def lengths(self, split: str) -> Indices:
        """Tokens of each example."""
        if split not in self._lengths:
            features = self.features(split)
            self._lengths[split] = np.array([len(feature.input_ids) for feature in features])
        return self._lengths[split]

    def order(self, epoch: int) -> list[Indices]:
        """Training batches of examples of like length, in a seeded order."""
        return length_batches(
            self.lengths(self.task.train_split),
            self.config.batch_size,
            seed=self.seed,
            epoch=epoch,
        )

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """The training features."""
        return FeatureBatches(self.features(self.task.train_split), self.tokenizer.pad_token_id)

    def loader(self, split: str) -> DataLoader[Batch]:
        """All examples of a split, longest together; the same batches each time."""
        lengths = self.lengths(split)
        batches = length_batches(
            lengths, self.config.batch_size, seed=self.seed, epoch=0, shuffle=False
        )
        return self._loader(
            FeatureBatches(self.features(split), self.tokenizer.pad_token_id), batches
        )

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """A loader for each validation split."""
        return [self.loader(split) for split in self.task.validation_splits]

    def description(self) -> dict[str, Any]:
        """Files, examples and padding of each split, for results.json."""
        splits = (self.task.train_split, *self.task.validation_splits)
        about: dict[str, Any] = {}
        for split in splits:
            files = [str(path) for path in self.task.data_files(split)]
            about[split] = {"files": files, "examples": len(self.examples(split))}
        train = padding_share(self.lengths(self.task.train_split), self.order(0))
        return {**about, "padding": train}


class FeatureBatches(Dataset[Batch]):
    """Example numbers -> a padded batch for the FineTuner."""

    def __init__(self, features: Sequence[Features], pad_token_id: int) -> None:
        """Keep the features."""
        self.features, self.pad_token_id = features, pad_token_id

    def __getitem__(self, indices: Indices) -> Batch:
        """The batch of these examples, padded to its longest."""
        return collate(self.features, indices, self.pad_token_id)
