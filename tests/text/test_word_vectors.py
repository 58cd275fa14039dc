from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from finetune.errors import DataError
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.text.word_vectors import piece_vectors, vector_size


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """Whole words `low` and `new`, and pieces of all others."""
    texts = ["low new"] * 50 + ["lower newer"] * 5
    return train_tokenizer(texts, TokenizerConfig(algorithm="wordpiece", vocab_size=19))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


ROWS = "low 1 2\nnew 3 -4\nlower 5 6\nLow 3 4\nnewer 1 0\n"


def test_a_word_has_its_own_vector_and_a_piece_the_mean_of_its_words(
    words: Tokenizer, tmp_path: Path
) -> None:
    pieces = piece_vectors(write(tmp_path / "v.txt", ROWS), words)
    low, new = (words.encode_ids([word])[0] for word in ("low", "new"))
    assert [len(ids) for ids in (low, new)] == [1, 1]
    assert pieces.vectors[low[0]].tolist() == [2.0, 3.0]  # of low and Low, which become one token
    assert pieces.vectors[new[0]].tolist() == [3.0, -4.0]  # and not of newer, which contains it

    vectors = {"lower": [5, 6], "newer": [1, 0]}
    of_words = {word: words.encode_ids([word])[0] for word in vectors}
    shared = set(of_words["lower"]) & set(of_words["newer"]) - {low[0], new[0]}
    assert shared
    for piece in shared:
        counts = [of_words[word].count(piece) for word in vectors]
        expected = np.average([vectors[word] for word in vectors], axis=0, weights=counts)
        np.testing.assert_allclose(pieces.vectors[piece], expected)
    assert pieces.is_word.nonzero()[0].tolist() == sorted([low[0], new[0]])
    assert not pieces.is_known[list(words.special_ids)].any()
    assert (pieces.vectors[~pieces.is_known] == 0).all()
    assert pieces.words == 5


def test_a_header_packing_and_spaces_in_words_change_nothing(
    words: Tokenizer, tmp_path: Path
) -> None:
    plain = piece_vectors(write(tmp_path / "glove.txt", ROWS), words)
    headed = tmp_path / "fasttext.vec.gz"
    headed.write_bytes(gzip.compress(f"5 2\n{ROWS}".replace("\n", " \n").encode()))
    np.testing.assert_array_equal(piece_vectors(headed, words).vectors, plain.vectors)
    spaced = write(tmp_path / "spaced.txt", f"{ROWS}. . . 7 8\n")
    assert vector_size(spaced) == 2
    assert piece_vectors(spaced, words).words == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a word and its numbers a line, got an empty file"),
        (b"low 1 2\nnew 3\n", ":2: expected a word and 2 numbers with spaces between, got"),
        (b"low 1 2\nnew 3 x\n", ":2: expected a word and 2 numbers .* got '3 x'"),
        (b"low 1 2\nnew 3 nan\n", ":2: expected a word and 2 numbers"),
        (b"low\n", ":1: expected a word and 1 numbers"),
        (b"2 2\nlow \x80\x81\xff", ":2: expected UTF-8, got other bytes"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(
    words: Tokenizer, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        piece_vectors(path, words)
