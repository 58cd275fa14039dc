"""A task's splits as batches: tokenized once, stored as arrays, batched by length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from finetune.errors import DataError
from finetune.task.drawing import FRESH, halves, limited, stratified
from finetune.task.interface import Example, Task, examples_digest
from finetune.task.statistics import data_statistics
from finetune.text.features.files import load_features, save_features
from finetune.text.features.pairs import (
    Features,
    deal_by_length,
    length_batches,
    padding_share,
)
from finetune.text.features.units import Units, examples_of
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.unknown import UnknownTexts
from finetune.training.answering import UnitBatches, batches_of, lengths_of, units_of
from finetune.training.config import LoaderConfig
from finetune.training.loop.data import Indices, OrderedData
from finetune.training.loop.workers import Batch
from finetune.training.ranks import ALONE, Ranks

FORMAT = "3"
"""Of the features on disk; another number makes older files unknown."""


class TaskData(OrderedData):
    """The splits of a task.

    A unit is what one output of the head belongs to (`Units`); its sequences stay together in a
    batch.

    >>> from finetune import TaskData, Tokenizer, find_task
    >>> task = find_task("classify", train="data/train.csv", validation="data/validation.csv")
    >>> data = TaskData(task, Tokenizer.load("runs/pretrained/tokenizer"))
    >>> batch = next(iter(data.train_dataloader()))
    >>> batch["labels"].shape
    torch.Size([32])
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        loader: LoaderConfig | None = None,
        *,
        max_length: int = 128,
        seed: int = 0,
        cache_dir: Path | None = None,
        limit: int | None = None,
        train_examples: int | None = None,
        choose_on_half: bool = False,
    ) -> None:
        """Keep the parts; nothing is read yet.

        Args:
            task: Reads its files.
            tokenizer: Splits their texts.
            loader: Batch size and workers; 32 and none when left out.
            max_length: Longest sequence in tokens.
            seed: Keys the order.
            cache_dir: Where tokenized splits are stored; None: in memory alone.
            limit: Examples of each split that are used; None: all.
            train_examples: Examples to train on, drawn by the seed (`stratified`); None: all.
            choose_on_half: Validation splits are one half of their examples (`halves`); the other
                half has the split's name with `_fresh` after it.
        """
        super().__init__(loader or LoaderConfig(), seed=seed)
        task.bind(tokenizer)
        self.task, self.tokenizer, self.max_length = task, tokenizer, max_length
        self.cache_dir, self.limit, self.train_examples = cache_dir, limit, train_examples
        self.choose_on_half = choose_on_half
        self._examples: dict[str, list[Example]] = {}
        self._digests: dict[str, str] = {}
        self._features: dict[tuple[str, bool], list[Features]] = {}

    @property
    def train_split(self) -> str:
        """The split to train on.

        Raises:
            DataError: The task has none.
        """
        if self.task.train_split is None:
            raise DataError(f"{self.task.name}: there is nothing to train on")
        return self.task.train_split

    def examples(self, split: str) -> list[Example]:
        """The examples of a split, read once.

        Raises:
            DataError: The split has none, or a row is bad; or there are too few to train on.
        """
        if split not in self._examples:
            examples = limited(self._read(split), self.limit)
            if self.train_examples is not None and split == self.task.train_split:
                examples = self._drawn(examples, self.train_examples)
            self._examples[split] = examples
            if not self._examples[split]:
                raise DataError(
                    f"{self.task.name}: the {split} split has no examples; name another file"
                )
        return self._examples[split]

    def _read(self, split: str) -> list[Example]:
        """A split of the task, or the half of it that has this name."""
        whole = split.removesuffix(FRESH)
        if not self.choose_on_half or whole not in self.task.validation_splits:
            return self.task.examples(split)
        chosen, fresh = halves(self.task.examples(whole))
        if not chosen or not fresh:
            raise DataError(
                f"{self.task.name}: expected a {whole} split of at least two different texts to "
                "choose on one half of it; name a larger file, or leave --choose-on-half out"
            )
        return chosen if split == whole else fresh

    def _drawn(self, examples: Sequence[Example], count: int) -> list[Example]:
        if count > len(examples):
            raise DataError(
                f"{self.task.name}: expected {count:,} examples to train on (train_examples), got "
                f"{len(examples):,}; lower it, or name a larger file"
            )
        return stratified(examples, count, self.seed)

    def features(self, split: str, *, training: bool = False) -> list[Features]:
        """The features of a split, tokenized once for all runs with this tokenizer and length.

        Args:
            split: The split.
            training: To learn from; otherwise answers can be read off what comes of them.

        Raises:
            DataError: Nothing in the split can be learned from.
        """
        if (split, training) not in self._features:
            if self.cache_dir is None:
                features = self._tokenize(split, training)
            else:
                features = self._from_cache(self.cache_dir, split, training)
            self._features[split, training] = features
        return self._features[split, training]

    def _from_cache(self, folder: Path, split: str, training: bool) -> list[Features]:
        path = folder / f"features-{self._key(split, training)}.npz"
        cached = load_features(path)
        if cached is None:
            tokenized = self._tokenize(split, training)
            save_features(tokenized, path)
            cached = load_features(path) or tokenized  # what is read back takes less memory
        return cached

    def _tokenize(self, split: str, training: bool) -> list[Features]:
        examples = self.examples(split)
        features = self.task.features(examples, self.tokenizer, self.max_length, training=training)
        if not features:
            raise DataError(
                f"{self.task.name}: no sequence of the {split} split can be learnt from; "
                "raise max_length or name another file"
            )
        return features

    def _key(self, split: str, training: bool) -> str:
        task = self.task
        parts = (FORMAT, task.name, split, self.tokenizer.fingerprint, str(self.max_length))
        # By the content of the examples: an edited file is tokenized again, a renamed one is not.
        settings = (task.feature_settings, str(training), *task.labels, self.digest(split))
        content = "\x1f".join((*parts, *settings)).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def digest(self, split: str) -> str:
        """Hash of the examples of a split, 32 hexadecimal digits; see `examples_digest`."""
        if split not in self._digests:
            self._digests[split] = examples_digest(self.examples(split))
        return self._digests[split]

    def lengths(self, split: str, *, training: bool = False) -> Indices:
        """Tokens of each sequence, (U R,)."""
        return lengths_of(self.features(split, training=training))

    def _units(self, features: Sequence[Features]) -> Units:
        return units_of(self.task, features)

    def _batched(self, features: Sequence[Features]) -> list[Indices]:
        """Units of each batch that is read without training, the longest first."""
        sizes = self._units(features).sizes(lengths_of(features))
        return length_batches(sizes, self.device_batch_size, seed=0, epoch=0, shuffle=False)

    @cached_property
    def _training_lengths(self) -> Indices:
        """Tokens of each unit to train on, as `Units.sizes` counts them, (U,)."""
        features = self.features(self.train_split, training=True)
        return self._units(features).sizes(lengths_of(features))

    @property
    def examples_per_unit(self) -> float:
        """Examples to train on, in units: less than 1 where some are read in several."""
        features = self.features(self.train_split, training=True)
        numbers = {number for number, _ in examples_of(features, self.task.sequences_per_example)}
        return len(numbers) / len(self._units(features))

    def order(self, epoch: int) -> list[Indices]:
        """Training batches of units of like length, in a seeded order."""
        size = self.config.batch_size
        return length_batches(self._training_lengths, size, seed=self.seed, epoch=epoch)

    def divide(self, batch: Indices, parts: int) -> list[Indices]:
        """Divide a batch into parts of like lengths, with about as many tokens."""
        return deal_by_length(batch, self._training_lengths, parts)

    def training_set(self, epoch: int) -> Dataset[Batch]:
        """The training features."""
        return self._unit_batches(self.features(self.train_split, training=True))

    def _unit_batches(self, features: Sequence[Features]) -> UnitBatches:
        return batches_of(self.task, features, self.tokenizer)

    def loader(self, split: str, ranks: Ranks = ALONE) -> DataLoader[Batch]:
        """All units of a split, longest together; the same batches each time.

        Args:
            split: The split.
            ranks: Processes that divide the batches.
        """
        features = self.features(split)
        batches = self._batched(features)
        return self.batch_loader(self._unit_batches(features), ranks.part(batches))

    def all_rows(
        self, split: str, *, training: bool, ranks: Ranks = ALONE
    ) -> Iterator[tuple[Indices, Batch]]:
        """Each sequence of a split once: the numbers of a batch's sequences, and the batch.

        Of several processes each gets its part.
        """
        features = self.features(split, training=training)
        batches, all_units = self._unit_batches(features), self._units(features)
        for units in ranks.part(self._batched(features)):
            if len(units):
                yield all_units.rows(units), batches[units]

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """A loader for each validation split; of several processes, of this one's part."""
        ranks = Ranks.of(self.trainer)
        return [self.loader(split, ranks) for split in self.task.validation_splits]

    def description(self) -> dict[str, Any]:
        """What the splits hold, what they share, and what padding costs, for results.json.

        Returns:
            By split the facts of `describe` and of `split_statistics`, and `tokens`: `median`,
            `p95` and `max` of a sequence after truncation; `shared_texts`, see `data_statistics`;
            `padding`: its fraction of the positions of the first epoch.
        """
        splits = [self.train_split, *self.task.validation_splits]
        statistics = data_statistics({split: self.examples(split) for split in splits})
        about: dict[str, Any] = {}
        for split in splits:
            training = split == self.train_split
            lengths = self.lengths(split, training=training)
            tokens = _length_facts(lengths[lengths > 0])  # options that a question lacks have 0
            facts = self.describe(split, training=training)
            about[split] = statistics["splits"][split] | facts | {"tokens": tokens}
        features = self.features(self.train_split, training=True)
        all_units = self._units(features)
        padding = padding_share(
            lengths_of(features), [all_units.rows(units) for units in self.order(0)]
        )
        return {**about, "shared_texts": statistics["shared_texts"], "padding": padding}

    def describe(self, split: str, *, training: bool = False) -> dict[str, Any]:
        """Say what a split contains, for results.json.

        Returns:
            `files`; `examples`; `sequences`; `left_out`: examples of which no sequence can be
            learned from; `trimmed`: the fraction of examples that lost tokens; `in_windows`: that
            of examples that are read in several windows, if there are any; `skipped`: rows that the
            task left out, by reason, if it left out any; and the task's facts.
        """
        examples, features = self.examples(split), self.features(split, training=training)
        numbered = list(examples_of(features, self.task.sequences_per_example))
        trimmed = {number for number, feature in numbered if feature.trimmed}
        skipped = self.task.skipped(split)
        return {
            "files": [str(path.absolute()) for path in self.task.data_files(split)],
            "examples": len(examples),
            "sequences": len(features),
            "left_out": len(examples) - len({number for number, _ in numbered}),
            "trimmed": len(trimmed) / len(examples),
            **self._windows_fact(features),
            **({"skipped": skipped} if skipped else {}),
            **self.task.describe(examples),
        }

    def _windows_fact(self, features: Sequence[Features]) -> dict[str, float]:
        if not self.task.long.has_windows:
            return {}
        owners = [number for number, _ in examples_of(features, self.task.sequences_per_example)]
        counts = np.bincount(owners)
        several = counts > self.task.sequences_per_example
        return {"in_windows": float(several.mean())}

    def warnings(self, split: str, *, training: bool = False) -> list[str]:
        """What looks like a mistake in a split: see `Task.warnings`; and texts that are unknown."""
        examples, features = self.examples(split), self.features(split, training=training)
        unknown = UnknownTexts(self.tokenizer)
        unknown.add(
            examples_of(features, self.task.sequences_per_example),
            [example.texts for example in examples],
        )
        messages = [*self.task.warnings(examples, features), *unknown.warnings()]
        return [f"{split}: {message}" for message in messages]


def _length_facts(lengths: Indices) -> dict[str, float]:
    facts = {"median": np.median(lengths), "p95": np.percentile(lengths, 95), "max": lengths.max()}
    return {name: round(float(value), 1) for name, value in facts.items()}


def rows_in(batch: Mapping[str, Tensor], task: Task) -> Indices:
    """Numbers of the sequences of a batch, (S,)."""
    if "rows" in batch:
        return np.asarray(batch["rows"].cpu().numpy())
    units, rows = batch["index"].cpu().numpy(), task.sequences_per_example
    return np.asarray((units[:, None] * rows + np.arange(rows)).reshape(-1))
