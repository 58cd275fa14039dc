"""Files with wrong content: a git-lfs pointer, or a web page saved under a file's name.

A clone without git-lfs has three lines in place of a file, and a download without a login has the
login page. Both are readable text, so every reader of a user's file checks for them here first.
"""

from __future__ import annotations

import re
from pathlib import Path

from finetune.errors import FinetuneError

START = 1024
"""Bytes at the start of a file that are checked."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
_PAGE = re.compile(rb"(<\?xml[^>]*>|<!--.*?-->|\s)*<(!doctype\s+html|html)\b", re.I | re.DOTALL)
_TITLE = re.compile(rb"<title[^>]*>\s*(.*?)\s*</title", re.I | re.DOTALL)
_BOM = b"\xef\xbb\xbf"


def refuse_placeholder(start: bytes, where: Path | str, error: type[FinetuneError]) -> None:
    """Refuse a file that is a placeholder of another file.

    Args:
        start: Its first bytes, `START` of them or fewer.
        where: The file, for the message.
        error: The error to raise.

    Raises:
        FinetuneError: The file is a git-lfs pointer or a web page.
    """
    start = start[:START].removeprefix(_BOM)
    if start.startswith(_POINTER):
        size = _SIZE.search(start)
        length = f" of {int(size[1]):,} bytes" if size else ""
        raise error(
            f"{where}: expected the file itself, got a git-lfs pointer to a file{length}; fetch "
            "it with `git lfs pull`, or download it"
        )
    if _PAGE.match(start):
        title = _TITLE.search(start)
        named = f" titled '{title[1].decode(errors='replace')[:60]}'" if title else ""
        raise error(
            f"{where}: expected the file itself, got a web page (HTML){named}; download the file "
            "by its direct address (on Hugging Face /resolve/ in place of /blob/), logged in where "
            "the site asks for it"
        )


def refuse_placeholder_file(path: Path, error: type[FinetuneError]) -> None:
    """The same for a file that a library opens, which also reports an unreadable file.

    Raises:
        FinetuneError: The file is a git-lfs pointer or a web page.
    """
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError:
        return
    refuse_placeholder(start, path, error)
