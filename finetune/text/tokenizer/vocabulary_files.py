"""Build a tokenizer from a vocabulary in text form: BERT's `vocab.txt`, RoBERTa's two files.

`vocab.txt` has a token a line, its number is its id. `vocab.json` maps tokens to ids, `merges.txt`
has the two tokens of a merge a line, the first merge first. How to split a text is not in them: it
is as published (Devlin et al., 2019; Liu et al., 2019) unless the folder states other settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import counted
from finetune.errors import CheckpointError
from finetune.text.tokenizer.stated import (
    BERT_SETTINGS,
    added_tokens,
    check_ids,
    flag,
    read_json,
    read_text,
    role_names,
    special_tokens,
)

if TYPE_CHECKING:
    import tokenizers

# Upper-case tokens of an uncased vocabulary are chance finds; in a cased one they are two in five.
_CASED_FRACTION = 0.05
_AS_PUBLISHED = "give the file as it was published with the weights"


def wordpiece(folder: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build BERT's tokenizer.

    Args:
        folder: Has `vocab.txt`.
        stated: What its other files say: `do_lower_case` (default true), `strip_accents` (as
            `do_lower_case`), `tokenize_chinese_chars` (true), names of special tokens.

    Returns:
        The tokenizer; two texts become `[CLS] a [SEP] b [SEP]`, the second with segment 1.

    Raises:
        CheckpointError: The vocabulary is damaged or does not fit what is stated.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = _token_lines(folder / "vocab.txt")
    settings: dict[str, Any] = {
        ours: flag(stated, theirs, default, folder)
        for theirs, (ours, default) in BERT_SETTINGS.items()
    }
    if "do_lower_case" not in stated:
        _check_uncased(vocabulary, folder)
    unknown = role_names(stated, vocabulary).get("unk_token")
    if unknown not in vocabulary:
        raise CheckpointError(
            f"{folder}/vocab.txt: expected the unknown token {unknown or '[UNK]'!r} in it, got "
            f"{len(vocabulary)} tokens without; {_AS_PUBLISHED}"
        )
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=str(unknown)))
    backend.normalizer = normalizers.BertNormalizer(**settings)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    if around := _add_tokens(backend, stated, folder):
        (cls, _), (sep, _) = around
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=around
        )
    return backend


def byte_level(folder: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build RoBERTa's tokenizer.

    Args:
        folder: Has `vocab.json` and `merges.txt`.
        stated: What its other files say: `add_prefix_space` (default false), `trim_offsets`
            (true), names of special tokens.

    Returns:
        The tokenizer; two texts become `<s> a </s></s> b </s>`, all with segment 0.

    Raises:
        CheckpointError: A file is missing or damaged, or the two do not fit each other.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = _token_ids(folder / "vocab.json")
    space = bool(flag(stated, "add_prefix_space", False, folder))
    trim = bool(flag(stated, "trim_offsets", True, folder))
    backend = Tokenizer(models.BPE(vocabulary, _merges(folder / "merges.txt", vocabulary)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    if around := _add_tokens(backend, stated, folder):
        cls, sep = around
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim, space)
    return backend


def _add_tokens(
    backend: tokenizers.Tokenizer, stated: dict[str, Any], folder: Path
) -> list[tuple[str, int]]:
    """Add the tokens that are no part of a text, and those that came after the vocabulary.

    Returns:
        Name and id of the class token and the separator; [] if one is missing, which is an error
        of the whole tokenizer and is reported there.
    """
    added = added_tokens(stated, folder)
    for number, token in added:
        backend.add_tokens([token])  # one at a time: the error names the first misfit
        if backend.token_to_id(token.content) != number:
            raise CheckpointError(
                f"{folder}: expected id {number} for the added token {token.content!r}, got "
                f"{backend.token_to_id(token.content)}; give the vocabulary that it was added to"
            )
    names = role_names(stated, backend.get_vocab(with_added_tokens=True))
    names = {role: name for role, name in names.items() if backend.token_to_id(name) is not None}
    known = {token.content for _, token in added if token.special}
    special = special_tokens(stated, names, folder)
    backend.add_special_tokens([token for token in special if token.content not in known])
    if not {"cls_token", "sep_token"} <= names.keys():
        return []
    around = [names[role] for role in ("cls_token", "sep_token")]
    return [(name, int(backend.token_to_id(name) or 0)) for name in around]


def _token_lines(path: Path) -> dict[str, int]:
    """Token -> line number from 0; blank lines at the end are no tokens."""
    tokens = [line.rstrip("\r") for line in read_text(path).split("\n")]
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise CheckpointError(f"{path}: expected a token a line, got none; {_AS_PUBLISHED}")
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if vocabulary.setdefault(token, number) != number:
            raise CheckpointError(
                f"{path}: expected each token once, got {token!r} in line "
                f"{vocabulary[token] + 1} and line {number + 1}; {_AS_PUBLISHED}"
            )
    return vocabulary


def _check_uncased(vocabulary: dict[str, int], folder: Path) -> None:
    cased = [token for token in vocabulary if token[:1] != "[" and token != token.lower()]
    if len(cased) > _CASED_FRACTION * len(vocabulary):
        raise CheckpointError(
            f"{folder}: expected do_lower_case in tokenizer_config.json, as vocab.txt has "
            f"{counted(len(cased), 'token')} with capitals, such as {cased[0]!r}; write "
            '{"do_lower_case": false} to tokenizer_config.json, or true if the model is uncased'
        )


def _token_ids(path: Path) -> dict[str, int]:
    vocabulary = read_json(path)
    if not vocabulary:
        raise CheckpointError(f"{path}: expected tokens with their ids, got none; {_AS_PUBLISHED}")
    tokens: dict[int, str] = {}
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < 1 << 32:
            raise CheckpointError(
                f"{path}: expected an id, a whole number from 0, for {token!r}, got {number!r}; "
                f"{_AS_PUBLISHED}"
            )
        if tokens.setdefault(number, token) != token:
            raise CheckpointError(
                f"{path}: expected each id once, got {number} for {tokens[number]!r} and "
                f"{token!r}; {_AS_PUBLISHED}"
            )
    check_ids(vocabulary, path)
    return vocabulary


def _merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Read pairs of tokens; both, and what they join to, must be in the vocabulary."""
    if not path.is_file():
        raise CheckpointError(
            f"{path.parent}: expected merges.txt beside vocab.json, got none; give both files, "
            "or a tokenizer.json"
        )
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        pair = line.rstrip("\r").split(" ")
        if line.startswith("#version") or pair == [""]:
            continue
        if len(pair) != 2:
            raise CheckpointError(
                f"{path}: expected two tokens and a space between them in line {number}, got "
                f"{line[:40]!r}; {_AS_PUBLISHED}"
            )
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise CheckpointError(
                    f"{path}: expected tokens of vocab.json, got {token!r} in line {number}, "
                    f"which it does not have; {_AS_PUBLISHED}"
                )
        merges.append((pair[0], pair[1]))
    return merges
