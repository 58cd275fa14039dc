"""Documents as token ids in flat files that are mapped into memory, never loaded.

A token folder is a shard of a corpus. It contains, for its documents that have tokens, in order:

    ids.bin          [CLS] tokens [SEP] of each document, uint16, or uint32 for large vocabularies
    word_starts.bin  True where a token starts a word, bool, one an id
    bounds.bin       where each document begins in ids.bin, and the end of the last, int64 (N + 1,)
    digests.bin      a hash of each document's text, uint64 (N,)
    manifest.json    the numbers of documents, and the files' sizes, by which damage is noticed

It is written under another name and renamed, so it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from finetune.files.writing import new_folder, remove, write_json
from finetune.text.tokenizer.tokenizer import Tokenizer, is_empty
from finetune.text.tokenizer.unknown import cause, is_mostly_unknown
from finetune.text.tokenizer.word_cache import WordCache

MANIFEST = "manifest.json"
_CHECKED = "checked.json"
# Characters tokenized at a time: enough for all threads, and a few MB of tokens.
_CHUNK_CHARACTERS = 1 << 19
# Documents with unknown words that are looked at for the cause.
_SAMPLE = 100
SLICE = 1 << 18
"""Elements read from a file at a time when a whole file is gone through."""


@dataclass(frozen=True)
class TokenCounts:
    """What was counted while a corpus was written."""

    documents: int
    """Documents with at least one token."""
    tokens: int
    """Their tokens, without the special tokens put around them."""
    unknown_tokens: int
    """Tokens that stand for something which is not in the vocabulary."""
    duplicate_documents: int
    """Documents whose text was there before."""
    empty_documents: int
    """Documents without a token (blanks and control characters only), left out."""
    unknown_documents: int = 0
    """Documents of which more than half of the characters became the unknown token."""
    unknown_cause: str = ""
    """Why they did."""


@dataclass(frozen=True)
class TokenFolder:
    """A token folder on disk."""

    path: Path
    """The folder."""
    counts: TokenCounts
    """What is in it."""
    wide: bool
    """Ids are uint32 instead of uint16."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids on disk."""
        return id_type(self.wide)

    @property
    def ids(self) -> int:
        """Number of ids: the tokens, and two special ones around each document."""
        return self.counts.tokens + 2 * self.counts.documents

    @classmethod
    def open(cls, path: Path) -> TokenFolder | None:
        """Open a folder that was written whole; None if there is none or it is damaged."""
        return None if find_whole(path) is None else cls.of(path)

    @classmethod
    def of(cls, path: Path) -> TokenFolder:
        """Open a folder that is known to be whole."""
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return cls(path, TokenCounts(**manifest["counts"]), manifest["wide"])


def id_type(wide: bool) -> np.dtype[Any]:
    """Type of the ids on disk: uint32 for large vocabularies, otherwise uint16."""
    return np.dtype(np.uint32 if wide else np.uint16)


def read_numbers(file: Path, dtype: DTypeLike, first: int, count: int) -> NDArray[Any]:
    """Read `count` numbers of a flat file, or those that there are, from number `first` on."""
    return np.fromfile(file, dtype, count=count, offset=first * np.dtype(dtype).itemsize)


def write_tokens(
    documents: Iterable[str], tokenizer: Tokenizer, path: Path, words: WordCache | None = None
) -> TokenFolder:
    """Tokenize documents into a new token folder; memory does not grow with their number.

    Args:
        documents: Texts, read once.
        tokenizer: Splits them.
        path: The folder to make.
        words: The tokenizer's words of earlier documents.

    Returns:
        The folder.
    """
    wide = tokenizer.vocab_size > np.iinfo(np.uint16).max + 1  # ids go from 0: 65,536 fit
    words = words or WordCache(tokenizer)
    with written_whole(path) as folder:
        counts = _write_files(documents, tokenizer, words, folder, id_type(wide))
        write_manifest(folder, {"counts": asdict(counts), "wide": wide})
    return TokenFolder(path, counts, wide)


def _write_files(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    words: WordCache,
    folder: Path,
    dtype: DTypeLike,
) -> TokenCounts:
    count = tokens = unknown = empty = position = 0
    unknown_texts = _UnknownDocuments(tokenizer)
    names = ("ids.bin", "word_starts.bin", "bounds.bin", "digests.bin")
    with ExitStack() as stack:
        ids_file, starts_file, bounds_file, digests_file = (
            stack.enter_context((folder / name).open("wb")) for name in names
        )
        bounds_file.write(np.int64(0).tobytes())
        for text, ids, starts in _tokenized(documents, words):
            if not len(ids) or is_empty(text):
                empty += 1
                continue
            framed = np.concatenate([[tokenizer.cls_token_id], ids, [tokenizer.sep_token_id]])
            position += len(framed)
            ids_file.write(framed.astype(dtype).tobytes())
            starts_file.write(np.concatenate([[True], starts, [True]]).tobytes())
            bounds_file.write(np.int64(position).tobytes())
            # 64 bits: of a million documents two share a digest once in 37 million corpora.
            digests_file.write(hashlib.blake2b(text.encode(), digest_size=8).digest())
            count, tokens = count + 1, tokens + len(ids)
            unknown += (unread := int(np.count_nonzero(ids == tokenizer.unk_token_id)))
            unknown_texts.add(text, unread, len(ids))
    duplicates = count_duplicates([folder / "digests.bin"])
    return TokenCounts(
        count, tokens, unknown, duplicates, empty, unknown_texts.count, unknown_texts.cause()
    )


class _UnknownDocuments:
    """Counts the documents that are mostly unknown, and stores some for the cause."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.count = tokenizer, 0
        self.sample: list[str] = []

    def add(self, text: str, unknown: int, tokens: int) -> None:
        if not unknown:
            return
        self.count += is_mostly_unknown(self.tokenizer, text, unknown, tokens)
        if len(self.sample) < _SAMPLE:
            self.sample.append(text)

    def cause(self) -> str:
        return cause(self.tokenizer, self.sample) if self.sample else ""


def _tokenized(
    documents: Iterable[str], words: WordCache
) -> Iterator[tuple[str, NDArray[np.uint32], NDArray[np.bool_]]]:
    for chunk in _chunks(documents):
        for document, (ids, starts) in zip(chunk, words.encode(chunk), strict=True):
            yield document, ids, starts


def _chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document)
        if characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def count_duplicates(files: Sequence[Path]) -> int:
    """Count the digests that were there before.

    Goes through the files once for each part of the digests' range, so that what is sorted at a
    time stays small.

    Args:
        files: Of uint64.
    """
    total = sum(file.stat().st_size // 8 for file in files)
    parts = 1 + total // (32 * SLICE)  # 64 MiB of digests each
    return total - sum(_count_distinct(files, part, parts) for part in range(parts))


def _count_distinct(files: Sequence[Path], part: int, parts: int) -> int:
    of_part = [np.empty(0, np.uint64)]  # so that there is something to concatenate
    for file in files:
        for first in range(0, file.stat().st_size // 8, SLICE):
            values = read_numbers(file, np.uint64, first, SLICE)
            of_part.append(values[values % np.uint64(parts) == part])
    return len(np.unique(np.concatenate(of_part)))


def written_whole(path: Path) -> AbstractContextManager[Path]:
    """Make a folder that is there whole or not at all.

    Args:
        path: The folder to make. What is there already is replaced if it is damaged, and stays if
            another process has made the same in the meantime.

    Returns:
        A context: of a temporary folder beside it, which takes its name at the end of the block.
    """
    return new_folder(path, is_whole=lambda folder: read_manifest(folder) is not None)


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write manifest.json: the content, and the sizes and checksums of all other files."""
    files = sorted(folder.iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    checksums = {file.name: _checksum(file) for file in files}
    text = json.dumps({**content, "sizes": sizes, "checksums": checksums}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read manifest.json; None if it is missing or a file does not have the size it states."""
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in content["sizes"]}
    except (OSError, ValueError, KeyError):
        return None
    return content if sizes == content["sizes"] else None


def find_whole(folder: Path) -> dict[str, Any] | None:
    """Read manifest.json of a folder of the cache whose files are as they were written.

    Returns:
        Its content; None where there is no such folder, or where it is damaged: that one is
        removed, with a warning, to be made again.
    """
    if not folder.exists():  # asked first: another process may finish it while this one looks
        return None
    content = read_manifest(folder)
    if content is not None and _is_undamaged(folder, content.get("checksums", {})):
        return content
    warnings.warn(f"{folder}: this part of the cache is damaged; computing it again", stacklevel=2)
    remove(folder)
    return None


def _is_undamaged(folder: Path, checksums: dict[str, int]) -> bool:
    """Whether each file has its checksum; read again only if a file was changed since it had.

    All processes of all machines open a corpus, which may take hours to read.
    """
    try:
        now = {name: file_identity(folder / name) for name in checksums}
        if _checked(folder) == now:
            return True
        if any(_checksum(folder / name) != value for name, value in checksums.items()):
            return False
    except OSError:
        return False
    with suppress(OSError):  # the cache may be read-only
        write_json(folder / _CHECKED, now)
    return True


def _checked(folder: Path) -> Any:
    try:
        return json.loads((folder / _CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def file_identity(file: Path) -> list[int]:
    """What a copy or a change of a file cannot leave as it was."""
    status = file.stat()
    return [status.st_size, status.st_ino, status.st_ctime_ns]


def _checksum(file: Path) -> int:
    """CRC-32: it notices damage as a longer hash would, and takes half the time."""
    checksum = 0
    with file.open("rb") as content:
        while part := content.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum
