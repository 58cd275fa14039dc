"""Texts of which hardly anything is in the vocabulary, and why: they become the unknown token.

A text of a script that the vocabulary has not seen, or one long word, is one [UNK] to WordPiece,
and a model learns nothing from it. So it is counted where texts become tokens, and reported.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from finetune.console.output import are, counted
from finetune.text.tokenizer.tokenizer import Tokenizer, is_empty

MOSTLY = 0.5
"""Fraction of a text's characters that must be unknown for the text to be counted."""
NOTICED = 0.02
"""Fraction of a corpus's words or tokens that must be unknown to be reported."""
_HARDLY = 0.1
"""Fraction of unknown tokens below which a text is not looked at more closely."""
_SAMPLE = 20
"""Unknown texts that are looked at for the cause."""
_WAY_OUT = (
    "train a tokenizer on such texts (finetune tokenizer; --algorithm bpe knows every character) "
    "or start from an encoder that was trained on them"
)


def is_mostly_unknown(tokenizer: Tokenizer, text: str, unknown: int, tokens: int) -> bool:
    """Whether more than half of a text's characters become the unknown token.

    Args:
        tokenizer: Splits the text.
        text: The text.
        unknown: How many of its tokens are the unknown one.
        tokens: How many tokens it has.
    """
    # To split a text again is dear, and so few tokens hardly cover half of its characters.
    if not tokens or unknown < _HARDLY * tokens:
        return False
    if unknown == tokens:
        return True
    (encoding,) = tokenizer.encode_batch([text])
    covered = sum(
        end - start
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        if number == tokenizer.unk_token_id
    )
    return covered > MOSTLY * sum(not character.isspace() for character in text)


class HasTokens(Protocol):
    """A sequence of token ids, as `Features` are one."""

    @property
    def input_ids(self) -> Sequence[int] | npt.NDArray[Any]:
        """Token ids (T,)."""


class UnknownTexts:
    """Counts texts that are mostly unknown, and those that are empty, as they come by."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with none.

        Args:
            tokenizer: Splits the texts.
        """
        self.tokenizer = tokenizer
        self.texts = self.unknown = self.empty = 0
        self._sample: list[str] = []

    def add(
        self, sequences: Iterable[tuple[int, HasTokens]], texts: Sequence[Sequence[str]]
    ) -> None:
        """Count examples.

        Args:
            sequences: Their sequences, each with the number of its example.
            texts: The texts of each example (N, …).
        """
        unknown, tokens = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        framing = self.tokenizer.template(pair=False).size
        for owner, feature in sequences:
            ids = np.asarray(feature.input_ids)
            unknown[owner] += np.count_nonzero(ids == self.tokenizer.unk_token_id)
            tokens[owner] += max(0, len(ids) - framing)
        self.texts += len(texts)
        self.empty += sum(all(map(is_empty, parts)) for parts in texts)
        for number in np.flatnonzero(unknown).tolist():
            text = " ".join(texts[number])
            if is_mostly_unknown(self.tokenizer, text, unknown[number], tokens[number]):
                self.unknown += 1
                self._sample += [text] * (len(self._sample) < _SAMPLE)

    def warnings(self) -> list[str]:
        """Say how many there were, and why, if there were any."""
        if not self.unknown:
            return []
        name = self.tokenizer.special_tokens["unk_token"]
        return [
            f"{self.unknown:,} of {counted(self.texts, 'text')} ({self.unknown / self.texts:.0%}) "
            f"{are(self.unknown)} mostly {name} to this tokenizer, so hardly anything of "
            f"{'it' if self.unknown == 1 else 'them'} is read: "
            f"{cause(self.tokenizer, self._sample)}; {_WAY_OUT}"
        ]


def cause(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """Say why words of texts become the unknown token.

    Args:
        tokenizer: Splits the texts.
        texts: Some that have unknown words.

    Returns:
        A clause: characters that are not in the vocabulary, words that are too long, or both.
    """
    limit = getattr(tokenizer.backend.model, "max_input_chars_per_word", None)
    words = [word for text in texts for word in _words(tokenizer, text)]
    known = {letter for token in tokenizer.backend.get_vocab() for letter in token}
    long = [word for word in words if limit is not None and len(word) > limit]
    missing = Counter(letter for word in words for letter in word if letter not in known)
    clauses = []
    if missing:
        clauses.append(missing_letters(missing))
    if long:
        clauses.append(
            f"words of more than {limit} characters are not split (the longest has "
            f"{max(map(len, long)):,}; is it a script without spaces, a link or a key?)"
        )
    return " and ".join(clauses) or "their words are not in the vocabulary"


def _words(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """The words of a text as the model looks at them."""
    backend = tokenizer.backend
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        yield from text.split()
    else:
        yield from (word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))


def missing_letters(missing: Counter[str]) -> str:
    """Say which characters are not in a vocabulary: how many, of which scripts, and the usual ones.

    Args:
        missing: Character -> how often it was seen.
    """
    usual = [letter for letter, _ in missing.most_common(5)]
    scripts = Counter[str]()
    for letter, count in missing.items():
        scripts[_script(letter)] += count
    named = ", ".join(name for name, _ in scripts.most_common(3))
    return (
        f"{len(missing):,} of their characters are not in the vocabulary ({named}: "
        f"{' '.join(usual)}{' …' * (len(missing) > len(usual))})"
    )


def _script(letter: str) -> str:
    """The first word of a character's name in Unicode, which is its script if it has one."""
    return unicodedata.name(letter, "other").split()[0].capitalize()


def lost_words(words: dict[str, int], letters: Collection[str]) -> float:
    """The fraction of counted words that have a character which a vocabulary leaves out.

    Args:
        words: Word -> how often it was seen.
        letters: The characters that are kept.
    """
    alphabet = set(letters)
    lost = sum(count for word, count in words.items() if not alphabet.issuperset(word))
    return lost / max(1, sum(words.values()))
