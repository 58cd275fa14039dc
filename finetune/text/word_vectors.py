"""Published word vectors (word2vec, GloVe, fastText) as vectors of a tokenizer's pieces.

The files are text: a word and its numbers a line, with a first line "words numbers" or without one.
Pieces of words have no vectors of their own. A piece gets the mean of the vectors of the words that
the tokenizer turns into this piece alone ("the", and "The" where it lower-cases). Any other piece
gets the mean over all words of the file that contain it, a word once for each time it does. What
occurs in no word, such as a special token, gets none; words with an unknown piece count for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from finetune.errors import DataError
from finetune.files.unpacking import DAMAGED_GZIP, lines_of, unpacking
from finetune.text.tokenizer.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]
_WORDS_AT_ONCE = 8192


@dataclass(frozen=True)
class PieceVectors:
    """What a file says about the pieces of a tokenizer."""

    vectors: Vectors
    """(V, E), zeros where a piece has none."""
    is_word: npt.NDArray[np.bool_]
    """Whether a piece is a whole word of the file, (V,)."""
    is_known: npt.NDArray[np.bool_]
    """Whether a piece has a vector, (V,)."""
    words: int
    """Words in the file."""


def vector_size(path: Path) -> int:
    """Read how many numbers a vector of the file has, E.

    Raises:
        DataError: It cannot be read, or has no vectors.
    """
    for _, numbers in _rows(path):
        return len(numbers)
    raise DataError(f"{path}: expected a word and its numbers a line, got an empty file")


def piece_vectors(path: Path, tokenizer: Tokenizer) -> PieceVectors:
    """Read a file and average its vectors for each piece (see above).

    Args:
        path: The file, which gzip may have packed.
        tokenizer: Splits the words.

    Raises:
        DataError: The file cannot be read, or a line is no word with as many numbers as the first.
    """
    size, pieces = vector_size(path), tokenizer.vocab_size
    whole, part = _Mean(pieces, size), _Mean(pieces, size)
    words, lines = 0, _rows(path)
    while rows := list(islice(lines, _WORDS_AT_ONCE)):
        of_words = tokenizer.encode_ids([word for word, _ in rows])
        words += len(rows)
        for ids, (_, vector) in zip(of_words, rows, strict=True):
            if tokenizer.unk_token_id not in ids:
                (whole if len(ids) == 1 else part).add(ids, vector)
    is_word = whole.counts > 0
    # Of a word, the contexts of longer words that contain it say little.
    vectors = np.where(is_word[:, None], whole.mean(), part.mean())
    return PieceVectors(vectors, is_word, is_word | (part.counts > 0), words)


class _Mean:
    """A running mean for each piece."""

    def __init__(self, pieces: int, size: int) -> None:
        self.sums = np.zeros((pieces, size), dtype=np.float32)
        self.counts = np.zeros(pieces, dtype=np.int64)

    def add(self, ids: list[int], vector: Vectors) -> None:
        for piece in ids:
            self.sums[piece] += vector
            self.counts[piece] += 1

    def mean(self) -> Vectors:
        counts = np.maximum(self.counts, 1).astype(np.float32)
        return np.divide(self.sums, counts[:, None], dtype=np.float32)


def _rows(path: Path) -> Iterator[tuple[str, Vectors]]:
    """Yield each word and its vector."""
    size = None
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            size = int(fields[1])  # the header
            continue
        size = len(fields) - 1 if size is None else size
        # From the right: a few "words" of GloVe contain spaces.
        yield " ".join(fields[:-size]), _numbers(fields[-size:], size, f"{path}:{number}")


def _numbers(fields: list[str], size: int, where: str) -> Vectors:
    try:
        numbers = np.array(fields, dtype=np.float32)
    except ValueError:
        numbers = np.array([np.nan], dtype=np.float32)
    if len(numbers) != size or not size or not np.isfinite(numbers).all():
        raise DataError(
            f"{where}: expected a word and {max(size, 1)} numbers with spaces between, got "
            f"'{' '.join(fields)[:40]}'; word vectors must be text (.txt, .vec), not a binary file"
        )
    return numbers


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as raw:
            for number, line in enumerate(lines_of(unpacking(raw, path), path), start=1):
                yield _decoded(line, f"{path}:{number}").rstrip()
    except DAMAGED_GZIP as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(
            f"{where}: expected UTF-8, got other bytes; word vectors are text (.txt, .vec), not "
            "a binary file; convert other text with iconv -c -t UTF-8"
        ) from None
