"""A tokenizer: text to token ids, offsets and word numbers, and back.

It wraps one `tokenizers.Tokenizer` and saves it so that `transformers` reads it too. Special
tokens are known by their role (pad, unknown, cls, sep, mask), whatever a folder calls them and
whatever ids they have. How a vocabulary is learned is in `vocabulary.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from finetune.errors import CheckpointError, DataError
from finetune.files.checksums import check_files
from finetune.files.writing import write_json, write_text
from finetune.text.tokenizer.names import reading_names_as_text
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer_files import read_tokenizer

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
"""What `save` writes."""
_THREADS = "TOKENIZERS_PARALLELISM"  # the library's switch


class Encoding(NamedTuple):
    """The tokens of one text, special tokens left out."""

    ids: list[int]
    """Token ids (T,)."""
    offsets: list[tuple[int, int]]
    """Start and end character of each token in the text, end exclusive (T,)."""
    word_ids: list[int]
    """Number of the word that each token is a part of, from 0 and rising (T,)."""


class Template(NamedTuple):
    """The special tokens that stand around one text or between two: `prefix a middle b suffix`."""

    prefix: list[int]
    """Before the first text; `[CLS]` in BERT."""
    middle: list[int]
    """Between two texts; `[SEP]` in BERT, empty for one text."""
    suffix: list[int]
    """After the last text; `[SEP]` in BERT."""
    second_type: int
    """Segment number of the second text and the suffix behind it: 1 in BERT, 0 in RoBERTa."""

    @property
    def size(self) -> int:
        """How many special tokens the template adds."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)


class Tokenizer:
    """Text to ids and back, with the special tokens known by role.

    >>> from finetune import Tokenizer
    >>> tokenizer = Tokenizer.load("runs/pretrained/tokenizer")
    >>> encoding, = tokenizer.encode_batch(["The good cat"])
    >>> encoding.offsets
    [(0, 3), (4, 8), (9, 12)]
    >>> tokenizer.decode(encoding.ids)
    'the good cat'

    Attributes:
        backend: The `tokenizers.Tokenizer` that does the work; it neither truncates nor pads.
        special_tokens: Role (`cls_token`, ...) -> the token's name in this vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> None:
        """Wrap a trained tokenizer.

        Args:
            backend: The tokenizer. Its truncation and padding are switched off.
            special_tokens: Name of the special token for each role in `ROLES`.

        Raises:
            CheckpointError: A role has no name, or its name is not in the vocabulary.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = special_tokens
        self._as_text = frozenset(special_tokens.values())
        self.pad_token_id = self._special_id("pad_token")
        self.unk_token_id = self._special_id("unk_token")
        self.cls_token_id = self._special_id("cls_token")
        self.sep_token_id = self._special_id("sep_token")
        self.mask_token_id = self._special_id("mask_token")

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to split every text as this one does."""
        return {name: getattr(self, name) for name in ("special_tokens", "_as_text", "_state")}

    def __setstate__(self, content: dict[str, Any]) -> None:
        """Read what `__getstate__` gave."""
        from tokenizers import Tokenizer as Backend

        Tokenizer.__init__(self, Backend.from_str(content["_state"]), content["special_tokens"])
        self.__dict__ |= content  # with scores that the library reads inexactly from the text

    @cached_property
    def _state(self) -> str:
        return str(self.backend.to_str())

    def _special_id(self, role: str) -> int:
        name = self.special_tokens.get(role)
        token_id = None if name is None else self.backend.token_to_id(name)
        if token_id is None:
            raise CheckpointError(
                f"the tokenizer has no {role}: got {name!r}, which is not in its vocabulary; "
                f"name one of its tokens in special_tokens_map.json, such as {ROLES[role][0]!r}"
            )
        return int(token_id)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read a folder written by `save`, by Hugging Face or by BERT's authors.

        Args:
            folder: Has `tokenizer.json`, or `vocab.txt`, or `vocab.json` with `merges.txt`, or
                what `transformers` can convert, such as a sentencepiece model. Role names come
                from `special_tokens_map.json` and `tokenizer_config.json`, or are the usual ones.

        Raises:
            CheckpointError: There is no tokenizer, it cannot be read or converted, a special
                token is missing, or a file is not as its checkpoint was saved.
        """
        check_files(Path(folder), TOKENIZER_FILES)
        backend, names = read_tokenizer(Path(folder))
        try:
            return cls(backend, names)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: {error}") from error

    def save(self, folder: str | Path) -> None:
        """Write the files that `load` and `transformers.AutoTokenizer.from_pretrained` read.

        Args:
            folder: Made where it does not exist; receives `tokenizer.json`,
                `tokenizer_config.json` and `special_tokens_map.json`.
        """
        folder = Path(folder)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        settings = {
            # The generic class takes tokenizer.json as it stands; BertTokenizer would rebuild it.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": _adds_prefix_space(self.backend),
            # Without this line transformers' generic class gives no segments.
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **self.special_tokens,
        }
        write_json(folder / "tokenizer_config.json", settings)
        write_json(folder / "special_tokens_map.json", self.special_tokens)

    @cached_property
    def vocab_size(self) -> int:
        """Rows that an embedding of these tokens needs: the highest id and one."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no part of any text: the roles and all other tokens marked special."""
        added = self.backend.get_added_tokens_decoder()
        marked = {token_id for token_id, token in added.items() if token.special}
        return frozenset(marked | {self._special_id(role) for role in ROLES})

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides which ids a text becomes: 64 hexadecimal digits."""
        # The library reads a score back from a file with an error in its last digit.
        state = json.loads(self._state, parse_float=lambda score: f"{float(score):.7g}")
        content = json.dumps([state, self.special_tokens], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def reading_masks(self) -> Tokenizer:
        """The same tokenizer, but the mask token's name in a text becomes the mask itself.

        The names of the other special tokens are text, as they always are.
        """
        other = Tokenizer(self.backend, self.special_tokens)
        other._as_text -= {self.special_tokens["mask_token"]}
        return other

    @cached_property
    def _reader(self) -> tokenizers.Tokenizer:
        """What encodes texts: the backend, to which the special tokens' names are only text."""
        return reading_names_as_text(self._state, self._as_text)

    @cached_property
    def _has_words(self) -> bool:
        # Without a pre-tokenizer the library calls the whole text one word.
        return self.backend.pre_tokenizer is not None

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Split texts into tokens, without special tokens; `[SEP]` in a text is text.

        Args:
            texts: N texts.

        Returns:
            N encodings, in order.

        Raises:
            DataError: A text is no Unicode text.
        """
        encodings = self._encoded("encode_batch", texts)
        return [
            Encoding(encoding.ids, encoding.offsets, self._word_ids(text, encoding))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Split texts into token ids alone, which is faster than `encode_batch`.

        Args:
            texts: N texts.

        Returns:
            N lists of token ids, without special tokens.

        Raises:
            DataError: A text is no Unicode text.
        """
        return [encoding.ids for encoding in self._encoded("encode_batch_fast", texts)]

    def _encoded(self, method: str, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Encode by the reader; while there is none, try without: to make it takes 0.1 s."""
        if "_reader" not in self.__dict__ and not self._cuts_by_scores:
            encodings = _encoded(getattr(self.backend, method), texts)
            names = {self.backend.token_to_id(name) for name in self._as_text}
            # Where no special token was found, there is nothing that the reader would not find.
            if all(names.isdisjoint(encoding.ids) for encoding in encodings):
                return encodings
        return _encoded(getattr(self._reader, method), texts)

    @cached_property
    def _cuts_by_scores(self) -> bool:
        from tokenizers import models

        return isinstance(self.backend.model, models.Unigram)

    def _word_ids(self, text: str, encoding: tokenizers.Encoding) -> list[int]:
        if self._has_words:
            # Only special tokens, which are not asked for, have no word.
            return cast("list[int]", encoding.word_ids)
        return _words_by_spaces(text, encoding.offsets)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens to text.

        Args:
            ids: Token ids (T,).
            skip_special_tokens: Leave out `[CLS]`, `[PAD]` and the like.
        """
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def template(self, *, pair: bool) -> Template:
        """Say which special tokens the tokenizer puts around one text or two.

        Args:
            pair: For two texts.

        Returns:
            The template; BERT's where the tokenizer has no rule of its own.
        """
        # Read off a sample: a tokenizer.json states this rule in one of several forms.
        sample = self.backend.encode("a", "a" if pair else None)
        if None not in sample.sequence_ids:
            middle = [self.sep_token_id] if pair else []
            return Template([self.cls_token_id], middle, [self.sep_token_id], 1)
        ids, owners = np.array(sample.ids), sample.sequence_ids
        last = int(pair)
        starts = [owners.index(text) for text in range(last + 1)]
        ends = [len(owners) - owners[::-1].index(text) for text in range(last + 1)]
        middle = ids[ends[0] : starts[1]].tolist() if pair else []
        return Template(
            prefix=ids[: starts[0]].tolist(),
            middle=middle,
            suffix=ids[ends[last] :].tolist(),
            second_type=int(sample.type_ids[starts[last]]) if pair else 0,
        )


def _encoded(encode: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]) -> list[Any]:
    """Encode texts, or say which one cannot be: a JSON escape may give half a character."""
    try:
        return encode(list(texts), add_special_tokens=False)
    except TypeError:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"expected Unicode text, got half a surrogate pair at character "
                    f"{error.start} of {text[:40]!r}; correct or remove it"
                ) from None
        raise


def _words_by_spaces(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Number words by white space, for tokenizers that have no words of their own."""
    numbers: list[int] = []
    word = -1
    for start, end in offsets:
        # A token may have the space before it as its own first character (sentencepiece).
        after_space = text[max(start - 1, 0) : start].isspace() or text[start:end][:1].isspace()
        word += not numbers or after_space
        numbers.append(word)
    return numbers


def _adds_prefix_space(backend: tokenizers.Tokenizer) -> bool:
    # transformers overrules tokenizer.json by this setting, so it must repeat what is there.
    state = json.loads(backend.to_str())["pre_tokenizer"] or {}
    return bool(state.get("add_prefix_space", False))


def is_empty(text: str) -> bool:
    r"""Whether a text has no character that can be seen.

    White space, control characters and format characters (zero-width space and joiner, byte order
    mark, soft hyphen, tags) are nothing to read; WordPiece makes no token of them.

    >>> is_empty(" \u200b\ufeff\n"), is_empty("a")
    (True, False)
    """
    # Control, format, private and unassigned characters begin with C, separators with Z.
    return all(unicodedata.category(character)[0] in "CZ" for character in text)


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as people read it: that of the vocabulary; bytes are decoded, a space before is ▁."""
    name = tokenizer.backend.id_to_token(token_id)
    if name is None:
        return f"#{token_id}"
    if "ByteLevel" in repr(tokenizer.backend.decoder) and token_id not in tokenizer.special_ids:
        return tokenizer.decode([token_id]).replace(" ", "▁")
    return str(name)


@contextmanager
def tokenizer_threads(workers: int = 0) -> Iterator[None]:
    """Let `tokenizers` use several threads inside the `with` block, and none after it.

    A process that has used them must not fork (a data worker does) with them switched on: the
    library would warn, or the child would wait for threads that it does not have.

    Args:
        workers: Number of threads, 1 or more; 0 for one a core. The library makes its threads
            once a process, so the first number above 1 stands.
    """
    chosen = os.environ.get(_THREADS)
    if workers > 1:
        os.environ.setdefault("RAYON_NUM_THREADS", str(workers))
    os.environ[_THREADS] = chosen or ("false" if workers == 1 else "true")
    try:
        yield
    finally:
        os.environ[_THREADS] = chosen or "false"
