"""Blocks of T ids without padding, computed from the token folder when they are asked for.

The documents of a split make one stream of tokens, and block i is its piece number i of T - 2
tokens, between `[CLS]` and `[SEP]`. What stands between two documents in the stream depends on
how they share a block:

    joined     a b c [SEP] d e [SEP] f ...                    one attention over the whole block
    separate   [CLS] a b c [SEP] [CLS] d e [SEP] [CLS] f ...  attention inside a document only

Each token of the stream is in exactly one block, except for the last few that fill no block.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from finetune.errors import DataError
from finetune.machine.restarts import to_continue
from finetune.text.corpus.shards import Tokens

FRAME = 2
"""Tokens of a block that are not from the stream: `[CLS]` and `[SEP]`."""
_OPEN_SHARDS = 64


@dataclass(frozen=True)
class Block:
    """One block (T,), or B of them stacked (B, T)."""

    input_ids: NDArray[np.int64]
    """Token ids, int64."""
    word_starts: NDArray[np.bool_]
    """True where a token starts a word, bool; special tokens do, and so does a word's second part
    where the block's edge cuts it."""
    document_ids: NDArray[np.int64]
    """Number of the document inside the block, from 0 and rising, int64."""


@dataclass(frozen=True)
class Packing:
    """How blocks are put together."""

    max_length: int
    """T, tokens in a block."""
    cls_token_id: int
    """Id of `[CLS]`."""
    sep_token_id: int
    """Id of `[SEP]`."""


class MappedFile:
    """A file of the cache as a flat array, mapped into memory and not read before it is used.

    What lies behind the end of a file that was cut short under its map ends the process with
    SIGBUS, which no handler of Python's can turn into a message. So a reader asks first, each
    time, whether the file is still whole.
    """

    array: NDArray[Any]
    """Its numbers; they may be read after `check`."""

    def __init__(self, path: Path, dtype: DTypeLike, count: int | None = None) -> None:
        """Map the file.

        Args:
            path: The file.
            dtype: Type of its numbers.
            count: How many it has to have; None for those that there are.

        Raises:
            OSError: It cannot be read.
            DataError: It has fewer.
        """
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        size = np.dtype(dtype).itemsize
        self._size = os.fstat(self._file).st_size if count is None else count * size
        self.check()
        if self._size:
            content = mmap.mmap(self._file, self._size, access=mmap.ACCESS_READ)
            self.array = np.frombuffer(content, dtype)
        else:  # an empty file cannot be mapped
            self.array = np.empty(0, dtype)

    def check(self) -> None:
        """Refuse a file that was cut short since it was mapped; it costs a microsecond.

        Raises:
            DataError: It was.
        """
        size = os.fstat(self._file).st_size
        if size < self._size:
            raise DataError(
                f"{self.path}: expected {self._size:,} bytes, got {size:,}: it was cut short "
                f"while a run reads it; {to_continue()}, it is made again"
            )


class Blocks:
    """The blocks of one split, as a sequence.

    Pickled, it has paths and no arrays, so that it can be sent to other processes.
    """

    def __init__(self, tokens: Tokens, index: Path, packing: Packing) -> None:
        """Open a split.

        Args:
            tokens: The documents of the corpus.
            index: Files `index.sources`, where each document of the split begins in the token
                folder, and `index.starts`, where it begins in the split's stream, and the
                stream's end; int64 (N,) and (N + 1,).
            packing: Length and frame of the blocks.
        """
        self.tokens = tokens
        self.index = index
        self.packing = packing

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapped arrays out; they are opened again where they are needed."""
        return {name: self.__dict__[name] for name in ("tokens", "index", "packing")}

    @cached_property
    def _index(self) -> tuple[MappedFile, MappedFile]:
        return (
            MappedFile(self.index.with_suffix(".sources"), np.int64),
            MappedFile(self.index.with_suffix(".starts"), np.int64),
        )

    @cached_property
    def _shard(self) -> Callable[[int], tuple[MappedFile, MappedFile]]:
        # A process may have some hundred files open; a corpus may have thousands.
        return lru_cache(_OPEN_SHARDS)(self._open_shard)

    def _open_shard(self, number: int) -> tuple[MappedFile, MappedFile]:
        folder, (_, count) = self.tokens.shard(number), self.tokens.shards[number]
        return (
            MappedFile(folder / "ids.bin", self.tokens.dtype, count),
            MappedFile(folder / "word_starts.bin", np.bool_, count),
        )

    @property
    def _sources(self) -> NDArray[Any]:
        return self._index[0].array

    @property
    def _starts(self) -> NDArray[Any]:
        return self._index[1].array

    @property
    def documents(self) -> int:
        """Number of documents in the split."""
        return len(self._sources)

    @cached_property
    def _length(self) -> int:
        return int(self._starts[-1]) // (self.packing.max_length - FRAME)

    def __len__(self) -> int:
        """Number of whole blocks."""
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks in order."""
        return (self.block(index) for index in range(len(self)))

    def of_epoch(self, epoch: int) -> Blocks:
        """The blocks of an epoch: the same in each."""
        return self

    def block(self, index: int) -> Block:
        """Compute one block.

        Args:
            index: From 0 to `len(self) - 1`.

        Returns:
            The block, arrays (T,).
        """
        block = self.blocks([index])
        return Block(block.input_ids[0], block.word_starts[0], block.document_ids[0])

    def blocks(self, indices: Sequence[int] | NDArray[np.int64]) -> Block:
        """Compute several blocks at once.

        Args:
            indices: Block numbers (B,).

        Returns:
            The blocks stacked, arrays (B, T).

        Raises:
            IndexError: A number is not from 0 to `len(self) - 1`.
            DataError: A file of the cache was cut short since it was opened.
        """
        for file in self._index:
            file.check()
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size and not (0 <= chosen.min() and chosen.max() < len(self)):
            raise IndexError(f"blocks go from 0 to {len(self) - 1}, got {chosen.tolist()}")
        positions, documents = self._locate(chosen)
        ids, starts = self._read(positions)
        return Block(
            input_ids=self._framed_ids(ids),
            word_starts=self._framed_starts(starts),
            # [CLS] belongs to the first document of the block, [SEP] to the last.
            document_ids=np.pad(documents, ((0, 0), (1, 1)), mode="edge"),
        )

    def _locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find where the blocks' tokens are in the token folder.

        A block is cut into runs, one a document, and a run is a shift from the stream to the file.

        Returns:
            Position of each token in the corpus and its document's number in the block, (B, T - 2).
        """
        content = self.packing.max_length - FRAME
        begins = indices * content  # (B,), in the stream
        first = np.searchsorted(self._starts, begins, side="right") - 1  # document of first token
        last = np.searchsorted(self._starts, begins + content, side="left") - 1
        runs = last - first + 1  # (B,)
        block = np.repeat(np.arange(len(indices)), runs)  # (runs,)
        number = np.arange(len(block)) - np.repeat(np.cumsum(runs) - runs, runs)
        document = first[block] + number
        begin = np.maximum(self._starts[document], begins[block])
        end = np.minimum(self._starts[document + 1], begins[block] + content)
        shift = np.repeat(self._sources[document] - self._starts[document], end - begin)
        stream = begins[:, None] + np.arange(content)  # (B, T - 2)
        positions = stream + shift.reshape(stream.shape)
        return positions, np.repeat(number, end - begin).reshape(stream.shape)

    def _read(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Ids and word starts at these positions of the corpus, of the same shape."""
        ids = np.empty(positions.shape, self.tokens.dtype)
        is_start = np.empty(positions.shape, np.bool_)
        # Positions rise in a block, so most blocks are seen to lie in one shard by their ends.
        first, last = self._shards_of(positions[:, 0]), self._shards_of(positions[:, -1])
        for number in np.unique(first[first == last]):
            rows = np.flatnonzero((first == number) & (last == number))
            where = rows if len(rows) < len(positions) else slice(None)  # without a copy
            self._copy(int(number), where, positions, ids, is_start)
        if len(others := np.flatnonzero(first != last)):
            shards = self._shards_of(positions[others])
            for number in np.unique(shards):
                row, column = np.nonzero(shards == number)
                self._copy(int(number), (others[row], column), positions, ids, is_start)
        return ids, is_start

    def _shards_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.tokens.starts, positions, side="right") - 1

    def _copy(
        self, shard: int, where: Any, positions: NDArray[np.int64], *values: NDArray[Any]
    ) -> None:
        """Copy the ids and word starts of a shard to places of the arrays."""
        within = positions[where] - self.tokens.starts[shard]
        for file, array in zip(self._shard(shard), values, strict=True):
            file.check()
            array[where] = file.array[within]

    def _framed_ids(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        framed = np.empty((len(ids), self.packing.max_length), dtype=np.int64)
        framed[:, 0] = self.packing.cls_token_id
        framed[:, 1:-1] = ids
        framed[:, -1] = self.packing.sep_token_id
        return framed

    def _framed_starts(self, starts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        framed = np.ones((len(starts), self.packing.max_length), dtype=np.bool_)
        # The block's first token stays a start: what it belongs to may lie in another block.
        framed[:, 2:-1] = starts[:, 1:]
        return framed


def document_mask(document_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say which tokens of a block may see each other when its documents are separate.

    Args:
        document_ids: Document of each token, int64 (B, T).

    Returns:
        True where a token (second axis) may attend to another (last axis), bool (B, T, T).
    """
    return np.equal(document_ids[:, :, None], document_ids[:, None, :])


def document_positions(document_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count positions from each document's beginning in a block.

    Args:
        document_ids: Document of each token, int64 (B, T).

    Returns:
        Position of each token in its document's piece, from 0, int64 (B, T).
    """
    positions = np.broadcast_to(np.arange(document_ids.shape[1]), document_ids.shape)
    begins = np.diff(document_ids, axis=1, prepend=-1) != 0
    return np.asarray(positions - np.maximum.accumulate(np.where(begins, positions, 0), axis=1))
