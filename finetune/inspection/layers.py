"""The hidden states of all layers, computed in one forward pass and cached.

They are in the cache that fine-tuning with a frozen part uses: the states of the same texts at the
same length with the same weights are computed once for all commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from finetune.heads.pooling import POOLINGS, find_pooling
from finetune.jobs.sources import Model, Sequences
from finetune.ranges import not_among
from finetune.runs.folder import cache_folder
from finetune.text.features.pairs import length_batches
from finetune.training.answering import UnitBatches
from finetune.training.config import CacheConfig
from finetune.training.prefix.cache import PrefixCache, RowSet, features_key, open_cache
from finetune.training.prefix.states import arithmetic_key
from finetune.training.prefix.store import Rows

BATCH_SIZE = 32
Batch = dict[str, Tensor]


class LayerStates:
    """Hidden states of some sequences at every boundary: the embeddings and each block."""

    def __init__(
        self,
        model: Model,
        sequences: Sequences,
        *,
        caching: CacheConfig | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """Find the states in the cache, or fill it in one forward pass.

        Args:
            model: The encoder and its tokenizer.
            sequences: N texts.
            caching: Whether to cache states, with what size limit and precision.
            cache_dir: The cache folder; default: FINETUNE_CACHE or ~/.cache/finetune.
        """
        self.encoder, self.sequences = model.encoder, sequences
        self._batch_of = UnitBatches(sequences.features, model.tokenizer.pad_token_id)
        self._rows = RowSet(
            sequences.about,
            features_key(sequences.features),
            sequences.lengths,
            encoder=str(model.place),
        )
        self._cache = self._open(caching or CacheConfig(), cache_folder(cache_dir) / "hidden")

    @property
    def layers(self) -> int:
        """Number of boundaries, L + 1: layer 0 is the embeddings."""
        return self.encoder.config.num_hidden_layers + 1

    def _open(self, caching: CacheConfig, folder: Path) -> PrefixCache:
        depths = list(range(self.layers - 1, 0, -1))  # the highest first: it saves most work
        device = next(self.encoder.parameters()).device
        arithmetic = arithmetic_key(device, "32-true")
        return open_cache(
            self.encoder,
            self._rows,
            depths,
            self._batches(),
            folder=folder,
            config=caching,
            arithmetic=arithmetic,
        )

    def _batches(self) -> Iterator[tuple[Rows, Batch]]:
        lengths = self.sequences.lengths
        for rows in length_batches(lengths, BATCH_SIZE, seed=0, epoch=0, shuffle=False):
            yield rows, self._batch_of[rows]

    def __iter__(self) -> Iterator[tuple[Rows, Tensor | None, list[Tensor]]]:
        """Iterate over all sequences once, the longest first.

        Yields:
            Row numbers of a batch's sequences (B,); the attention mask, bool (B, T), None without
            padding; and the states at each of the L + 1 boundaries, float32 (B, T, D), on the CPU,
            zeros where padded.
        """
        for rows, batch in self._batches():
            yield rows, batch.get("attention_mask"), self._states(rows, batch)

    def _states(self, rows: Rows, batch: Batch) -> list[Tensor]:
        device = next(self.encoder.parameters()).device
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        states = self._cache.layers(self.encoder, moved, rows, self.layers - 1)
        return [one.cpu() for one in states]

    def vectors(self, pooling: str) -> Tensor:
        """One vector for each sequence and layer.

        Args:
            pooling: A name in `POOLINGS`: cls, last, mean, max or concat.

        Returns:
            float32 (L + 1, N, D), or (L + 1, N, 3D) for concat.
        """
        pool = find_pooling(pooling, self.encoder.config)
        count = len(self.sequences.features)
        pooled: list[list[Tensor]] = [[] for _ in range(self.layers)]
        order = []
        for rows, mask, states in self:
            order.append(rows)
            for layer, hidden in enumerate(states):
                pooled[layer].append(pool(hidden, mask))
        original_order = torch.from_numpy(np.argsort(np.concatenate(order)))
        assert len(original_order) == count
        return torch.stack([torch.cat(parts)[original_order] for parts in pooled])

    def close(self) -> None:
        """Release the cached states, so that other runs may remove them."""
        self._cache.close()


def layer_vectors(model: Model, sequences: Sequences, pooling: str, **cache: object) -> Tensor:
    """The result of `LayerStates.vectors`, without open files: float32 (L + 1, N, D)."""
    states = LayerStates(model, sequences, **cache)  # type: ignore[arg-type]
    try:
        return states.vectors(pooling)
    finally:
        states.close()


def check_pooling(name: str, *more: str) -> None:
    """Refuse an unknown pooling.

    Args:
        name: The requested pooling.
        more: Names that are legal besides those of `POOLINGS`.

    Raises:
        ConfigError: The name is unknown.
    """
    if name not in (*more, *POOLINGS):
        raise not_among("--pooling", name, [*more, *POOLINGS])


def layer_names(count: int) -> list[str]:
    """Names of L + 1 boundaries: `embeddings`, `block 1` … `block L`."""
    return ["embeddings", *(f"block {depth}" for depth in range(1, count))]
