"""The cache folder: tokenized texts, hidden states, imported encoders."""

from __future__ import annotations

import os
from pathlib import Path

from finetune.errors import ConfigError


def cache_folder(given: str | None = None) -> Path:
    """The setting, FINETUNE_CACHE, or ~/.cache/finetune.

    Raises:
        ConfigError: It is in a home folder, and the user has none.
    """
    folder = Path(given or os.environ.get("FINETUNE_CACHE") or "~/.cache/finetune")
    try:
        return folder.expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{folder}: there is no home folder; set HOME, or name a folder by --cache-dir or in "
            "the variable FINETUNE_CACHE"
        ) from None
