"""A checkpoint is a folder: model.safetensors, config.json and the tokenizer's files.

It is written completely or not at all: into a temporary folder beside it, flushed to the disk, then
renamed. It contains no pickle and no code: weights in safetensors, everything else in JSON.

What only resuming needs (optimizer state, position in the data) is in the same folder as
`trainer.pt` and is read with `weights_only=True`. `checksums.json` has a digest of each file,
which is checked when the file is read; a checkpoint of an earlier version has none and is read
without a check.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from finetune.checkpoints.seed_folders import CHECKPOINTS, RESULTS, seed_folders
from finetune.checkpoints.seed_folders import CONFIG as RUN_CONFIG
from finetune.checkpoints.stored import (
    check_file_size,
    check_kinds,
    check_vocabulary,
    load_weights,
)
from finetune.encoder.config import EncoderConfig
from finetune.encoder.cost import parameters
from finetune.errors import CheckpointError, ConfigError
from finetune.files.checksums import check_files, file_digest, read_checksums, write_checksums
from finetune.files.placeholders import refuse_placeholder_file
from finetune.files.sharded import has_parts, parts_of, read_weights
from finetune.files.writing import new_folder, old_of
from finetune.text.tokenizer.stated import read_json
from finetune.text.tokenizer.tokenizer import TOKENIZER_FILES, Tokenizer
from finetune.text.tokenizer.tokenizer_files import holds_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from finetune.encoder import Encoder

WEIGHTS, CONFIG, TRAINER = "model.safetensors", "config.json", "trainer.pt"
FILES = (WEIGHTS, CONFIG, *TOKENIZER_FILES)
"""The files that determine a model's answers."""
BEST_THEN_LAST = (f"{CHECKPOINTS}/best", f"{CHECKPOINTS}/last")
FORMAT = "finetune"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose description was read; the weights are read on request."""

    folder: Path
    encoder_config: EncoderConfig
    head: dict[str, Any]
    """`kind` and the settings that the head was built with; {} for an encoder alone."""
    task: str | None
    labels: tuple[str, ...]
    """Names of the head's outputs in order; () for heads without names."""
    decision: dict[str, float] = field(default_factory=dict)
    """Thresholds, tuned on a validation split, that turn logits into answers."""
    source: dict[str, str] = field(default_factory=dict)
    """`family` and `name` of the published encoder it was imported from; {} if not imported."""
    checksums: dict[str, str] = field(default_factory=dict, repr=False)
    """File -> digest, as read when the folder was found; {} where it has none."""
    _checked: set[str] = field(default_factory=set, repr=False, compare=False)
    """Files whose content was compared with its digest."""

    def check(self, name: str) -> None:
        """Refuse a file that is not as it was saved; each file is checked once.

        Raises:
            CheckpointError: It is damaged.
        """
        if name not in self._checked:
            check_files(self.folder, [name], self.checksums)
            self._checked.add(name)

    def check_all(self) -> None:
        """Refuse a checkpoint with any file that is not as it was saved, except trainer.pt.

        Raises:
            CheckpointError: One is damaged or missing.
        """
        for name in FILES:
            self.check(name)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file that determines answers: the weights, their config, the tokenizer.

        A checkpoint with checksums is not read for it: each file is checked when it is read.
        """
        saved = self.checksums
        names = [name for name in FILES if (self.folder / name).is_file()]
        names += [] if WEIGHTS in names else parts_of(saved)
        return {name: saved.get(name) or file_digest(self.folder / name) for name in names}

    @property
    def digest(self) -> str:
        """One hash of `digests`, 64 hexadecimal digits; equal digests mean equal answers."""
        text = json.dumps(self.digests(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the weights were trained with.

        Raises:
            CheckpointError: It has more ids than the encoder has rows.
        """
        tokenizer = Tokenizer.load(self.folder)
        check_vocabulary(tokenizer, self.encoder_config, self.folder)
        return tokenizer

    def weights(self) -> dict[str, Tensor]:
        """All tensors by name (`encoder.…`, `head.…`, `pooler.…`), on the CPU.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        from safetensors.torch import load_file  # with torch, which config.json does not need

        path = self.folder / WEIGHTS
        if not path.is_file() and has_parts(self.folder):
            return read_weights(self.folder)
        try:
            weights = load_file(path)
        except Exception as error:  # of many types, for a damaged or a foreign header
            raise _damaged(path, error) from error
        self.check(WEIGHTS)
        return weights

    def weights_below(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, by what follows."""
        return _below(prefix, self.weights())

    def encoder(self) -> Encoder:
        """The encoder with its weights, in eval mode."""
        from finetune.encoder import Encoder

        encoder = Encoder(self.encoder_config)
        load_weights(encoder, _below("encoder.", self.weights()), self.folder)
        return encoder.eval()

    def pooler(self) -> dict[str, Tensor] | None:
        """The dense layer D -> D that a published encoder was pretrained with, or None.

        BERT applies tanh and its classifiers to its output: a `cls` head may start from it.

        Returns:
            `weight` (D, D) and `bias` (D,).
        """
        path = self.folder / WEIGHTS
        try:
            with safe_open(path, "pt") as file:  # reads these tensors only
                named = {name: file.get_tensor(name) for name in file.keys() if "pooler." in name}
        except Exception as error:  # of many types, for a damaged or a foreign header
            raise _damaged(path, error) from error
        if named:
            self.check(WEIGHTS)
        return _below("pooler.", named) or None

    def load_into(self, module: nn.Module) -> None:
        """Copy all weights into a module with `encoder` and `head`, except those of a pooler.

        Raises:
            CheckpointError: A tensor is missing, left over, or has another shape.
        """
        weights = self.weights()
        needed = {name: each for name, each in weights.items() if not name.startswith("pooler.")}
        load_weights(module, needed, self.folder)


def _damaged(path: Path, error: Exception) -> CheckpointError:
    refuse_placeholder_file(path, CheckpointError)
    return CheckpointError(
        f"{path}: expected weights in safetensors form, got {error}; "
        "take another checkpoint or train again"
    )


def find_tokenizer(place: str | Path) -> Tokenizer:
    """Load the tokenizer of a tokenizer, checkpoint or run folder.

    Raises:
        CheckpointError: There is none.
    """
    root = Path(place)
    folders = (root / part for part in ("", "tokenizer", *BEST_THEN_LAST))
    return Tokenizer.load(next(filter(holds_tokenizer, folders), root))


def _below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = len(prefix)
    return {name[start:]: each for name, each in weights.items() if name.startswith(prefix)}


def save_checkpoint(
    folder: Path,
    module: nn.Module | Mapping[str, Tensor] | None,
    tokenizer: Tokenizer,
    *,
    encoder_config: EncoderConfig,
    head: Mapping[str, Any],
    task: str | None = None,
    labels: tuple[str, ...] = (),
    decision: Mapping[str, float] | None = None,
    source: Mapping[str, str] | None = None,
    trainer_state: Mapping[str, Any] | None = None,
    shared: bool = False,
    write_more: Callable[[Path], Mapping[str, str]] | None = None,
) -> None:
    """Write a checkpoint folder, completely or not at all.

    Args:
        folder: Where to write it; an old one is replaced only once the new one is complete.
        module: A module with `encoder` and `head`, whose state dict is stored; or that state dict;
            None where `write_more` writes the weights.
        tokenizer: Stored beside the weights.
        encoder_config: Shape of the encoder.
        head: `kind` and the settings of the head.
        task: Name of the task that the head is for.
        labels: Names of the head's outputs in order.
        decision: Thresholds, tuned on a validation split, that turn logits into answers.
        source: `family` and `name` of the published encoder that it was imported from.
        trainer_state: What resuming needs; tensors, numbers, strings, lists and dicts only.
        shared: Whether other processes may write the same checkpoint; the first complete one stays.
        write_more: Writes folders into the checkpoint, and gives the digests of their files.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old checkpoint is untouched.
    """
    import torch
    from safetensors.torch import save_file

    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "encoder": encoder_config.to_dict(),
        "head": dict(head),
        "task": task,
        "labels": list(labels),
        "decision": dict(decision or {}),
    }
    if source:
        description["source"] = dict(source)
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module
    more: Mapping[str, str] = {}

    with new_folder(folder, is_whole=_is_whole if shared else None) as temporary:
        if write_more is not None:  # other processes may be waiting for it
            more = write_more(temporary)
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (temporary / CONFIG).write_text(text + "\n", encoding="utf-8")
        if state is not None:
            tensors = {name: tensor.contiguous() for name, tensor in state.items()}
            save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
            # safetensors makes a file that only its owner may read; a run folder may be shared as
            # far as the umask allows.
            shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)
        tokenizer.save(temporary)
        if trainer_state is not None:
            # Through a Python file: torch's own writer does not report why it failed.
            with (temporary / TRAINER).open("wb", buffering=1 << 20) as file:
                torch.save(dict(trainer_state), file)
        write_checksums(temporary, more)


def _is_whole(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def find_folder(folder: Path) -> Path | None:
    """The complete folder at a path: itself, or the old one if a kill came between two renames."""
    return next(filter(_is_whole, (folder, old_of(folder))), None)


def load_checkpoint(place: str | Path) -> Checkpoint:
    """Read a checkpoint folder, or the best (else the last) checkpoint of a run folder.

    Args:
        place: A checkpoint folder or a run folder.

    Raises:
        CheckpointError: There is none, or its config.json cannot be read.
    """
    root = Path(place)
    folders = (root / part for part in ("", *BEST_THEN_LAST))
    folder = next(filter(None, map(find_folder, folders)), None)
    if folder is None:
        raise CheckpointError(
            f"{root}: expected a run folder or a checkpoint folder with {CONFIG}, got "
            f"{_instead(root)}"
        )
    return _read_description(folder)


def _instead(root: Path) -> str:
    """What the folder is if it is not a checkpoint, and what to do."""
    if not root.exists():
        return "no such folder; give the --out of a pretraining run"
    if seeds := seed_folders(root):
        return f"a run of several seeds; name one: {seeds[0]}"
    if any((root / name).is_file() for name in (RUN_CONFIG, RESULTS)):
        return "a run without checkpoints: none is saved yet, or they were removed; train again"
    return "neither; give the --out of a pretraining run"


def _read_description(folder: Path) -> Checkpoint:
    path = folder / CONFIG
    # Before the files: if a running job replaces the folder meanwhile, the check fails, and nobody
    # reads a mixture of two checkpoints.
    checksums = read_checksums(folder)
    description = read_json(path)
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: expected a checkpoint of this framework (format: {FORMAT}), got "
            "another format; folders of other libraries must be imported first"
        )
    if description.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: expected format_version {FORMAT_VERSION}, got "
            f"{description.get('format_version')!r}; use the version of finetune that wrote it"
        )
    check_kinds(description, path)
    try:
        checkpoint = Checkpoint(
            folder=folder,
            encoder_config=EncoderConfig.from_dict(description["encoder"]),
            head=description["head"],
            task=description["task"],
            labels=tuple(description["labels"]),
            decision=description.get("decision", {}),
            source=description.get("source", {}),
            checksums=checksums,
        )
    except KeyError as error:
        raise CheckpointError(
            f"{path}: expected a field {error}, got none; take another checkpoint"
        ) from error
    except (ConfigError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: expected the shape of an encoder, got: {error}; take another checkpoint"
        ) from error
    check_file_size(parameters(checkpoint.encoder_config), [folder / WEIGHTS], path)
    checkpoint.check(CONFIG)
    return checkpoint


def load_trainer_state(folder: Path) -> dict[str, Any] | None:
    """What resuming needs, or None where there is no checkpoint to resume from.

    Raises:
        CheckpointError: The file is damaged.
    """
    complete = find_folder(folder)
    if complete is None:
        return None
    path = complete / TRAINER
    if not path.is_file():
        check_files(complete, [TRAINER])  # refuses if there was one, as its digest shows
        return None
    import torch

    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged file
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise CheckpointError(
            f"{path}: expected the state of an interrupted run, got a damaged file "
            f"({reason}); start again with --overwrite"
        ) from error
    check_files(complete, [TRAINER])
    return state
