"""The memory that a training needs at the least, compared with the machine's before it is taken."""

from __future__ import annotations

import torch

from finetune.console.output import counted
from finetune.encoder import EncoderConfig
from finetune.encoder.cost import activation_bytes, parameters
from finetune.machine.memory import FLOAT, TRAINED, check_fits
from finetune.training.loop.trainer import TrainerConfig, pick_device

SMALLER = "lower vocab_size, hidden_size, intermediate_size or num_hidden_layers"
REPLICATED = ("auto", "ddp")
"""Strategies under which each device has all weights."""


def check_training(
    config: EncoderConfig,
    trainer: TrainerConfig,
    *,
    language_model: bool = False,
    all_trained: bool = True,
    batch: tuple[int, int] | None = None,
) -> None:
    """Refuse an encoder whose training cannot fit this machine, before any of it is made.

    Args:
        config: The encoder.
        trainer: The device, and how many processes share the machine.
        language_model: Whether the masked-LM head is trained too.
        all_trained: Whether every weight is trained, from some step on.
        batch: Sequences and tokens in each, where these are known.

    Raises:
        ConfigError: The weights with gradients and Adam's moments, or what the backward pass
            keeps of one batch, are more than the memory of the machine or of its GPU.
    """
    weights = parameters(config, language_model=language_model)
    state = weights * (TRAINED if all_trained else FLOAT)
    parts = "weights, gradients and Adam's moments" if all_trained else "weights"
    what = f"training this encoder of {weights:,} parameters ({parts} in float32)"
    if pick_device(trainer.accelerator).type == "cpu":
        check_fits(state * trainer.devices, what, SMALLER)  # each process has its own copy
        if batch is not None:
            shape = f"{counted(batch[0], 'sequence')} of {counted(batch[1], 'token')}"
            check_fits(
                activation_bytes(config, *batch),
                f"a training step on {shape}",
                "lower batch_size or max_length",
            )
        return
    check_fits(weights * FLOAT, f"an encoder of {weights:,} parameters", SMALLER)
    if trainer.strategy in REPLICATED and torch.cuda.is_available():
        most = max(
            torch.cuda.get_device_properties(number).total_memory
            for number in range(torch.cuda.device_count())
        )
        check_fits(state, what, SMALLER, most=most, where="the largest GPU here")
