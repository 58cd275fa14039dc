"""What a layer of each kind costs over the length of the text (Vaswani et al., 2017, table 1).

    python benchmarks/layers.py

A forward and a backward pass of one block on the same number of tokens at each length:
milliseconds, and the memory that the passes take. The last row is the feed-forward sublayer of the
block with attention: where that block takes more than twice as long, attention is the bottleneck.
The slope is the power of T with which the cost of one text grows between the two longest lengths:
towards 2 where all pairs of tokens are computed, 1 for local attention, which works in tiles.
Each figure is measured in a process of its own (Linux). For a quiet machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from turns import in_own_process, reset_peak, status

from finetune.console.tables import table
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.benchmark import median_step_ms
from finetune.encoder.feedforward import feed_forward

CPU = torch.device("cpu")
ATTENTION, LOCAL, FEED_FORWARD = "attention", "local attention, 32 a side", "feed-forward alone"
KINDS = (ATTENTION, LOCAL, "LSTM, both directions", "convolution, widths 3 to 5", FEED_FORWARD)
BLOCKS = dict(zip(KINDS, ("transformer", "transformer", "lstm", "conv"), strict=False))


def layer(kind: str, size: int) -> Callable[[Tensor], Tensor]:
    """A fresh layer of a kind, from states (B, T, D) to states.

    Args:
        kind: One of `KINDS`.
        size: D.
    """
    if kind == FEED_FORWARD:
        return feed_forward(size, 4 * size, "gelu")
    is_local = kind == LOCAL
    config = EncoderConfig(
        vocab_size=8, hidden_size=size, num_attention_heads=max(1, size // 64),
        intermediate_size=4 * size, block=BLOCKS[kind], position="none",
        num_hidden_layers=1 + is_local, local_attention=32 * is_local, global_every=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    encoder = Encoder(config)  # of two blocks the first attends to all tokens
    return lambda hidden: encoder.suffix(hidden, mask=None, depth=int(is_local))


def measure(kind: str, size: int, tokens: int, length: int, seconds: float) -> tuple[float, float]:
    """Milliseconds and GiB of a forward and a backward pass, in this process."""
    torch.set_num_threads(1)
    compute = layer(kind, size)
    hidden = torch.randn(max(1, tokens // length), length, size, requires_grad=True)

    def passes() -> None:
        torch.autograd.backward(compute(hidden).sum())

    passes()  # what is set up once is not theirs
    before = reset_peak()
    passes()
    gib = (status("VmHWM") - before) / 2**20
    return median_step_ms(passes, CPU, seconds=seconds), gib


def slope(costs: Sequence[float], lengths: Sequence[int]) -> str:
    """The power of T by which a text's cost grows at the end; costs are of all tokens."""
    if len(lengths) < 2 or min(costs[-2:]) <= 0:
        return ""
    return f"{1 + math.log(costs[-1] / costs[-2]) / math.log(lengths[-1] / lengths[-2]):.2f}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print a table of times and one of memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="D (default: 256)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch (default: 4096)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512, 1024, 2048, 4096])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure (default: 3)")
    space = parser.parse_args(words)
    figures = {
        (kind, length): in_own_process(
            measure, kind, space.size, space.tokens, length, space.seconds
        )
        for kind in KINDS
        for length in space.lengths
    }
    header = [
        f"{space.tokens:,} tokens, D = {space.size}",
        *(f"T = {one}" for one in space.lengths),
    ]
    for number, (unit, digits) in enumerate((("ms", 0), ("GiB", 2))):
        rows = []
        for kind in KINDS:
            costs = [figures[kind, one][number] for one in space.lengths]
            cells = [f"{cost:.{digits}f}" for cost in costs]
            rows.append([kind, *cells, slope(costs, space.lengths)])
        titles = [f"{unit}: {header[0]}", *header[1:], "slope"]
        print(table(rows, titles, width=110), end="\n\n")


if __name__ == "__main__":
    main()
