"""Tokenizers to which the names of special tokens are text, wherever somebody wrote them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

# No character of any text: Unicode keeps it unassigned for ever.
_UNREACHABLE = "\U0010ffff"


def reading_names_as_text(text: str, names: Collection[str]) -> tokenizers.Tokenizer:
    """Copy a tokenizer so that some of its tokens are never found in a text.

    The library turns a `[SEP]` that somebody wrote into the separator itself, so a text could end
    its own sequence or hide as padding. Here such a name has no entry in the vocabulary: `[SEP]`
    becomes the tokens of a bracket, a word and a bracket. All ids stay as they are.

    Args:
        text: The tokenizer as JSON. Its other added tokens are still found.
        names: The tokens. The model must not know them either: sentencepiece has `<s>` among its
            pieces, and an added token that is not looked for would be found there.

    Returns:
        A tokenizer with the same ids, for encoding texts without special tokens around them.
    """
    from tokenizers import Tokenizer, models

    state = json.loads(text)
    for token in state["added_tokens"]:
        token["content"] = _renamed(token["content"], names)
    model = state["model"]
    if model.get("unk_token") is not None:
        model["unk_token"] = _renamed(model["unk_token"], names)
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_renamed(name, names): number for name, number in model["vocab"].items()}
        return Tokenizer.from_str(json.dumps(state))
    pieces = [(_renamed(name, names), score) for name, score in model["vocab"]]
    model["vocab"] = [list(piece) for piece in pieces]
    copy: Any = Tokenizer.from_str(json.dumps(state))
    # The library reads a score from a file with an error in its last digit, which may decide
    # between two ways to cut a word: the scores are handed over as numbers.
    copy.model = models.Unigram(
        pieces, unk_id=model["unk_id"], byte_fallback=model.get("byte_fallback", False)
    )
    return copy  # type: ignore[no-any-return]


def _renamed(name: str, names: Collection[str]) -> str:
    return f"{_UNREACHABLE}{name}" if name in names else name
