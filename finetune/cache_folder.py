"""Where what can be computed again is kept: tokenized texts, hidden states, imported encoders."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(given: str | None = None) -> Path:
    """The setting, FINETUNE_CACHE, or ~/.cache/finetune."""
    return Path(given or os.environ.get("FINETUNE_CACHE") or "~/.cache/finetune").expanduser()
