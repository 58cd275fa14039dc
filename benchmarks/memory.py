"""Memory of a training step over the length of the text, by what saves it.

    python benchmarks/memory.py

A step of masked language modelling (15 % masks) on the same number of tokens at each length, with
everything that training keeps: weights, gradients, AdamW's moments, activations. Each figure is the
peak of a process of its own, less what it had before the model (Linux).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from layers import in_own_process, reset_peak, status

from finetune.console.tables import table
from finetune.encoder import Encoder, EncoderConfig
from finetune.training.loop.pretrainer import Pretrainer


@dataclass(frozen=True)
class Saving:
    """What a step is made of."""

    precision: torch.dtype = torch.float32
    parts: int = 1
    """Micro-batches whose gradients are summed."""
    checkpointing: bool = False
    """Whether blocks are computed again on the way back."""


SAVINGS: Mapping[str, Saving] = {
    "float32": Saving(),
    "bfloat16 (autocast)": Saving(torch.bfloat16),
    "accumulation, 4 parts": Saving(parts=4),
    "checkpointing": Saving(checkpointing=True),
    "all three": Saving(torch.bfloat16, 4, True),
}


def measure(name: str, size: int, blocks: int, tokens: int, length: int) -> float:
    """GiB of two steps in this process, beyond what it had before."""
    torch.set_num_threads(1)
    saving, before = SAVINGS[name], reset_peak()
    config = EncoderConfig(
        vocab_size=8192, hidden_size=size, num_hidden_layers=blocks, intermediate_size=4 * size,
        num_attention_heads=max(1, size // 64), position="rotary", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, gradient_checkpointing=saving.checkpointing,
    )  # fmt: skip
    module = Pretrainer(Encoder(config))
    optimizer = torch.optim.AdamW(module.parameters())
    rows = max(1, tokens // length // saving.parts)
    places = torch.arange(0, rows * length, 7)  # about 15 %
    ids = torch.randint(config.vocab_size, (rows, length))
    for _ in range(2):  # the moments are made by the first step
        for _ in range(saving.parts):
            with torch.autocast("cpu", saving.precision, saving.precision != torch.float32):
                logits = module({"input_ids": ids, "positions": places})
            labels = ids.flatten()[places]
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            torch.autograd.backward(loss / saving.parts)
        optimizer.step()
        optimizer.zero_grad()
    return (status("VmHWM") - before) / 2**20


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="D (default: 256)")
    parser.add_argument("--blocks", type=int, default=4, help="L (default: 4)")
    parser.add_argument("--tokens", type=int, default=8192, help="of a step (default: 8192)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    space = parser.parse_args(words)
    sizes = (space.size, space.blocks, space.tokens)
    rows = [
        [
            name,
            *(f"{in_own_process(measure, name, *sizes, length):.2f}" for length in space.lengths),
        ]
        for name in SAVINGS
    ]
    header = f"GiB: {space.tokens:,} tokens, {space.blocks} blocks of {space.size}"
    print(table(rows, [header, *(f"T = {length}" for length in space.lengths)], width=120))


if __name__ == "__main__":
    main()
