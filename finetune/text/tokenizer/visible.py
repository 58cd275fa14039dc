"""What people see of a text and of a token."""

from __future__ import annotations

import unicodedata

from finetune.text.tokenizer.tokenizer import Tokenizer


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
