"""What the files beside a vocabulary state: names of special tokens, added tokens, settings.

They are `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, as Hugging Face
writes them. Each is optional, and so is each key in it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import quoted
from finetune.errors import CheckpointError
from finetune.files.placeholders import refuse_placeholder_file

if TYPE_CHECKING:
    import tokenizers

ROLES: dict[str, tuple[str, ...]] = {
    "pad_token": ("[PAD]", "<pad>", "<|endoftext|>"),
    "unk_token": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls_token": ("[CLS]", "<s>", "<|endoftext|>"),
    "sep_token": ("[SEP]", "</s>", "<|endoftext|>"),
    "mask_token": ("[MASK]", "<mask>", "<|endoftext|>"),
}
"""Role of a special token -> names it has in BERT, RoBERTa and GPT-2, which has one for all; they
are tried where a folder names none."""

BERT_SETTINGS: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),  # None: accents go with the capitals
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""Setting in tokenizer_config.json -> name in the library, and its default."""

MOST_UNUSED = 100_000
"""Ids without a token that a vocabulary may have, besides as many as it has tokens."""
LONGEST_JSON = 1 << 28
"""Bytes of a file beside a model: a vocabulary of a million tokens takes a third of it."""

_STATED_IN = ("tokenizer_config.json", "special_tokens_map.json")
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def read_stated(folder: Path) -> dict[str, Any]:
    """Read the optional files.

    Args:
        folder: May have any of them.

    Returns:
        All keys together, the tokens of `added_tokens.json` below that key.

    Raises:
        CheckpointError: A file is not a JSON object, or a special token has no name.
    """
    stated: dict[str, Any] = {}
    for name in _STATED_IN:
        if (folder / name).is_file():
            stated |= (content := read_json(folder / name))
            for role in ROLES.keys() & content.keys():
                _check_name(content[role], role, folder / name)
    if (folder / "added_tokens.json").is_file():
        stated["added_tokens.json"] = read_json(folder / "added_tokens.json")
    return stated


def _check_name(token: Any, role: str, path: Path) -> None:
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str | None):
        raise CheckpointError(
            f"{path}: expected the name of a token for {role}, got {name!r}; "
            f"name one of the vocabulary's, such as {ROLES[role][0]!r}"
        )


def role_names(stated: dict[str, Any], vocabulary: Container[str]) -> dict[str, str]:
    """Find the special token of each role: as stated, otherwise a usual name that is there.

    Args:
        stated: Role -> name, or an object with the name as `content`; may have other keys.
        vocabulary: The tokens there are.

    Returns:
        Role -> name, without roles that have none.
    """
    names = {}
    for role, usual in ROLES.items():
        token = stated.get(role)  # a name, or an object with flags: transformers writes both
        token = token.get("content") if isinstance(token, dict) else token
        known = [name for name in usual if name in vocabulary]
        if token or known:
            names[role] = token or known[0]
    if list(names) == ["unk_token"]:  # as in GPT (openai-gpt), which has no other
        return dict.fromkeys(ROLES, names["unk_token"])
    return names


def added_tokens(stated: dict[str, Any], folder: Path) -> list[tuple[int, tokenizers.AddedToken]]:
    """List the tokens that were added to a vocabulary, with the ids they were given.

    Args:
        stated: What the folder states; `added_tokens_decoder` counts before `added_tokens.json`.
        folder: Named in errors.

    Returns:
        Pairs of id and token, by id.

    Raises:
        CheckpointError: An entry is not an id with a token.
    """
    decoder = stated.get("added_tokens_decoder")
    entries = decoder or {
        number: {"content": name, "special": False}
        for name, number in stated.get("added_tokens.json", {}).items()
    }
    try:
        return sorted(
            ((int(number), _token(entry)) for number, entry in entries.items()),
            key=lambda pair: pair[0],
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        name = f"{_STATED_IN[0]}: added_tokens_decoder" if decoder else "added_tokens.json"
        raise CheckpointError(
            f"{folder}/{name}: expected tokens with their ids, got another form ({error!r}); "
            "give the file as it was published with the weights"
        ) from error


def special_tokens(
    stated: dict[str, Any], names: dict[str, str], folder: Path
) -> list[tokenizers.AddedToken]:
    """List the special tokens with how they take up space around them.

    Args:
        stated: What the folder states; a token may be an object with `lstrip` and the like.
        names: Role -> name.
        folder: Named in errors.

    Returns:
        A token for each role in `names`, then those that have no role.

    Raises:
        CheckpointError: What should be a list of tokens is not.
    """
    roles = [stated.get(role) or name for role, name in names.items()]
    more = [entry for key in _MORE_SPECIAL for entry in _listed(stated, key, folder)]
    return [_token(entry, special=True) for entry in (*roles, *more)]


def _listed(stated: dict[str, Any], key: str, folder: Path) -> list[Any]:
    entries = stated.get(key) or []
    entries = list(entries.values()) if isinstance(entries, dict) else entries
    whole = isinstance(entries, list) and all(
        isinstance(entry.get("content") if isinstance(entry, dict) else entry, str)
        for entry in entries
    )
    if not whole:
        raise CheckpointError(
            f"{folder}: expected tokens in {key}, got {entries!r}; correct or remove it"
        )
    return list(entries)


def _token(entry: Any, **flags: bool) -> tokenizers.AddedToken:
    from tokenizers import AddedToken

    if isinstance(entry, str):
        return AddedToken(entry, **flags)
    stated = {key: bool(entry[key]) for key in _TOKEN_FLAGS if key in entry}
    return AddedToken(entry["content"], **(stated | flags))


def flag(stated: dict[str, Any], key: str, default: bool | None, folder: Path) -> bool | None:
    """Read a setting that is true or false.

    Args:
        stated: What the folder states.
        key: The setting.
        default: The value where it is missing, or null.
        folder: Named in errors.

    Raises:
        CheckpointError: It is something else.
    """
    value = stated.get(key)
    if not isinstance(value, bool | None):
        raise CheckpointError(
            f"{folder}/{_STATED_IN[0]}: {key} must be true or false, got {value!r}; correct or "
            "remove it"
        )
    return default if value is None else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object.

    Raises:
        CheckpointError: It cannot be read or is something else.
    """
    refuse_placeholder_file(path, CheckpointError)
    try:
        if (size := path.stat().st_size) > LONGEST_JSON:
            raise CheckpointError(
                f"{path}: expected at most {LONGEST_JSON >> 20} MiB of JSON, got {size:,} bytes"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def check_ids(ids: Mapping[str, int], path: Path) -> None:
    """Refuse ids with large gaps: an encoder has a row for each number up to the highest.

    Args:
        ids: Token -> id.
        path: The file that gives them, for the message.

    Raises:
        CheckpointError: The highest id lies far above the number of tokens.
    """
    if not ids:
        return
    token = max(ids, key=lambda token: ids[token])
    if ids[token] > 2 * len(ids) + MOST_UNUSED:
        raise CheckpointError(
            f"{path}: expected ids from 0 on for {len(ids):,} tokens, got {quoted(ids[token])} "
            f"for {quoted(token)}; give the file as it was published with the weights"
        )


def read_text(path: Path) -> str:
    """Read a file as UTF-8, line ends as they are.

    Raises:
        CheckpointError: It cannot be read, or is not UTF-8.
    """
    refuse_placeholder_file(path, CheckpointError)
    try:
        content = path.read_bytes()
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CheckpointError(
            f"{path}: expected UTF-8, got byte 0x{content[error.start]:02x} in line {line}; "
            "give the file as it was published with the weights"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path}: expected a readable file, got: {error}") from error
