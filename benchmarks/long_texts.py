"""Texts longer than a sequence: cut, both ends, windows and long attention, by length of text.

    python benchmarks/long_texts.py imdb --encoder runs/tiny --files imdb-sample --out runs/long
    python benchmarks/long_texts.py race --encoder runs/tiny --data data --pooling align --out OUT

Each arm is trained with the same seeds, examples and epochs, and keeps its best epoch by validation
accuracy. IMDb is read from a folder with train.jsonl, validation.jsonl and test.jsonl, and scored
on texts of its test file; RACE middle on all validation questions, on which the epoch was chosen
too. An arm that has ended is kept; the table has all arms that are there.

The two arms of 1,024 tokens need an encoder whose positions reach so far, such as rotary ones:
`dense` reads so many tokens at once, and `local` does so with attention to 64 tokens on each side
in every block but the first.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from option_values import names, numbers

from finetune.checkpoints.folder import save_checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.console.tables import table
from finetune.heads import HeadConfig
from finetune.jobs import fit
from finetune.runs.families import make_task
from finetune.runs.folder import RunFolder
from finetune.runs.settings import FitRun
from finetune.text.features.long_texts import LongConfig
from finetune.tracking import TrackingConfig
from finetune.training.config import LoaderConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.optimizer import OptimizerConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tasks.run_settings import ChoiceRun, ClassifyRun

WINDOWS = LongConfig(long="windows")
ARMS = {
    "cut": LongConfig(),
    "head-tail": LongConfig(long="head-tail"),
    "windows": WINDOWS,
    "document": replace(WINDOWS, window_labels="document"),
    "levels": replace(WINDOWS, window_labels="document"),
    "dense": LongConfig(),
    "local": LongConfig(),
}
"""Name of an arm -> how it reads long texts."""
REACH, LOCAL = 1024, 64
"""Tokens of a sequence of the last two arms, and of a window of local attention to each side."""
EDGES = (128, 256, 512)
"""Tokens of a text at which its length class ends."""


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set", choices=("imdb", "race"))
    parser.add_argument("--encoder", required=True, help="run, checkpoint or Hugging Face folder")
    parser.add_argument(
        "--files", type=Path, help="imdb: folder with {train,validation,test}.jsonl"
    )
    parser.add_argument("--data", help="race: folder with the official files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--arms", type=names, default=list(ARMS)[:4], help=", ".join(ARMS))
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--stride", type=int, default=32, help="overlap of windows")
    parser.add_argument("--examples", type=int, default=800, help="examples to train on")
    parser.add_argument(
        "--scored", type=int, default=600, help="imdb: examples to validate or test on"
    )
    parser.add_argument("--pooling", default="mean", help="of the head (default: mean)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    parser.add_argument("--frozen", action="store_true", help="train the head alone, on the cache")
    return parser.parse_args(words)


def run_of(options: argparse.Namespace, arm: str) -> FitRun:
    """The run of an arm."""
    long = arm in ("dense", "local")
    settings: dict[str, Any] = {
        "out": str(options.out / arm),
        "seeds": options.seeds,
        "max_length": REACH if long else options.max_length,
        "long_texts": replace(ARMS[arm], stride=options.stride),
        "head": HeadConfig(options.pooling, levels=1 + (arm == "levels")),
        "cache_dir": str(options.out / "cache"),
        "loader": LoaderConfig(batch_size=options.batch_size),
        "length": LengthConfig(max_epochs=options.epochs),
        "optimizer": OptimizerConfig(options.rate),
        "tracking": TrackingConfig(wandb=False),
        "train_examples": options.examples,
        "baselines": False,
        "resume": RunFolder(options.out / arm).has_started,
    }
    if options.frozen:
        settings["unfreezing"] = UnfreezeConfig("head")
    encoder = with_local_attention(options) if arm == "local" else options.encoder
    if options.set == "race":
        return ChoiceRun(encoder, "race/middle", data=options.data, **settings)
    files = {split: str(sampled(options, split)) for split in ("train", "validation", "test")}
    return ClassifyRun(encoder, "classify/imdb-sample", **files, **settings)


def with_local_attention(options: argparse.Namespace) -> str:
    """A copy of the encoder whose blocks, but for the first, see the tokens near each token."""
    folder: Path = options.out / "local-encoder"
    if not folder.is_dir():
        start = find_checkpoint(options.encoder)
        config = replace(start.encoder_config, local_attention=LOCAL, global_every=10_000)
        weights = {f"encoder.{name}": one for name, one in start.encoder().state_dict().items()}
        save_checkpoint(folder, weights, start.tokenizer(), encoder_config=config, head={})
    return str(folder)


def sampled(options: argparse.Namespace, split: str) -> Path:
    """The file of a split; of those that are scored, so many rows drawn at random."""
    source: Path = options.files / f"{split}.jsonl"
    if split == "train":
        return source
    target: Path = options.out / f"{split}.jsonl"
    if not target.is_file():
        with source.open(encoding="utf-8", newline="\n") as file:  # no other sign ends a row
            lines = list(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        chosen = random.Random(0).sample(lines, min(options.scored, len(lines)))
        target.write_text("".join(chosen), encoding="utf-8")
    return target


def length_class(length: int) -> str:
    """The class of a text of so many tokens."""
    last = EDGES[-1]
    return next((f"to {edge}" for edge in EDGES if length <= edge), f"above {last}")


CLASSES = [length_class(edge) for edge in (*EDGES, EDGES[-1] + 1)]


def classes_of(options: argparse.Namespace, split: str) -> dict[str, str]:
    """Id of each example that is scored -> its length class."""
    tokenizer = find_checkpoint(options.encoder).tokenizer()
    examples = make_task(run_of(options, "cut")).examples(split)
    ids = tokenizer.encode_ids([example.texts[0] for example in examples])
    return {str(e.id): length_class(len(one)) for e, one in zip(examples, ids, strict=True)}


def scores(folder: RunFolder, split: str, classes: dict[str, str]) -> Iterator[float | None]:
    """Accuracy over all answers of a seed, and over each length class."""
    answers = folder.read_predictions(split) or []
    for name in ("all", *CLASSES):
        right = [
            row["prediction"] == row["label"]
            for row in answers
            if name == "all" or classes[str(row["id"])] == name
        ]
        yield fmean(right) if right else None


def main(words: Sequence[str] | None = None) -> None:
    """Run the arms that are missing, and print the table of all that are there."""
    options = parse(words)
    split = "validation" if options.set == "race" else "test"
    for arm in options.arms:
        if not (options.out / arm / "results.json").is_file():
            fit(run_of(options, arm))
    classes = classes_of(options, split)
    rows = []
    for arm in ARMS:
        seeds = RunFolder(options.out / arm).seeds
        if not (options.out / arm / "results.json").is_file():
            continue
        columns = zip(*(scores(seed, split, classes) for seed in seeds), strict=True)
        minutes = fmean(seed.read_results()["train_seconds"] for seed in seeds) / 60
        rows.append([arm, *(_shown(list(column)) for column in columns), f"{minutes:.1f}"])
    counts = [sum(name == one for one in classes.values()) for name in CLASSES]
    sizes = [f"{name} ({count})" for name, count in zip(CLASSES, counts, strict=True)]
    print(table(rows, ["accuracy (%)", "all", *sizes, "minutes a seed"]))
    print(json.dumps({row[0]: row[1:] for row in rows}))


def _shown(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    return f"{fmean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")


if __name__ == "__main__":
    main()
