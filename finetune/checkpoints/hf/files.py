"""The files of a Hugging Face folder: config.json, and weights in any form they are stored in.

safetensors, one file or several; or pickled tensors, which are read as tensors or refused: no code
of a file is ever run.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from finetune.errors import CheckpointError
from finetune.files.placeholders import refuse_placeholder_file
from finetune.text.tokenizer.stated import read_json

CONFIG = "config.json"
MODULES = "modules.json"
FOREIGN = ("*.h5", "*.msgpack", "*.ckpt.index", "*.gguf", "*.onnx", "adapter_model.*")
"""Weights of other frameworks, which are named where ours are missing."""


def model_folder(folder: Path) -> Path:
    """Where config.json and weights are: the folder, or that of a sentence encoder's first module.

    Older folders of sentence-transformers keep the model in `0_Transformer`.

    Raises:
        CheckpointError: The list of modules is none, or the place that it names is outside the
            folder or holds no config.json.
    """
    path = folder / MODULES
    if not path.is_file():
        return folder
    for module in _modules(path):
        if str(module.get("type", "")).endswith("Transformer"):
            place = str(module.get("path", ""))
            if not _is_inside(place):
                raise CheckpointError(
                    f"{path}: expected modules inside the folder, got the path {place!r}; "
                    "download it again"
                )
            if not (folder / place / CONFIG).is_file():
                raise CheckpointError(
                    f"{path}: names the module {place!r}, got no {CONFIG} there; download it too"
                )
            return folder / place
    return folder


def _is_inside(name: str) -> bool:
    """Whether a name that a file gives stays in its folder; links there may lead anywhere."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def other_modules(folder: Path) -> list[str]:
    """What a sentence encoder's folder puts behind the model: pooling, dense, normalisation."""
    path = folder / MODULES
    if not path.is_file():
        return []
    kinds = [(str(each.get("path")), str(each.get("type", ""))) for each in _modules(path)]
    return [f"{place} ({kind})" for place, kind in kinds if not kind.endswith("Transformer")]


def _modules(path: Path) -> list[dict[str, Any]]:
    refuse_placeholder_file(path, CheckpointError)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, list):
        raise CheckpointError(
            f"{path}: expected a list of modules, got {type(content).__name__}; download it again"
        )
    return [module for module in content if isinstance(module, dict)]


def weight_files(folder: Path) -> list[Path]:
    """The files that may hold the weights of a folder, whichever is read."""
    return [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, on the CPU, as they are stored.

    Args:
        folder: Holds model.safetensors or pytorch_model.bin, or one of their indices with shards.

    Returns:
        Their key -> tensor.

    Raises:
        CheckpointError: There are no weights, or they are damaged, incomplete or no weights at all.
    """
    kinds: tuple[tuple[str, Callable[[Path], dict[str, Tensor]]], ...] = (
        ("model.safetensors", _read_safetensors),
        ("pytorch_model.bin", _read_pickle),
    )
    for name, read in kinds:
        if (folder / name).is_file():
            return read(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder / f"{name}.index.json", read)
    found = sorted(path.name for pattern in FOREIGN for path in folder.glob(pattern))
    raise CheckpointError(
        f"{folder}: expected weights in model.safetensors or pytorch_model.bin, got "
        f"{', '.join(found) or 'none'}; download or convert them first"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    refuse_placeholder_file(path, CheckpointError)
    try:
        return load_file(path)
    except Exception as error:  # of many types, for a damaged or a foreign header
        raise CheckpointError(
            f"{path}: expected weights in safetensors form, got {error}; download the file again"
        ) from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    refuse_placeholder_file(path, CheckpointError)
    _check_packed(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about a file that is refused anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged or a refused file
        reason = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"{path}: expected pickled tensors and nothing else, got a file that is damaged or "
            f"would run code ({reason}); refused, take a folder with model.safetensors"
        ) from None
    if not _is_state(content):
        raise CheckpointError(
            f"{path}: expected tensors by name, got {_kind(content)}; it is no state dict"
        )
    return dict(content)


def _check_packed(path: Path) -> None:
    """Refuse members that are packed: torch writes none, and a few bytes could become gigabytes."""
    if not zipfile.is_zipfile(path):
        return  # the older form, which is as long as what it holds
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [one for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return  # torch says what is wrong with it
    if packed:
        raise CheckpointError(
            f"{path}: expected tensors as torch saves them, got the packed member "
            f"{packed[0].filename!r}; refused, take a folder with model.safetensors"
        )


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) and _is_plain(value)
        for key, value in content.items()
    )


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds each of its numbers, on the CPU: not sparse, none seen many times."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _kind(content: Any) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    kinds = {
        "tensors that do not hold their numbers"
        if isinstance(value, Tensor) and not _is_plain(value)
        else type(value).__name__
        for value in content.values()
    }
    return "a dict of " + ", ".join(sorted(kinds))


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the files that an index names; each tensor must be in the file it is said to be in."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: expected a weight_map, got none; download it again")
    tensors: dict[str, Tensor] = {}
    for name in sorted({str(place) for place in places.values()}):
        shard = index.parent / name
        if shard.parent != index.parent:
            raise CheckpointError(
                f"{index}: expected files beside it, got the name {name!r}; download it again"
            )
        if not shard.is_file():
            raise CheckpointError(f"{index}: names the file {name}, got none; download it too")
        tensors |= read(shard)
    if missing := sorted(set(places) - set(tensors)):
        raise CheckpointError(
            f"{index}: expected {missing[0]} in {places[missing[0]]}, got {len(missing)} tensors "
            "missing; download the files again"
        )
    return tensors
