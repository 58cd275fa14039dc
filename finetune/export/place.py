"""The folder that an export goes to: new, empty, or an older export that may be replaced."""

from __future__ import annotations

from pathlib import Path

from finetune.errors import ConfigError
from finetune.runs.folder import check_writable

CARD = "README.md"
EXPORTS = ("config.json", "model.safetensors", "model.onnx")
"""Files of which an exported folder holds at least one, beside its card."""


def check_out(out: Path, run: Path, *, overwrite: bool) -> None:
    """Say whether an export may have a folder, and touch nothing.

    Args:
        out: The folder that is asked for.
        run: What is exported.
        overwrite: Replace the export that is there.

    Raises:
        ConfigError: It is, or holds, the run; it cannot be written; it holds an export and
            `overwrite` was not said; or it holds something else.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out {out}: name a new folder, such as {out / 'export'}")
    check_writable(out)
    place, source = out.resolve(), run.resolve()
    if place == source or place in source.parents:
        raise ConfigError(f"--out {out}: contains the run that is exported; choose another folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not _is_export(out):
        raise ConfigError(
            f"{out} is not empty and contains no export; choose a new folder for --out"
        )
    if not overwrite:
        raise ConfigError(
            f"{out} already contains an export; replace it with --overwrite or choose another --out"
        )


def _is_export(folder: Path) -> bool:
    """Whether it looks as an export does: its card, weights or settings, and no further folder."""
    named = (folder / CARD).is_file() and any((folder / name).is_file() for name in EXPORTS)
    return named and all(path.is_file() for path in folder.iterdir())
