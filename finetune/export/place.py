"""The output folder of an export: new, empty, or an older export that may be replaced."""

from __future__ import annotations

from pathlib import Path

from finetune.errors import ConfigError
from finetune.runs.opening import check_writable

CARD = "README.md"
EXPORTS = ("config.json", "model.safetensors", "model.onnx")
"""Files of which an exported folder has at least one, beside its card."""


def check_out(out: Path, run: Path, *, overwrite: bool) -> None:
    """Refuse an output folder that must not be replaced; nothing is changed.

    Args:
        out: The output folder.
        run: The run to export.
        overwrite: Whether an older export may be replaced.

    Raises:
        ConfigError: It is or contains the run; it cannot be written; it contains an export and
            `overwrite` is false; or it contains other files.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out {out}: name a new folder, such as {out / 'export'}")
    check_writable(out)
    target, source = out.resolve(), run.resolve()
    if target == source or target in source.parents:
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
    """Whether it is an export: a card, weights or settings, and no further folder."""
    has_files = (folder / CARD).is_file() and any((folder / name).is_file() for name in EXPORTS)
    return has_files and all(path.is_file() for path in folder.iterdir())
