"""A step of masked language modelling: our Pretrainer beside `transformers`' BertForMaskedLM.

Both have the same sizes, batches, dropout and optimizer (AdamW, fused), and flush denormals.

    python benchmarks/pretraining.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from contest import MINI, TINY, Size, masked_batches, prepare, take_turns

from finetune.encoder import Encoder
from finetune.training.loop.pretrainer import Pretrainer


def ours(size: Size, batches: Iterator[dict[str, Any]]) -> Callable[[], float]:
    """Make a turn of ours: one step, in seconds."""
    module = Pretrainer(Encoder(size.ours()))
    optimizer = module.configure_optimizers()

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        labels = batch["labels"].flatten()[batch["positions"]]
        return module.training_step({**batch, "labels": labels}, 0)["loss"]

    return turn(loss_of, optimizer, batches)


def theirs(size: Size, batches: Iterator[dict[str, Any]]) -> Callable[[], float]:
    """Make a turn of theirs: one step, in seconds."""
    from transformers import BertForMaskedLM

    model = BertForMaskedLM(size.theirs()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
        return loss

    return turn(loss_of, optimizer, batches)


def turn(
    loss_of: Callable[[dict[str, Any]], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[dict[str, Any]],
) -> Callable[[], float]:
    """Make a turn of forward, backward and optimizer on a new batch."""

    def step() -> float:
        batch = next(batches)
        start = time.perf_counter()
        torch.autograd.backward(loss_of(batch))
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def main(words: Sequence[str] | None = None) -> None:
    """Compare at both sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="number of steps of each")
    parser.add_argument("--rows", type=int, default=32, help="blocks in a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens in a block")
    parser.add_argument("--threads", type=int, help="threads of torch; default: all cores")
    options = parser.parse_args(words)
    prepare(options.threads)
    print(f"{options.rows}x{options.length} tokens, 15 % masked, {torch.get_num_threads()} threads")
    for size in (TINY, MINI):
        batches = masked_batches(size, options.rows, options.length, rate=0.15)
        turns = {"ours": ours(size, batches), "transformers": theirs(size, batches)}
        take_turns(turns, 2)  # warm-up
        seconds = take_turns(turns, options.rounds)
        tokens = options.rows * options.length
        rates = "  ".join(f"{name} {tokens / s:,.0f} tokens/s" for name, s in seconds.items())
        print(f"{size}: {rates}  ratio {seconds['transformers'] / seconds['ours']:.2f}")


if __name__ == "__main__":
    main()
