"""How fast is this machine, and how much of its speed does the encoder use?

The measure is the machine's own rate at matrix products: 60 % of that ceiling is
good, 10 % means that something else (dropout, padding, data, small sizes) takes the time.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypedDict

import torch
from torch import Tensor

from finetune.console.output import counted
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.cost import activation_bytes, forward_flops_per_token
from finetune.machine.memory import check_fits

BACKWARD = 2
"""A backward pass costs as much arithmetic as this many forward passes."""
WIDEST = 19
"""Columns of text for a measured encoder: three of them, and the names of the figures, fit 80."""


class BenchResult(TypedDict):
    """What `bench` measured; a key's last word is its unit."""

    device: str
    threads: int
    dtype: str
    batch_size: int
    length: int
    ceiling_gflops: float
    forward_ms: float
    step_ms: float
    tokens_per_second: float
    ceiling_share: float
    peak_gib: float


def device_name(device: torch.device) -> str:
    """Name the device as its maker does, or `cpu`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_ceiling(device: torch.device, dtype: torch.dtype, seconds: float = 0.5) -> float:
    """Measure how fast this machine multiplies matrices of a transformer's sizes.

    The numbers come from a generator of their own: no other draw of a run moves.

    Args:
        device: Where to multiply.
        dtype: Of the matrices.
        seconds: How long to try.

    Returns:
        GFLOPS of the fastest product.
    """
    rows, inner, columns = (4096, 512, 2048) if device.type == "cpu" else (16384, 4096, 4096)
    generator = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, generator=generator, device=device).to(dtype)
    right = torch.randn(inner, columns, generator=generator, device=device).to(dtype)
    # The fastest, as all else that a machine does only slows a product down.
    fastest = min(timed(lambda: left @ right, device, seconds=seconds))
    return 2 * rows * inner * columns / fastest / 1e9  # a multiplication and an addition each


def timed(
    step: Callable[[], object], device: torch.device, *, seconds: float, warmup: int = 2
) -> list[float]:
    """Repeat a step for some time, at least once after warming up.

    Args:
        step: What to measure.
        device: Where it computes.
        seconds: How long to repeat it.
        warmup: Repetitions that do not count.

    Returns:
        Seconds of each repetition.
    """
    for _ in range(warmup):
        step()
    wait_for(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        wait_for(device)
        times.append(time.perf_counter() - start)
    return times


def median_step_ms(
    step: Callable[[], object], device: torch.device, *, seconds: float = 2.0
) -> float:
    """Measure the median duration of a step in milliseconds, as `timed` repeats it."""
    return statistics.median(timed(step, device, seconds=seconds)) * 1e3


def peak_gib(device: torch.device) -> float:
    """The most memory this process has used: on a GPU by tensors, otherwise in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # Linux counts in KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def forget_peak(device: torch.device) -> None:
    """Let `peak_gib` count from now on where that is possible: on a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what is free now is no part of what is to come
        torch.cuda.reset_peak_memory_stats(device)


def ceiling_share(tokens_per_second: float, flops_per_token: float, ceiling_gflops: float) -> float:
    """The fraction of the machine's matrix-product speed that a training run uses.

    Args:
        tokens_per_second: Tokens trained on, forward and backward.
        flops_per_token: Of a forward pass, as `encoder.cost` counts them.
        ceiling_gflops: What `matmul_ceiling` measured.

    Returns:
        A fraction, 0 to about 1.
    """
    flops = tokens_per_second * flops_per_token * (1 + BACKWARD)
    return flops / (ceiling_gflops * 1e9)


def bench(
    config: EncoderConfig,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    batch_size: int = 32,
    length: int = 128,
    seconds: float = 2.0,
) -> BenchResult:
    """Measure a training step of the encoder (forward and backward) beside the ceiling.

    Args:
        config: The encoder's sizes and variants.
        device: Where to measure.
        dtype: float32, or what autocast computes in.
        batch_size: B.
        length: T, no padding.
        seconds: How long to repeat each measurement.

    Returns:
        Each figure by its name.

    Raises:
        ConfigError: A step needs more memory than this machine has.
    """
    if device.type == "cpu":
        step_text = f"a step on {counted(batch_size, 'sequence')} of {counted(length, 'token')}"
        check_fits(activation_bytes(config, batch_size, length), step_text, "lower one of the two")
    encoder = Encoder(config).to(device)
    ids = torch.randint(config.vocab_size, (batch_size, length), device=device)

    def forward() -> Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden: Tensor = encoder({"input_ids": ids}).last_hidden_state
        return hidden

    def step() -> None:
        # A loss that every output takes part in, at next to no cost.
        torch.autograd.backward(forward().float().square().mean())
        encoder.zero_grad()

    ceiling = matmul_ceiling(device, dtype)
    step_ms = median_step_ms(step, device, seconds=seconds)
    tokens_per_second = batch_size * length / step_ms * 1e3
    flops = forward_flops_per_token(config, length, lm_fraction=0.0)
    return BenchResult(
        device=device_name(device),
        threads=torch.get_num_threads(),
        dtype=str(dtype).removeprefix("torch."),
        batch_size=batch_size,
        length=length,
        ceiling_gflops=ceiling,
        forward_ms=median_step_ms(forward, device, seconds=seconds),
        step_ms=step_ms,
        tokens_per_second=tokens_per_second,
        ceiling_share=ceiling_share(tokens_per_second, flops, ceiling),
        peak_gib=peak_gib(device),
    )


def bench_table(results: Mapping[str, BenchResult]) -> str:
    """Draw measurements as a table, a column for each.

    Args:
        results: Title -> what `bench` gave.

    Returns:
        Several lines of text.
    """
    columns = [["", *BenchResult.__annotations__]]
    for title, result in results.items():
        title = title if len(title) <= WIDEST else f"…{title[1 - WIDEST :]}"
        columns.append([title, *(_readable(value)[:WIDEST] for value in result.values())])
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    )


def _readable(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
