"""What the files of a checkpoint may hold: looked at before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from finetune.console.output import quoted
from finetune.errors import CheckpointError

KINDS: dict[str, tuple[Any, str, Any]] = {
    "encoder": (dict, "the settings of an encoder", None),
    "head": (dict, "the settings of a head", None),
    "task": (str | None, "the name of a task, or null", None),
    "labels": (list, "a list of names", str),
    "decision": (dict, "numbers by name", float | int),
    "source": (dict, "texts by name", str),
}
"""Field of config.json -> what it holds, in words too, and what each part of that is."""

SMALL = 1 << 24
"""So many weights are made at once; what does not fit is reported when the weights are compared."""


def check_kinds(description: Mapping[str, Any], path: Path) -> None:
    """Refuse a field of another kind than a checkpoint has.

    Args:
        description: What config.json holds.
        path: That file, for the message.

    Raises:
        CheckpointError: Names the field.
    """
    parts = [(name, value, KINDS[name]) for name, value in description.items() if name in KINDS]
    for name, value, (kind, words, of_each) in parts:
        each = value.values() if isinstance(value, dict) else value
        fits = isinstance(value, kind) and (
            of_each is None or all(isinstance(item, of_each) for item in each)
        )
        if not fits:
            raise CheckpointError(
                f"{path}: expected {name} to be {words}, got {quoted(value)}; take another "
                "checkpoint"
            )


def check_file_size(needed: int, weights: Iterable[Path], where: Path) -> None:
    """Refuse a config that asks for far more weights than its files can hold, before any is made.

    Args:
        needed: Weights of the encoder that config.json describes.
        weights: The files of weights; those that are missing are reported when they are read.
        where: The config.json, for the message.

    Raises:
        CheckpointError: There is less than a byte for each weight, and they are many.
    """
    sizes = [file.stat().st_size for file in weights if file.is_file()]
    if sizes and needed > max(sum(sizes), SMALL):
        raise CheckpointError(
            f"{where}: expected the sizes of the weights beside it, got those of an encoder with "
            f"{needed:,} weights beside files of {sum(sizes):,} bytes; the config does not fit the "
            "weights"
        )


def is_precise(tensor: Tensor) -> bool:
    """Whether its numbers have a point and 16 bits or more: nothing else can be trained on."""
    return tensor.is_floating_point() and tensor.element_size() >= 2


def check_numbers(tensor: Tensor, name: str, where: Path) -> None:
    """Refuse a tensor of quantized numbers, or with one that is none.

    Args:
        tensor: As it is stored.
        name: Its name.
        where: Its folder, for the message.

    Raises:
        CheckpointError: Names the tensor.
    """
    if not is_precise(tensor):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{where}: expected floating-point numbers of 16 bits or more in {name}, got {kind}; "
            "take the weights as they were before they were quantized"
        )
    if not tensor.isfinite().all():
        raise CheckpointError(
            f"{where}: expected numbers in {name}, got NaN or infinity; such weights answer "
            "nothing: download the folder again, or take another"
        )
