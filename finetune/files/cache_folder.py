"""The cache folder: tokenized texts, hidden states, imported encoders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finetune.errors import ConfigError

_NO_FOLDER = (
    errno.EACCES,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


def cache_folder(given: str | None = None) -> Path:
    """The setting, FINETUNE_CACHE, or ~/.cache/finetune.

    Raises:
        ConfigError: It is in a home folder, and the user has none; or it is a file, or in one.
    """
    folder = Path(given or os.environ.get("FINETUNE_CACHE") or "~/.cache/finetune")
    try:
        folder = folder.expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{folder}: there is no home folder; set HOME, or name a folder by --cache-dir or in "
            "the variable FINETUNE_CACHE"
        ) from None
    above = (place for place in (folder, *folder.parents) if os.path.exists(place))
    if not os.path.isdir(place := next(above, folder)) and os.path.exists(place):
        setting = "cache_dir" if given else "FINETUNE_CACHE"
        reason = os.strerror(errno.ENOTDIR)
        raise ConfigError(
            f"{setting} {folder}: {place}: {reason}; name a folder that can be written"
        )
    return folder


@contextmanager
def named_by(setting: str, folder: Path) -> Iterator[None]:
    """Let an error in the block say which setting names the folder that it is about.

    By trying: where all is there that a run needs, a cache may be read-only.

    Raises:
        ConfigError: The folder is a file, or it cannot be made or written.
    """
    try:
        yield
    except OSError as error:
        place = Path(os.fsdecode(error.filename or ""))
        is_above = place in (folder, *folder.parents)
        is_below = folder in place.parents and error.errno != errno.ENOENT  # which others remove
        if error.errno in _NO_FOLDER and (is_above or is_below):
            raise ConfigError(
                f"{setting} {folder}: {place}: {error.strerror}; name a folder that can be written"
            ) from error
        raise
