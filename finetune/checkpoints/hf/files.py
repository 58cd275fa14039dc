"""The files of a Hugging Face folder: config.json, and weights in any form they are stored in.

Weights are safetensors, one file or several; or pickled tensors, which are read as tensors or
refused: code in a file is never run.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import CheckpointError
from finetune.files.placeholders import refuse_placeholder_file
from finetune.text.tokenizer.stated import read_json

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
MODULES = "modules.json"
FOREIGN = ("*.h5", "*.msgpack", "*.ckpt.index", "*.gguf", "*.onnx", "adapter_model.*")
"""Weights of other frameworks; the message about missing weights names them."""


def model_folder(folder: Path) -> Path:
    """The folder with config.json and weights: this one, or that of a sentence encoder's module.

    Older folders of sentence-transformers have the model in `0_Transformer`.

    Raises:
        CheckpointError: The list of modules is malformed, or the folder that it names is outside
            this one or has no config.json.
    """
    path = folder / MODULES
    if not path.is_file():
        return folder
    for module in _modules(path):
        if str(module.get("type", "")).endswith("Transformer"):
            subfolder = str(module.get("path", ""))
            if not _is_inside(subfolder):
                raise CheckpointError(
                    f"{path}: expected modules inside the folder, got the path {subfolder!r}; "
                    "download it again"
                )
            if not (folder / subfolder / CONFIG).is_file():
                raise CheckpointError(
                    f"{path}: expected {CONFIG} in the module {subfolder!r}, got none; download it "
                    "too"
                )
            return folder / subfolder
    return folder


def _is_inside(name: str) -> bool:
    """Whether a path from a file stays in its folder; the user's own links may lead outside."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def other_modules(folder: Path) -> list[str]:
    """A sentence encoder's modules after the model: pooling, dense, normalization."""
    path = folder / MODULES
    if not path.is_file():
        return []
    kinds = [(str(each.get("path")), str(each.get("type", ""))) for each in _modules(path)]
    return [f"{name} ({kind})" for name, kind in kinds if not kind.endswith("Transformer")]


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


def is_hf_folder(folder: Path) -> bool:
    """Whether this is a folder of Hugging Face: its config.json names no format."""
    path = model_folder(folder) / CONFIG
    return path.is_file() and "format" not in read_json(path)


def weight_files(folder: Path) -> list[Path]:
    """All files of a folder that may contain its weights."""
    return [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, on the CPU, as they are stored.

    Args:
        folder: A folder with model.safetensors or pytorch_model.bin, or with one of their indices
            and its shards.

    Returns:
        Their key -> tensor.

    Raises:
        CheckpointError: There are no weights, or they are damaged, incomplete or not tensors.
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
    foreign = sorted(path.name for pattern in FOREIGN for path in folder.glob(pattern))
    raise CheckpointError(
        f"{folder}: expected weights in model.safetensors or pytorch_model.bin, got "
        f"{', '.join(foreign) or 'none'}; download or convert them first"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    refuse_placeholder_file(path, CheckpointError)
    try:
        return load_file(path)
    except Exception as error:  # of many types, for a damaged or a foreign header
        raise CheckpointError(
            f"{path}: expected weights in safetensors form, got {error}; download the file again"
        ) from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    import torch

    refuse_placeholder_file(path, CheckpointError)
    _check_packed(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a file that the lines below refuse anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged or a refused file
        reason = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"{path}: expected pickled tensors and nothing else, got a file that is damaged or "
            f"would run code ({reason}); refused, take a folder with model.safetensors"
        ) from None
    if not _is_state(content):
        raise CheckpointError(
            f"{path}: expected tensors by name, got {_kind(content)}; it is not a state dict"
        )
    return dict(content)


def _check_packed(path: Path) -> None:
    """Refuse compressed members: torch writes none, and a few bytes could become gigabytes."""
    if not zipfile.is_zipfile(path):
        return  # the older format, which cannot be compressed
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return  # torch reports what is wrong with it
    packed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise CheckpointError(
            f"{path}: expected tensors as torch saves them, got the compressed member "
            f"{packed[0].filename!r}; refused, take a folder with model.safetensors"
        )


def _is_state(content: Any) -> bool:
    from torch import Tensor

    return isinstance(content, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) and _is_plain(value)
        for key, value in content.items()
    )


def _is_plain(tensor: Tensor) -> bool:
    """Whether each number of a tensor is stored, on the CPU."""
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    # With a stride of 0 a few stored bytes can stand for gigabytes.
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _kind(content: Any) -> str:
    from torch import Tensor

    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    kinds = {
        "tensors that do not store their numbers"
        if isinstance(value, Tensor) and not _is_plain(value)
        else type(value).__name__
        for value in content.values()
    }
    return "a dict of " + ", ".join(sorted(kinds))


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the files that an index names; together they must contain every tensor that it lists."""
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise CheckpointError(f"{index}: expected a weight_map, got none; download it again")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(map(str, file_of.values()))):
        shard = index.parent / name
        if shard.parent != index.parent:
            raise CheckpointError(
                f"{index}: expected files beside it, got the name {name!r}; download it again"
            )
        if not shard.is_file():
            raise CheckpointError(f"{index}: expected the file {name}, got none; download it too")
        tensors |= read(shard)
    if missing := sorted(set(file_of) - set(tensors)):
        raise CheckpointError(
            f"{index}: expected {missing[0]} in {file_of[missing[0]]}, got {len(missing)} tensors "
            "missing; download the files again"
        )
    return tensors
