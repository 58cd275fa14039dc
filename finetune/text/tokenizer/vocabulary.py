"""Learn a vocabulary from text: WordPiece or byte-level BPE, the same bytes for the same corpus.

WordPiece (Schuster and Nakajima, 2012; Devlin et al., 2019) marks the inside of a word by `##`.
Byte-level BPE (Sennrich et al., 2016; Radford et al., 2019) starts from the 256 bytes, so it
knows every text.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from finetune.errors import ConfigError, DataError
from finetune.ranges import MOST_STEPS, check_values, within
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer import Tokenizer, is_empty, tokenizer_threads
from finetune.text.tokenizer.unknown import NOTICED, lost_words

if TYPE_CHECKING:
    import tokenizers

SPECIAL_TOKENS = {role: names[0] for role, names in ROLES.items()}
"""Role -> the name it has in our vocabularies: BERT's."""


_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
LONG_WORDS = "|".join(
    f"{letter}{{1,100}}{end}"
    for letter in (f"[{_SPACELESS}]", f"[^{_SPACELESS}]")
    # A mark stays with its letter, unless a hundred of them follow each other.
    for end in (r"(?!\p{M})", "")
)
"""Pieces of a word that WordPiece looks at alone, as it does not split one of more than 100
characters. Thai, Lao, Burmese and Khmer have no spaces: a run of them is no part of another word,
and of what is written in one go only the piece with a rare character is unknown."""


@dataclass(frozen=True)
class TokenizerConfig:
    """The vocabulary to train.

    >>> from finetune import PretrainRun, TokenizerConfig
    >>> run = PretrainRun(["data/corpus.txt"], "runs/a", vocabulary=TokenizerConfig("bpe"))
    >>> run.vocabulary.vocab_size
    8192
    """

    algorithm: str = field(default="wordpiece", metadata={"words": ("wordpiece", "bpe")})
    """Subword algorithm: wordpiece or bpe (byte-level)."""
    vocab_size: int = within(1, 10_000_000, default=8192)
    """Number of tokens, special tokens included."""
    lowercase: bool = True
    """Convert text to lower case; WordPiece also strips accents, as BERT's uncased models do."""
    min_frequency: int = within(1, MOST_STEPS, default=2)
    """Minimum frequency of a pair of tokens that is merged."""
    limit_alphabet: int = within(1, 0x110000, default=1000)
    """WordPiece: number of characters in the alphabet; rarer ones become [UNK]."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: The algorithm is unknown or a number lies outside its range.
        """
        check_values(self)


def train_tokenizer(
    texts: Iterable[str], config: TokenizerConfig, *, at_most: bool = False
) -> Tokenizer:
    """Learn a vocabulary; the same texts and settings give the same tokenizer.

    Args:
        texts: The corpus, read once and not stored.
        config: What to learn.
        at_most: Take fewer tokens than `vocab_size` where the corpus gives no more.

    Returns:
        The tokenizer, with `[PAD] [UNK] [CLS] [SEP] [MASK]` as the first ids.

    Raises:
        ConfigError: The corpus gives fewer tokens than `vocab_size`, or the letters alone are
            more than that.
        DataError: The corpus has no text.
    """
    with tokenizer_threads():
        backend = ALGORITHMS[config.algorithm](_with_text(texts), config, at_most)
    # They are in the vocabulary already; marked here, so that decoding can leave them out.
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    backend.post_processor = _frame(backend, config.algorithm)
    return Tokenizer(backend, dict(SPECIAL_TOKENS))


def _check_size(size: int, config: TokenizerConfig, at_most: bool, letters: int = 0) -> None:
    """Refuse a vocabulary of another size than was asked for.

    Args:
        size: Tokens there are.
        config: What was asked for.
        at_most: Whether fewer will do.
        letters: Different characters of the corpus, where only some of them are kept.
    """
    if size < config.vocab_size and not at_most:
        more = "add text"
        if letters > config.limit_alphabet:
            more = f"raise limit_alphabet, which keeps {config.limit_alphabet} of {letters} letters"
        raise ConfigError(
            f"vocab_size {config.vocab_size} is more than this corpus can give: {size} tokens with "
            f"min_frequency {config.min_frequency}; ask for at most {size} or {more}"
        )
    if size > config.vocab_size:
        raise ConfigError(
            f"vocab_size {config.vocab_size} is too small: special tokens and single characters "
            f"alone are {size}; ask for more than that or lower limit_alphabet "
            "(characters beyond it are unknown)"
        )


def _with_text(texts: Iterable[str]) -> Iterator[str]:
    has_text = False
    for text in texts:
        has_text = has_text or not is_empty(text)
        yield text
    if not has_text:
        raise DataError("expected text to learn a vocabulary from, got none in the corpus")


def _wordpiece(
    texts: Iterable[str], config: TokenizerConfig, at_most: bool
) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.BertPreTokenizer(),
            pre_tokenizers.Split(Regex(LONG_WORDS), behavior="isolated"),
        ]
    )
    words = _count_words(texts, normalizer, splitter)
    vocabulary = _wordpiece_vocabulary(words, config, at_most)
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.decoder = decoders.WordPiece()
    return backend


def _count_words(texts: Iterable[str], normalizer: Any, splitter: Any) -> dict[str, int]:
    """Count each word of the corpus as the tokenizer will see it, in sorted order."""
    # Counted before it is normalized: most of a corpus is the same few thousand pieces.
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text.split())
    words: Counter[str] = Counter()
    for piece, count in raw.items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(piece)):
            words[word] += count
    return dict(sorted(words.items()))  # whatever the order of the texts


def _wordpiece_vocabulary(
    words: dict[str, int], config: TokenizerConfig, at_most: bool
) -> dict[str, int]:
    """Learn token -> id from counted words.

    The library numbers the letters inside words (`##a`) in the order of a hash map, which is
    another one in each process, and breaks ties by number. So the letters are numbered here,
    and go in as if they were special tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    letters = _alphabet(words, config.limit_alphabet)
    inside = {letter for word in words for letter in word[1:]} & set(letters)
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[*SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in sorted(inside))],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=sys.stderr.isatty(),
    )
    learner = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # words were split by `_count_words`
    learner.train_from_iterator(_repeated(words), trainer)
    vocabulary = dict(learner.get_vocab(with_added_tokens=True))
    characters = len(set().union(*words))
    _check_size(len(vocabulary), config, at_most, characters)
    if (lost := lost_words(words, letters)) > NOTICED:
        warnings.warn(
            f"{lost:.1%} of the corpus's words become {SPECIAL_TOKENS['unk_token']}: "
            f"limit_alphabet keeps {len(letters):,} of {characters:,} different characters; "
            f"raise it (--limit-alphabet {characters}, with a vocab_size that is larger still), or "
            "learn --algorithm bpe, which knows every character",
            stacklevel=2,
        )
    return vocabulary


def _alphabet(words: dict[str, int], limit: int) -> list[str]:
    """Return the most frequent characters, at most `limit` of them, in sorted order."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    return sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:limit])


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Yield each word as often as it was counted, in lines that are not too long."""
    for word, count in words.items():
        for done in range(0, count, 1000):
            yield f"{word} " * min(1000, count - done)


def _byte_level_bpe(
    texts: Iterable[str], config: TokenizerConfig, at_most: bool
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    if config.lowercase:
        backend.normalizer = normalizers.Lowercase()
    # With the prefix space a word at a text's start is the same token as inside it.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    backend.train_from_iterator(texts, trainer)
    _check_size(backend.get_vocab_size(), config, at_most)
    return backend


def _frame(backend: tokenizers.Tokenizer, algorithm: str) -> Any:
    """Make the rule that puts `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]` around texts."""
    from tokenizers import processors

    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    template = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, backend.token_to_id(name)) for name in (cls, sep)],
    )
    if algorithm == "wordpiece":
        return template
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])


ALGORITHMS = {"wordpiece": _wordpiece, "bpe": _byte_level_bpe}
"""Name -> function that learns a bare tokenizer."""
