"""A corpus as shards: token folders beside each other, read as if they were one.

The folder of a corpus contains its shards, `00000`, `00001`, ..., and `index.json`, which is
written last and says how long each one is. No document is cut; ids are counted through all shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.files.writing import write_json
from finetune.text.corpus import tokens
from finetune.text.corpus.tokens import (
    TokenCounts,
    TokenFolder,
    count_duplicates,
    id_type,
    read_numbers,
)

INDEX = "index.json"


@dataclass(frozen=True)
class Tokens:
    """The token folders of a corpus, read as if they were one."""

    path: Path
    """The folder of the corpus."""
    counts: TokenCounts
    """What is in all of them."""
    wide: bool
    """Ids are uint32 instead of uint16."""
    shards: tuple[tuple[int, int], ...]
    """Number of documents and of ids in each shard."""

    @classmethod
    def open(cls, path: Path) -> Tokens | None:
        """Open the folder of a corpus; None if a shard is missing or damaged, or there is no index.

        A damaged shard is removed, with a warning.
        """
        try:
            content = json.loads((path / INDEX).read_text(encoding="utf-8"))
            shards = tuple((int(documents), int(ids)) for documents, ids in content["shards"])
            opened = cls(path, TokenCounts(**content["counts"]), bool(content["wide"]), shards)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        stored = [TokenFolder.open(opened.shard(number)) for number in range(len(shards))]
        sizes = [(one.counts.documents, one.ids) if one else None for one in stored]
        return opened if sizes == list(shards) else None

    @classmethod
    def join(cls, path: Path, count: int) -> Tokens:
        """Write the index of a corpus whose shards have all been made.

        Args:
            path: Its folder.
            count: Number of shards.
        """
        stored = [TokenFolder.of(path / shard_name(number)) for number in range(count)]
        shards = tuple((one.counts.documents, one.ids) for one in stored)
        counts = _total([one.counts for one in stored], [one.path for one in stored])
        wide = any(one.wide for one in stored)
        write_json(path / INDEX, {"counts": asdict(counts), "wide": wide, "shards": shards})
        return cls(path, counts, wide, shards)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids on disk."""
        return id_type(self.wide)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Place of each shard's first id in the corpus, and the end of the last, int64 (N + 1,)."""
        return np.cumsum([0, *(ids for _, ids in self.shards)], dtype=np.int64)

    def shard(self, number: int) -> Path:
        """Folder of a shard."""
        return self.path / shard_name(number)

    def document_slices(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        """Go through the documents, some at a time, reading and not mapping the files.

        Yields:
            Bounds of n documents in the corpus, int64 (n + 1,), and their digests, uint64 (n,).
        """
        for number, (documents, _) in enumerate(self.shards):
            folder = self.shard(number)
            for first in range(0, documents, tokens.SLICE):
                count = min(tokens.SLICE, documents - first)
                bounds = read_numbers(folder / "bounds.bin", np.int64, first, count + 1)
                digests = read_numbers(folder / "digests.bin", np.uint64, first, count)
                yield bounds + self.starts[number], digests

    def id_slices(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Go through the ids of the corpus from `start` to `stop`, some at a time.

        Yields:
            Place of the first id in the corpus, and n ids, uint16 or uint32 (n,).
        """
        for number, (begin, end) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            file = self.shard(number) / "ids.bin"
            for first in range(max(start, begin), min(stop, end), tokens.SLICE):
                count = min(tokens.SLICE, stop - first, end - first)
                yield first, read_numbers(file, self.dtype, first - begin, count)


def shard_name(number: int) -> str:
    """Name of a shard's folder."""
    return f"{number:05d}"


def _total(counts: Sequence[TokenCounts], folders: Sequence[Path]) -> TokenCounts:
    return TokenCounts(
        documents=sum(one.documents for one in counts),
        tokens=sum(one.tokens for one in counts),
        unknown_tokens=sum(one.unknown_tokens for one in counts),
        duplicate_documents=count_duplicates([folder / "digests.bin" for folder in folders]),
        empty_documents=sum(one.empty_documents for one in counts),
        unknown_documents=sum(one.unknown_documents for one in counts),
        unknown_cause=next((one.unknown_cause for one in counts if one.unknown_cause), ""),
    )
