"""Tokenize each different word once: most of a corpus is the same few thousand words.

WordPiece and byte-level BPE first cut a text into words and then look at each word alone. So a
text is cut here at places where they cut it too, and what a word becomes is looked up; several
times faster than tokenizing it all. New words are tokenized by the library, on all its threads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finetune.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

# Words cached at most, about 40 MB of them; then the cache starts again.
_LIMIT = 1 << 17
# The highest bit of a stored id says that the token starts a word.
_START = np.uint32(1 << 31)
# Before a single space between two words. Other white space may join its neighbours in one token.
_BYTE_LEVEL_CUT = re.compile(r"(?<=\S)(?= \S)")

Cut = Callable[[str], Sequence[str]]


class WordCache:
    """Text to token ids and word starts, by looking words up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with no words.

        Args:
            tokenizer: Splits the words; where its scheme is not known to look at words alone,
                whole texts are tokenized and nothing is cached.
        """
        self._tokenizer = tokenizer
        self._known: dict[str, bytes] = {}
        cut = word_cut(tokenizer.backend)
        self._cut: Cut = cut or (lambda text: (text,))
        self._limit = _LIMIT if cut else 0

    def encode(
        self, texts: Sequence[str]
    ) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
        """Split texts into tokens, without special tokens.

        Args:
            texts: N texts.

        Yields:
            For each text its token ids, uint32 (T,), and True where a token starts a word,
            bool (T,).
        """
        if len(self._known) > self._limit:
            self._known.clear()
        cut = [self._cut(text) for text in texts]
        self._learn(set(chain.from_iterable(cut)) - self._known.keys())
        for words in cut:
            marked = np.frombuffer(b"".join(map(self._known.__getitem__, words)), np.uint32)
            yield marked & ~_START, marked >= _START

    def _learn(self, words: Collection[str]) -> None:
        encodings = self._tokenizer.encode_batch(list(words))
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.uint32)
        numbers = np.fromiter(chain.from_iterable(e.word_ids for e in encodings), np.int64)
        lengths = np.fromiter((len(e.ids) for e in encodings), np.int64)
        begins = np.cumsum(lengths) - lengths
        starts = np.diff(numbers, prepend=-1) != 0
        starts[begins[lengths > 0]] = True  # the number may be that of the word before
        stored, size = np.where(starts, ids | _START, ids).tobytes(), ids.itemsize
        ends = ((begins + lengths) * size).tolist()
        for word, begin, end in zip(words, (begins * size).tolist(), ends, strict=True):
            self._known[word] = stored[begin:end]


def word_cut(backend: tokenizers.Tokenizer) -> Cut | None:
    """Choose a function that cuts a text where a tokenizer is certain to cut it.

    Args:
        backend: The tokenizer.

    Returns:
        A function from a text to its parts, which give the same tokens alone as together; None if
        the scheme is not one that is known here.
    """
    added = backend.get_added_tokens_decoder().values()
    if any(token.rstrip or " " in token.content for token in added):
        return None
    state = json.loads(backend.to_str())
    splitter, normalizer = state["pre_tokenizer"] or {}, state["normalizer"] or {}
    scheme = (splitter.get("type"), normalizer.get("type"))
    if _splits_as_bert(splitter) and scheme[1] in (None, "BertNormalizer"):
        return _cut_at_spaces
    if scheme in (("ByteLevel", None), ("ByteLevel", "Lowercase")) and splitter["use_regex"]:
        return _BYTE_LEVEL_CUT.split
    return None


def _splits_as_bert(splitter: dict[str, Any]) -> bool:
    """Whether words end at spaces; whatever else a word is split at is inside of it."""
    if splitter.get("type") == "Sequence":
        first, *rest = splitter["pretokenizers"]
        return _splits_as_bert(first) and all(step.get("type") == "Split" for step in rest)
    return splitter.get("type") == "BertPreTokenizer"


def _cut_at_spaces(text: str) -> Sequence[str]:
    return text.replace("\n", " ").split(" ")
