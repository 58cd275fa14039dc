"""The cache of hidden states: filled beside a plain forward pass, and opened by a second run.

    python benchmarks/caching.py --data data --task cola --rows 2000

In turns, over the same batches: `Encoder.prefix` alone; what fills the cache (`open_cache`, with
hashing, writing and checksum); what opens it again, for which the weights are hashed too. Aimed at:
filled in 1.05 times the time of the pass, opened in 1 % of it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from contest import prepare

from finetune.checkpoints.hub import find_checkpoint
from finetune.console.tables import table
from finetune.encoder import Encoder
from finetune.runs.fits import find_task
from finetune.training.config import CacheConfig
from finetune.training.loop.task_data import TaskData
from finetune.training.prefix.cache import RowSet, features_key, open_cache

Turns = dict[str, Callable[[], object]]


def turns(encoder: Encoder, data: TaskData, depth: int, folder: Path) -> Turns:
    """What is timed, by name; each turn to open finds what the turn before has filled."""
    split = data.train_split
    key, lengths = features_key(data.features(split)), data.lengths(split)
    rows = RowSet(split, key, lengths, {depth: 1.0})
    batches = list(data.all_rows(split, training=False))

    @torch.no_grad()
    def plain() -> None:
        for _, batch in batches:
            encoder.prefix(batch, depth)

    def use(batches: Sequence[tuple[np.ndarray, dict[str, torch.Tensor]]]) -> None:
        config = CacheConfig(cache_gib=64)
        open_cache(
            encoder, rows, [depth], batches, folder=folder, config=config, arithmetic="here"
        ).close()

    def fill() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        use(batches)

    return {"plain forward": plain, "fill": fill, "open": lambda: use([])}


def seconds(turn: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, which other work disturbs less."""
    clock, processor = time.perf_counter(), time.process_time()
    turn()
    return time.perf_counter() - clock, time.process_time() - processor


def main(words: Sequence[str] | None = None) -> None:
    """Take turns, and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with glue_data/")
    parser.add_argument("--encoder", required=True, help="any encoder, such as a folder of MiniLM")
    parser.add_argument("--task", default="cola", help="of GLUE (default: cola)")
    parser.add_argument("--rows", type=int, help="examples (default: all)")
    parser.add_argument("--depth", type=int, help="frozen blocks (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--threads", type=int, help="of torch (default: all cores)")
    space = parser.parse_args(words)
    prepare(space.threads)
    checkpoint = find_checkpoint(space.encoder)
    encoder = checkpoint.encoder().eval()
    task = find_task(f"glue/{space.task}", data=space.data)
    data = TaskData(task, checkpoint.tokenizer(), limit=space.rows)
    depth = space.depth or encoder.config.num_hidden_layers
    with tempfile.TemporaryDirectory() as folder:
        made = turns(encoder, data, depth, Path(folder) / "hidden")
        made["plain forward"]()  # what is set up once is not timed
        rounds = [{name: seconds(turn) for name, turn in made.items()} for _ in range(space.rounds)]
    print(table([line(name, rounds) for name in made], ["", *HEADER]))


HEADER = ("clock s", "processor s", "of a plain forward", "of a fill (processor)")


def line(name: str, rounds: Sequence[dict[str, tuple[float, float]]]) -> list[str]:
    """Medians of a turn, and its medians as fractions of the others' turns of the same rounds."""

    def median(of: Callable[[dict[str, tuple[float, float]]], float]) -> float:
        return statistics.median(map(of, rounds))

    return [
        name,
        f"{median(lambda one: one[name][0]):.2f}",
        f"{median(lambda one: one[name][1]):.2f}",
        f"{median(lambda one: one[name][1] / one['plain forward'][1]):.3f}",
        f"{median(lambda one: one[name][1] / one['fill'][1]):.4f}",
    ]


if __name__ == "__main__":
    main()
