"""Texts in which there is nothing to read."""

from __future__ import annotations

import unicodedata


def is_empty(text: str) -> bool:
    r"""Whether a text has no character that can be seen.

    White space, control characters and format characters (zero-width space and joiner, byte order
    mark, soft hyphen, tags) are nothing to read; WordPiece makes no token of them.

    >>> is_empty(" \u200b\ufeff\n"), is_empty("a")
    (True, False)
    """
    # Control, format, private and unassigned characters begin with C, separators with Z.
    return all(unicodedata.category(character)[0] in "CZ" for character in text)
