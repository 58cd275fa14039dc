"""A step of masked language modelling: our Pretrainer beside `transformers`' BertForMaskedLM.

Both have the same sizes, batches, dropout and optimizer (AdamW, fused), and flush denormals. A row
of `bench.py`; the turns are steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from contest import Size, masked_batches, ours_of, prepare
from products import Step, products_turn
from turns import Contest, Settings, Turn

MASK_RATE = 0.15


def contests(sizes: list[tuple[int, int]], rows: int, length: int, rounds: int) -> list[Contest]:
    """A contest for each size (blocks, width)."""
    return [
        Contest(
            f"MLM step, {blocks}x{width}, {rows}x{length} tokens",
            {"ours": "pretraining:ours", "transformers": "pretraining:theirs"}
            | {"limit": "pretraining:products"},
            unit="tokens/s",
            amount=rows * length,
            rounds=rounds,
            warm_up=2,
            settings={"blocks": blocks, "width": width, "rows": rows, "length": length},
        )
        for blocks, width in sizes
    ]


def ours(settings: Settings) -> Turn:
    """Make a turn of ours: one step, in seconds."""
    from finetune.encoder import Encoder
    from finetune.training.loop.pretrainer import Pretrainer

    size, batches = _prepared(settings)
    module = Pretrainer(Encoder(size.ours()))
    optimizer = module.configure_optimizers()
    return _turn(lambda batch: module.training_step(ours_of(batch), 0)["loss"], optimizer, batches)


def theirs(settings: Settings) -> Turn:
    """Make a turn of theirs: one step, in seconds."""
    from transformers import BertForMaskedLM

    size, batches = _prepared(settings)
    model = BertForMaskedLM(size.theirs()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
        return loss

    return _turn(loss_of, optimizer, batches)


def products(settings: Settings) -> Turn:
    """Make a turn of a step's matrix products alone."""
    size, _ = _prepared(settings)
    rows, length = settings["rows"], settings["length"]
    step = Step(rows, length, rows * length, named=round(MASK_RATE * rows * length))
    return products_turn(size.ours(), [step])


def _prepared(settings: Settings) -> tuple[Size, Iterator[dict[str, Any]]]:
    prepare(settings["threads"])
    size = Size(settings["blocks"], settings["width"])
    return size, masked_batches(size, settings["rows"], settings["length"], MASK_RATE)


def _turn(
    loss_of: Callable[[dict[str, Any]], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[dict[str, Any]],
) -> Turn:
    """Make a turn of forward, backward and optimizer on a new batch."""

    def step() -> float:
        batch = next(batches)
        start = time.perf_counter()
        torch.autograd.backward(loss_of(batch))
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step
