"""Read a tokenizer from a folder, whichever library and however long ago wrote it.

Three forms are built here: `tokenizer.json`; `vocab.txt` alone, BERT's WordPiece (Devlin et al.,
2019); `vocab.json` with `merges.txt`, RoBERTa's byte-level BPE (Liu et al., 2019). Everything else,
such as a sentencepiece model, is converted by `transformers`. Beside the vocabulary a folder may
state names of special tokens and settings in `tokenizer_config.json`, `special_tokens_map.json` and
`added_tokens.json`; these files are optional, and so is each key in them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import CheckpointError
from finetune.files.placeholders import refuse_placeholder_file
from finetune.text.tokenizer.stated import (
    BERT_SETTINGS,
    ROLES,
    check_ids,
    flag,
    read_json,
    read_stated,
    role_names,
)
from finetune.text.tokenizer.vocabulary_files import byte_level, wordpiece

if TYPE_CHECKING:
    import tokenizers

_ALL_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model"),
    *("tiktoken.model", "bpe.codes"),
)
# Class or model type, as folders state it -> form. Classes that fit any form are no statement.
_FORMS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), "wordpiece"),
    **dict.fromkeys(("bert", "distilbert", "electra"), "wordpiece"),
    **dict.fromkeys(("RobertaTokenizer", "roberta"), "byte-level"),
    **dict.fromkeys(("PreTrainedTokenizer", "TokenizersBackend", ""), "any"),
}
_SAMPLE = "a \u6f22 \U0010ffff"
"""Letters that every, that some and that no vocabulary has."""
_MAKE_ONE = "make one with `finetune tokenizer --corpus PATH --out"


def holds_tokenizer(folder: Path) -> bool:
    """Say whether a folder has the files of a tokenizer, in any form."""
    return any((folder / name).is_file() for name in _ALL_FILES)


def read_tokenizer(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Read the tokenizer of a folder.

    Args:
        folder: Has a vocabulary in one of the forms above.

    Returns:
        The tokenizer, and the name of the special token of each role in `ROLES` that it has.

    Raises:
        CheckpointError: There is none, a file is damaged, or it cannot be converted.
    """
    stated = read_stated(folder)
    form = _form(folder, stated)
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
        _overrule(backend, stated, form, folder)
    elif (folder / "vocab.txt").is_file() and form in ("wordpiece", "any"):
        backend = wordpiece(folder, stated)
    elif (folder / "vocab.json").is_file() and form in ("byte-level", "any"):
        backend = byte_level(folder, stated)
    elif holds_tokenizer(folder):
        return _converted(folder, named=form != "any")
    else:
        raise CheckpointError(
            f"{folder}: expected a tokenizer (tokenizer.json), got none, and no vocab.txt, "
            f"vocab.json with merges.txt or sentencepiece model either; {_MAKE_ONE} {folder}`"
        )
    return backend, role_names(stated, backend.get_vocab(with_added_tokens=True))


def _form(folder: Path, stated: dict[str, Any]) -> str:
    """The form that the folder's class of tokenizer has: `any` if unsaid, `other` if not ours."""
    name = str(stated.get("tokenizer_class") or "").removesuffix("Fast")
    if _FORMS.get(name) == "any" and (folder / "config.json").is_file():
        name = str(read_json(folder / "config.json").get("model_type") or "")
    return _FORMS.get(name, "other")


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    refuse_placeholder_file(path, CheckpointError)
    check_ids(_ids_in(path), path)
    with _failures_as_errors(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
    unknown = getattr(backend.model, "unk_token", None)
    # Without it the first unknown word is an error; BPE leaves out what it does not know.
    if type(backend.model).__name__ != "BPE" and unknown:
        _check_unknown(backend, unknown, path)
    _try_out(backend, path)
    return backend


@contextmanager
def _failures_as_errors(path: Path) -> Iterator[None]:
    """Report in one line what the library cannot read, or panics at, without its own report.

    Raises:
        CheckpointError: It failed.
    """
    try:
        with _unheard():
            yield
    except BaseException as error:  # bare Exception for a malformed file, or a panic
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{path}: not a readable tokenizer: {error}") from error


@contextmanager
def _unheard() -> Iterator[None]:
    """Send the error stream of the process nowhere: a panic writes there before it is an error."""
    try:
        stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # it is closed already
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _try_out(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Encode a pair, so that what fails on every text, or on an unknown one, fails now."""
    with _failures_as_errors(path):
        sample = backend.encode(_SAMPLE, _SAMPLE)
    highest = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
    if sample.ids and max(sample.ids) > highest:
        raise CheckpointError(
            f"{path}: not a readable tokenizer: expected ids up to {highest} around a text, got "
            f"{max(sample.ids)}; give the file as it was published with the weights"
        )


def _ids_in(path: Path) -> dict[str, int]:
    """The ids that a tokenizer.json gives its tokens; the library reports other forms."""
    try:
        content = read_json(path)
    except CheckpointError:
        return {}
    model, added = content.get("model"), content.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = list(vocabulary.items()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list):  # of pieces with their scores
        tokens = [(str(number), number) for number in range(len(vocabulary))]
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict):
            tokens.append((str(entry.get("content")), entry.get("id")))
    return {token: number for token, number in tokens if isinstance(number, int)}


def _check_unknown(backend: tokenizers.Tokenizer, unknown: str, path: Path) -> None:
    if backend.model.token_to_id(unknown) is None:
        raise CheckpointError(
            f"{path}: not a readable tokenizer: expected its unknown token {unknown!r} in the "
            "model's vocabulary, got none; give the file as it was published with the weights"
        )


def _overrule(
    backend: tokenizers.Tokenizer, stated: dict[str, Any], form: str, folder: Path
) -> None:
    """Let stated settings of BERT and RoBERTa overrule tokenizer.json, as transformers does."""
    kind = type(backend.normalizer).__name__, type(backend.pre_tokenizer).__name__
    if form == "wordpiece" and kind[0] == "BertNormalizer":
        part, settings = backend.normalizer, BERT_SETTINGS
    elif form == "byte-level" and kind[1] == "ByteLevel":
        part, settings = backend.pre_tokenizer, {"add_prefix_space": ("add_prefix_space", False)}
    else:
        return
    for theirs, (ours, default) in settings.items():
        if theirs in stated:
            setattr(part, ours, flag(stated, theirs, default, folder))


def _converted(folder: Path, *, named: bool) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Let transformers make a fast tokenizer of the files; it never runs code of the folder."""
    from transformers import AutoTokenizer
    from transformers.convert_slow_tokenizer import convert_slow_tokenizer

    file = next(name for name in _ALL_FILES if (folder / name).is_file())
    refuse_placeholder_file(folder / file, CheckpointError)
    if not named:
        raise CheckpointError(
            f"{folder}: expected the class of tokenizer that {file} is for, got none; write it "
            'to tokenizer_config.json, as {"tokenizer_class": "AlbertTokenizer"}'
        )
    try:
        with _silent("transformers"):
            theirs = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            backend = theirs.backend_tokenizer if theirs.is_fast else convert_slow_tokenizer(theirs)
    except Exception as error:  # many types: for a file, a class, a package that is missing
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{folder}: expected a tokenizer that can be converted, got {file}, which cannot "
            f"({reason}); make a tokenizer.json where it works, with save_pretrained of its class"
        ) from error
    _check_read(theirs, folder, file)
    names = {role: getattr(theirs, role, None) for role in ROLES}
    return backend, role_names(names, backend.get_vocab(with_added_tokens=True))


def _check_read(theirs: Any, folder: Path, file: str) -> None:
    # A class that does not find its file gives, without a word, a vocabulary of special tokens.
    files = type(theirs).vocab_files_names.values()
    if not any((folder / name).is_file() for name in files):
        raise CheckpointError(
            f"{folder}: expected one of {', '.join(sorted(files))}, which {type(theirs).__name__} "
            f"reads, got {file}; name another tokenizer_class in tokenizer_config.json"
        )


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a library from logging: what it would say is in the error."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
