"""Tokens a second on many processes: the model of docs/scaling.md, and its check on this machine.

    python benchmarks/scaling.py                        the tables of the page
    python benchmarks/scaling.py --measure 1 2 4        processes of this machine beside the model

The check trains 2 blocks of 128 on made text, on the CPU, in so many processes, each with the same
number of tokens. Use a quiet machine, and no more processes than cores if the speed is to grow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from finetune.console.tables import aligned
from finetune.encoder import EncoderConfig
from finetune.encoder.cost import forward_flops_per_token, parameters
from finetune.settings.fields import dump, read

ROOT = Path(__file__).resolve().parent.parent
BYTES = 4
"""Of a gradient's number: DDP adds them up in float32, also under bf16-mixed."""
BACKWARD = 2 / 3
"""Fraction of a step's arithmetic that is the backward pass, during which gradients are sent."""


@dataclass(frozen=True)
class Machine:
    """What a process has, and what lies between processes."""

    tflops: float = 989.0
    """Peak of a device: dense bfloat16 products of an H100 or H200 (SXM), by its data sheet."""
    used: float = 0.40
    """Fraction of the peak that a step reaches. An assumption until `make gpu` has measured it."""
    a_node: int = 8
    """Devices of a node."""
    inside: float = 300e9
    """Bytes a second of a device to its neighbours in the node (NVLink 4: 450e9 at most)."""
    outside: float = 40e9
    """Bytes a second of a device to other nodes (400 Gb/s a device: 50e9 at most)."""
    latency: float = 10e-6
    """Seconds of one message, its start included."""
    bucket: float = 25e6
    """Bytes that DDP sends at a time."""
    jitter: float = 0.01
    """Standard deviation of a device's step, as a fraction: all wait for the slowest."""


@dataclass(frozen=True)
class Training:
    """What is trained in a step."""

    config: EncoderConfig
    length: int
    rows: int
    """Sequences of a batch of one process, between two sums of nothing."""
    accumulated: int = 1
    """Batches of one process in a step."""

    @property
    def tokens(self) -> int:
        """Tokens of one process in a step."""
        return self.rows * self.accumulated * self.length

    @property
    def flops(self) -> float:
        """Operations a token: forward, and twice as many backward."""
        return 3 * forward_flops_per_token(self.config, self.length)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return BYTES * parameters(self.config, language_model=True)

    @property
    def last_bytes(self) -> int:
        """Bytes that are known when the backward pass ends: the word embeddings'."""
        return BYTES * self.config.vocab_size * self.config.word_embedding_size


def all_reduce_seconds(size: float, processes: int, machine: Machine) -> float:
    """Seconds of a sum over processes: a ring inside each node, trees between the nodes.

    Args:
        size: Bytes that each process has.
        processes: P.
        machine: Its bandwidths.
    """
    near = min(processes, machine.a_node)
    nodes = math.ceil(processes / near)
    messages = math.ceil(size / machine.bucket) * 2 * (near - 1 + math.ceil(math.log2(nodes)))
    moved = 2 * (near - 1) / near * size / machine.inside
    # Each device of a node takes its part, 1 / near of the bytes, to the other nodes.
    moved += 2 * (nodes - 1) / nodes * size / near / machine.outside
    return moved + messages * machine.latency


def step_seconds(training: Training, processes: int, machine: Machine) -> Mapping[str, float]:
    """Seconds of an optimizer step, by what they are spent on.

    Returns:
        `compute`; `all_reduce`, of which `hidden` lies behind the last batch's backward pass;
        `waiting` for the slowest; and `step`, all of it.
    """
    compute = training.tokens * training.flops / (machine.tflops * 1e12 * machine.used)
    whole = all_reduce_seconds(training.gradient_bytes, processes, machine)
    last = all_reduce_seconds(training.last_bytes, processes, machine)
    hidden = min(whole - last, BACKWARD * compute / training.accumulated)
    waiting = compute * machine.jitter * math.sqrt(2 * math.log(processes))
    return {
        "compute": compute,
        "all_reduce": whole,
        "hidden": hidden,
        "waiting": waiting,
        "step": compute + whole - hidden + waiting,
    }


def base(global_batch: int | None, processes: int, rows: int = 32) -> Training:
    """BERT-base at 512 tokens: so many sequences a step over all processes, or `rows` in each."""
    config = EncoderConfig(max_position_embeddings=512)
    if global_batch is None:
        return Training(config, 512, rows)
    each = max(1, global_batch // processes)
    return Training(config, 512, min(rows, each), max(1, each // rows))


def prediction(global_batch: int | None, machine: Machine | None = None) -> list[list[str]]:
    """The rows of a table of the page, the header first."""
    machine = machine or Machine()
    names = ["GPUs", "sequences a step", "compute ms", "all-reduce ms", "not hidden ms"]
    rows = [[*names, "step ms", "tokens/s", "of linear"]]
    alone = 0.0
    for processes in (1, 8, 64, 512):
        training = base(global_batch, processes)
        parts = step_seconds(training, processes, machine)
        rate = processes * training.tokens / parts["step"]
        alone = alone or rate
        shown = [parts["compute"], parts["all_reduce"], parts["all_reduce"] - parts["hidden"]]
        sequences = processes * training.rows * training.accumulated
        rows.append(
            [f"{processes}", f"{sequences:,}"]
            + [f"{1e3 * seconds:.1f}" for seconds in [*shown, parts["step"]]]
            + [f"{rate / 1e6:.2f} M", f"{rate / alone / processes:.0%}"]
        )
    return rows


def _sum_alone(rank: int, processes: int, size: int, port: int, file: str) -> None:
    """Time the sum of so many bytes over the processes; the first one writes the median."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes
    )
    numbers, times = torch.zeros(size // BYTES), []
    for _ in range(12):
        torch.distributed.barrier()
        start = time.perf_counter()
        torch.distributed.all_reduce(numbers)
        times.append(time.perf_counter() - start)
    if rank == 0:
        Path(file).write_text(str(statistics.median(times[2:])), encoding="ascii")
    torch.distributed.destroy_process_group()


def measured_sum(processes: int, size: int, folder: Path) -> float:
    """Seconds of a sum of so many bytes over processes of this machine."""
    if processes == 1:
        return 0.0
    port, file = random.randint(20000, 60000), folder / f"sum-{processes}"
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=_sum_alone, args=(rank, processes, size, port, str(file)))
        for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return float(file.read_text("ascii"))


def measured_step(processes: int, options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Seconds of a step, and tokens a second, of a run in so many processes; from its own log."""
    from finetune.runs.settings import PretrainRun

    out = folder / f"run-{processes}"
    keys: dict[str, Any] = {
        "corpus": [str(folder / "corpus.txt")],
        "out": str(out),
        "cache_dir": str(folder / "cache"),
        **{f"encoder.{name}": value for name, value in SMALL.items()},
        "vocabulary.vocab_size": VOCABULARY,
        "data.max_length": options.length,
        "loader.batch_size": options.rows * processes,
        "length.max_steps": options.steps,
        "trainer.accelerator": "cpu",
        "trainer.devices": processes,
        "trainer.log_every_steps": max(1, options.steps // 5),
        "trainer.progress": False,
        "tracking.wandb": False,
    }
    file = folder / f"run-{processes}.yaml"
    file.write_text(dump(read(PretrainRun, flags=keys)), encoding="utf-8")
    words = [sys.executable, "-m", "finetune", "pretrain", "--config", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-1000:])
    text = (out / "metrics.jsonl").read_text("utf-8")
    lines = [line for line in map(json.loads, text.splitlines()) if "train/loss" in line]
    rate = statistics.median(line["perf/tokens_per_second"] for line in lines[1:])
    first, last = lines[0], lines[-1]
    tokens = last["data/tokens_seen"] - first["data/tokens_seen"]
    return tokens / (last["step"] - first["step"]) / rate, rate


VOCABULARY = 2000
SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def check(options: argparse.Namespace) -> list[list[str]]:
    """Measured steps beside those of the model, whose compute is that of one process."""
    names = ["processes", "step ms", "tokens/s", "sum of gradients ms", "model's step ms"]
    rows = [[*names, "measured / model"]]
    cores = len(os.sched_getaffinity(0))
    config = EncoderConfig(vocab_size=VOCABULARY, **SMALL)  # type: ignore[arg-type]
    size = BYTES * parameters(config, language_model=True)
    alone = 0.0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "corpus.txt").write_text(_words(options), encoding="ascii")
        for processes in options.measure:
            seconds, rate = measured_step(processes, options, folder)
            alone = alone or seconds / processes
            together = measured_sum(processes, size, folder)
            # Processes that share a core take turns, and nothing is hidden behind the other's turn.
            model = alone * max(1.0, processes / cores) + together
            numbers = [f"{1e3 * seconds:.1f}", f"{rate:,.0f}", f"{1e3 * together:.1f}"]
            rows.append([f"{processes}", *numbers, f"{1e3 * model:.1f}", f"{seconds / model:.2f}"])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _words(options: argparse.Namespace) -> str:
    """Enough text of random words for all steps of the most processes."""
    draws = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draws.choices(letters, k=draws.randint(2, 6))) for _ in range(1500)]
    count = options.rows * options.length * (options.steps + 2) * max(options.measure)
    documents = (" ".join(draws.choices(words, k=200)) for _ in range(count // 200 + 20))
    return "\n\n".join(documents)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---:"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(words: Sequence[str] | None = None) -> None:
    """Print the model's tables, or the check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", type=int, nargs="+", metavar="P", help="processes to measure")
    parser.add_argument("--steps", type=int, default=100, help="steps of a measured run")
    parser.add_argument("--rows", type=int, default=16, help="sequences of a process in a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--used", type=float, help="fraction of the peak, as `make gpu` measured")
    options = parser.parse_args(words)
    if options.measure:
        print("\n".join(aligned(check(options), ">" * 6)))
        return
    machine = Machine()
    if options.used is not None:
        machine = dataclasses.replace(machine, used=options.used)
    for global_batch in (None, 4096):
        print(f"{_markdown(prediction(global_batch, machine))}\n")


if __name__ == "__main__":
    main()
