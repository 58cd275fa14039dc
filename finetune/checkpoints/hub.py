"""Find any encoder: in a run, a checkpoint, a Hugging Face folder, or by its name on the hub.

An encoder from Hugging Face is imported once into the cache folder, under a key made of its
content, and read from there like any other checkpoint.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.checkpoints.folder import (
    CONFIG,
    Checkpoint,
    find_folder,
    load_checkpoint,
    save_checkpoint,
)
from finetune.checkpoints.hf import is_hf_folder
from finetune.checkpoints.stored import check_vocabulary
from finetune.errors import CheckpointError
from finetune.files.cache_folder import cache_folder
from finetune.files.writing import remove
from finetune.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from finetune.checkpoints.hf import Imported

IMPORT_VERSION = 1
"""Part of the cache's key; increased when a change of the code imports the same folder
differently."""
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Weights on the hub, the preferred kind first."""
SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken")
"""Settings and tokenizers."""
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find_checkpoint(place: str | Path, cache_dir: str | None = None) -> Checkpoint:
    """Find an encoder of this framework or of Hugging Face.

    >>> import finetune
    >>> checkpoint = finetune.find_checkpoint("runs/pretrained")
    >>> encoder, tokenizer = checkpoint.encoder(), checkpoint.tokenizer()
    >>> encoder.config.vocab_size == tokenizer.vocab_size
    True

    Args:
        place: A run or checkpoint folder, a folder of Hugging Face, or a name on the hub.
        cache_dir: Where imported encoders are cached; default: FINETUNE_CACHE or
            ~/.cache/finetune.

    Returns:
        Its checkpoint. For an imported one, `source` names its origin.

    Raises:
        CheckpointError: There is none, it cannot be imported, or the hub cannot be reached.
    """
    folder = local_folder(place)
    if folder is None:
        return load_checkpoint(place)
    cached = cache_folder(cache_dir) / "encoders" / f"{_short_name(place)}-{_content_key(folder)}"
    imported = _intact(cached)
    if imported is None:
        _write(folder, cached, str(place), shared=True)
        imported = load_checkpoint(cached)
    return imported


def _intact(cached: Path) -> Checkpoint | None:
    """An encoder that was imported before; a damaged one is removed, to be imported again."""
    if find_folder(cached) is None:
        return None
    try:
        checkpoint = load_checkpoint(cached)
        checkpoint.check_all()
    except CheckpointError:
        warnings.warn(f"{cached}: the imported encoder is damaged; importing again", stacklevel=2)
        remove(cached)
        return None
    return checkpoint


def origin(checkpoint: Checkpoint) -> str:
    """Where an imported encoder is from and what was left out; "" for one that was not imported."""
    source = checkpoint.source
    if not source:
        return ""
    left_out = source.get("left_out") or "nothing"
    return f"encoder: {source['family']} from {source['name']}; left out: {left_out}"


def head_left_out(checkpoint: Checkpoint) -> str:
    """A line on the trained head that fine-tuning replaces by a new one; "" where none is lost."""
    kind = checkpoint.head.get("kind")
    if kind in (None, "masked_lm"):
        return ""
    whose = f" of {checkpoint.task}" if checkpoint.task else ""
    return f"left out: the encoder's {kind} head{whose}; this task trains a new one"


def import_hf(place: str | Path, out: Path) -> Imported:
    """Write a checkpoint of this framework from a folder of Hugging Face or a name on the hub.

    Args:
        place: The folder or the name.
        out: The checkpoint's folder, written completely or not at all.

    Returns:
        What was read, with the names of all tensors that were imported and left out.

    Raises:
        CheckpointError: There is nothing to import, or it cannot be expressed.
    """
    folder = local_folder(place)
    if folder is None:
        raise CheckpointError(
            f"{place}: expected a Hugging Face folder with {CONFIG}, got {_instead(Path(place))}"
        )
    return _write(folder, out, str(place))


def _instead(place: Path) -> str:
    """What the path is if it is not a Hugging Face folder, and what to do."""
    if not place.exists():
        return "no such folder; check the path"
    if place.is_file():
        return f"a file; name the folder that contains it, {place.parent}"
    try:
        load_checkpoint(place)
    except CheckpointError:
        instead = "one of another format" if (place / CONFIG).is_file() else "none"
        return f"{instead}; name the folder that contains it beside the weights"
    return (
        "a checkpoint of this framework, which needs no import: other commands take it by --encoder"
    )


def local_folder(place: str | Path) -> Path | None:
    """The Hugging Face folder of a path or a name on the hub, downloaded if needed; or None.

    Raises:
        CheckpointError: The hub does not know the name, or cannot be reached.
    """
    path = Path(place)
    if path.exists():
        return path if path.is_dir() and is_hf_folder(path) else None
    return fetch(str(place)) if HUB_NAME.fullmatch(str(place)) else None


def fetch(name: str) -> Path:
    """Download settings, weights and tokenizer of a model, or find them in the hub's cache.

    Raises:
        CheckpointError: The hub does not know the name, denies access, or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    folder = Path()
    for weights in WEIGHTS:
        wanted = [*SMALL, weights, f"0_Transformer/{weights}"]
        try:
            folder = Path(snapshot_download(name, allow_patterns=wanted))
        except Exception as error:  # by the hub, by the connection, or for a malformed name
            raise CheckpointError(_why_not(name, error)) from None
        if any(folder.glob(weights)) or any(folder.glob(f"0_Transformer/{weights}")):
            break
    return folder


def _why_not(name: str, error: Exception) -> str:
    """One line for each reason why the hub does not give a model."""
    kind = type(error).__name__
    start = f"{name}: no such folder, and "
    if kind == "GatedRepoError":
        return f"{start}the hub gives the model only to those who accepted its terms; log in there"
    if kind in ("RepositoryNotFoundError", "HFValidationError"):
        return f"{start}the hub knows no model of this name; check the spelling"
    return (
        f"{start}the hub cannot be reached for a model of this name ({kind}); name a local folder, "
        "or go online"
    )


def _write(folder: Path, out: Path, name: str, *, shared: bool = False) -> Imported:
    from finetune.checkpoints.hf import read_hf

    imported = read_hf(folder)
    tokenizer = Tokenizer.load(imported.folder)
    check_vocabulary(tokenizer, imported.encoder_config, imported.folder)
    save_checkpoint(
        out,
        imported.weights,
        tokenizer,
        encoder_config=imported.encoder_config,
        head=imported.head,
        labels=imported.labels,
        source={
            "family": imported.form.name,
            "name": name,
            "left_out": ", ".join(imported.left_out),
        },
        shared=shared,
    )
    return imported


def _short_name(place: str | Path) -> str:
    return Path(place).resolve().name if Path(place).exists() else str(place).rpartition("/")[2]


def _content_key(folder: Path) -> str:
    """Hash of all that an import reads, 32 hexadecimal digits."""
    key = hashlib.blake2b(str(IMPORT_VERSION).encode(), digest_size=16)
    files = {path for pattern in (*SMALL, *WEIGHTS) for path in folder.rglob(pattern)}
    for path in sorted(files):
        key.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            key.update(hashlib.file_digest(file, "blake2b").digest())
    return key.hexdigest()
