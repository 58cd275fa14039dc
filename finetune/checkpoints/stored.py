"""Checks of what the files of a checkpoint contain, before anything is built from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.console.output import quoted
from finetune.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from finetune.encoder.config import EncoderConfig
    from finetune.text.tokenizer.tokenizer import Tokenizer

KINDS: dict[str, tuple[Any, str, Any]] = {
    "encoder": (dict, "the settings of an encoder", None),
    "head": (dict, "the settings of a head", None),
    "task": (str | None, "the name of a task, or null", None),
    "labels": (list, "a list of names", str),
    "decision": (dict, "numbers by name", float | int),
    "source": (dict, "texts by name", str),
}
"""Field of config.json -> its type, that type in words, and the type of its items."""

SMALL = 1 << 24
"""An encoder of so many weights (64 MiB) is built without this check: if it does not fit its files,
the comparison of the weights gives a better message."""


def check_kinds(description: Mapping[str, Any], path: Path) -> None:
    """Refuse a field of another type than a checkpoint has.

    Args:
        description: The content of config.json.
        path: That file, for the message.

    Raises:
        CheckpointError: Names the field.
    """
    parts = [(name, value, KINDS[name]) for name, value in description.items() if name in KINDS]
    for name, value, (kind, kind_in_words, item_kind) in parts:
        items = value.values() if isinstance(value, dict) else value
        fits = isinstance(value, kind) and (
            item_kind is None or all(isinstance(item, item_kind) for item in items)
        )
        if not fits:
            raise CheckpointError(
                f"{path}: expected {name} to be {kind_in_words}, got {quoted(value)}; take another "
                "checkpoint"
            )


def check_file_size(needed: int, weights: Iterable[Path], where: Path) -> None:
    """Refuse a config that describes far more weights than its files contain.

    A config of a few bytes could otherwise allocate all memory of the machine.

    Args:
        needed: Number of weights of the encoder that config.json describes.
        weights: The files of weights; a missing one is reported when it is read.
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
    """Whether it has floating-point numbers of 16 bits or more: others cannot be trained on."""
    return tensor.is_floating_point() and tensor.element_size() >= 2


def check_numbers(tensor: Tensor, name: str, where: Path) -> None:
    """Refuse a tensor of quantized numbers, or with NaN or infinity.

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
            "take the weights before quantization"
        )
    # A sum is far cheaper than a look at each number, and not finite if one of them is not.
    if not tensor.sum().isfinite() and not tensor.isfinite().all():
        raise CheckpointError(
            f"{where}: expected finite numbers in {name}, got NaN or infinity; download the folder "
            "again, or take another"
        )


def check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, where: Path) -> None:
    """Refuse a tokenizer with ids beyond the encoder's embedding.

    Raises:
        CheckpointError: The tokenizer has more ids than the embedding has rows.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{where}: the tokenizer has {tokenizer.vocab_size} tokens but the encoder's embedding "
            f"has {config.vocab_size} rows; use the tokenizer that the encoder was trained with"
        )


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], where: Path) -> None:
    """Load by name; the names of the module and of the weights must be the same.

    Raises:
        CheckpointError: Names the first tensors that are missing, unknown, of another shape, of
            integers, or not finite.
    """
    expected = module.state_dict()
    missing, unknown = sorted({*expected} - {*weights}), sorted({*weights} - {*expected})
    if missing or unknown:
        raise CheckpointError(
            f"{where}: expected the {len(expected)} tensors of this model, got {len(missing)} "
            f"missing {missing[:3]} and {len(unknown)} unknown {unknown[:3]}; the config does "
            "not fit the weights"
        )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            raise CheckpointError(
                f"{where}: {name} should have shape {tuple(tensor.shape)}, got "
                f"{tuple(weights[name].shape)}; the config does not fit the weights"
            )
        if tensor.is_floating_point():  # a counter such as batch norm's is an integer
            check_numbers(weights[name], name, where)
    module.load_state_dict(dict(weights))
