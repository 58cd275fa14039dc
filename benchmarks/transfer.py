"""The ladder of transfer, from a bag of words to a fine-tuned encoder; and ULMFiT's grid by block.

    python benchmarks/transfer.py ladder --encoder runs/tiny --data data --out runs/transfer
    python benchmarks/transfer.py grids --grids a=runs/grid,lstm=runs/grid-lstm --out runs/transfer

`ladder`: classifiers of the official test set, each step with the same epochs and the same seeds.
Networks keep their best epoch by validation accuracy; the test set chooses nothing. A bag of words
and the mean of word vectors are logistic regressions, which have no seeds. A step that has ended is
kept. `grids`: figures of grids that `ulmfit_grid.py` has run, each with another encoder, such as a
transformer and an LSTM of equal parameters, pretrained for equal minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
from option_values import names, numbers
from ulmfit_sample import write_imdb
from ulmfit_table import TITLES, results_of

from finetune.checkpoints.folder import load_checkpoint
from finetune.elementary.linear import ROUGH
from finetune.elementary.linear import fit as fit_linear
from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError, FinetuneError
from finetune.files.writing import write_text
from finetune.heads import HeadConfig
from finetune.jobs import fit
from finetune.jobs.baselines import answer_elementary
from finetune.jobs.evaluation import evaluate
from finetune.runs.families import make_task
from finetune.runs.folder import RunFolder, say
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.word_vectors import Vectors, piece_vectors, vector_size
from finetune.tracking import TrackingConfig
from finetune.training.config import LoaderConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.optimizer import OptimizerConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tasks.run_settings import ClassifyRun

WORDS, VECTORS = "bag of words", "word vectors alone"
STEPS = (WORDS, VECTORS, "CNN", "BiLSTM", "frozen, mix of layers", "fine-tuned")
"""The ladder from below."""
SPLITS = ("train", "validation", "test")
INVERSES = (0.01, 0.1, 1.0, 10.0)
"""Inverse penalties of the regression on word vectors; validation accuracy chooses one."""


def common(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of every run: the set's files, and what all networks share."""
    sample = options.out / "sample"
    files = {split: str(sample / f"{split}.jsonl") for split in SPLITS}
    is_imdb = options.set == "imdb"
    return {
        "task": "classify/own" if is_imdb else f"classify/{options.set}",
        "data": str(options.data),
        "tokenizer": None,
        "max_length": options.max_length,
        "cache_dir": str(options.out / "cache"),
        "loader": LoaderConfig(batch_size=options.batch_size),
        "length": LengthConfig(max_epochs=options.epochs),
        "tracking": TrackingConfig(wandb=False),
        "baselines": False,
        **(files if is_imdb else {}),
    }


def network(options: argparse.Namespace, step: str, seed: int) -> ClassifyRun:
    """The run of a step."""
    shape = load_checkpoint(options.encoder).encoder_config
    settings = common(options) | {"seed": seed, "optimizer": OptimizerConfig(options.rate)}
    settings["out"] = str(options.out / options.set / step.replace(", ", "-").replace(" ", "-"))
    settings["out"] += f"/seed-{seed}"
    if step in ("CNN", "BiLSTM"):
        width = vector_size(options.word_vectors) if options.word_vectors else None
        block, pooling = ("conv", "max") if step == "CNN" else ("lstm", "attention")
        fresh = EncoderConfig(
            hidden_size=shape.hidden_size,
            num_hidden_layers=1,
            block=block,
            embedding_size=width,
            hidden_act="relu" if step == "CNN" else shape.hidden_act,
            residual=step != "CNN",  # Kim's network has none
        )
        vectors = str(options.word_vectors) if options.word_vectors else None
        settings |= {"encoder": fresh, "head": HeadConfig(pooling), "word_vectors": vectors}
        return ClassifyRun("none", **settings | {"tokenizer": str(options.encoder)})
    if step == "fine-tuned":
        return ClassifyRun(str(options.encoder), head=HeadConfig("mean"), **settings)
    frozen: dict[str, Any] = {
        "head": HeadConfig("mean", layers="mix"),
        "unfreezing": UnfreezeConfig("head"),
    }
    return ClassifyRun(str(options.encoder), **frozen, **settings)


def score(run: ClassifyRun) -> float:
    """Train, unless that has ended, and give the accuracy on the test set."""
    folder = Path(str(run.out))
    if not (folder / "test.json").is_file():
        if not (folder / "results.json").is_file():
            fit(replace(run, resume=RunFolder(folder).has_started))
        write_text(folder / "test.json", json.dumps(evaluate(folder, "test"), indent=2) + "\n")
    tested = json.loads((folder / "test.json").read_text("utf-8"))
    return float(tested["metrics"]["accuracy"])


def means(vectors: Vectors, tokenizer: Tokenizer, examples: Sequence[Example]) -> Vectors:
    """The mean vector of each text's pieces, (N, E)."""
    ids = tokenizer.encode_ids([" ".join(map(str, example.texts)) for example in examples])
    rows = [vectors[row].mean(axis=0) if row else np.zeros(vectors.shape[1]) for row in ids]
    return np.array(rows, dtype=np.float32)


def vectors_alone(options: argparse.Namespace, splits: Mapping[str, Sequence[Example]]) -> float:
    """Accuracy of a logistic regression on the mean of a text's word vectors."""
    tokenizer = load_checkpoint(options.encoder).tokenizer()
    vectors = piece_vectors(options.word_vectors, tokenizer).vectors
    vectors = vectors / np.sqrt(np.square(vectors).mean())
    features = {name: means(vectors, tokenizer, rows) for name, rows in splits.items()}
    labels = {name: [str(row.label) for row in rows] for name, rows in splits.items()}
    classes = sorted(set(labels["train"]))
    found = []
    for inverse in INVERSES:
        model = fit_linear(
            features["train"], labels["train"], classes, inverse=inverse, tolerance=ROUGH
        )
        best = {
            name: np.array(classes)[np.argmax(model(features[name]), axis=1)] for name in SPLITS[1:]
        }
        found.append([float(np.mean(best[name] == np.array(labels[name]))) for name in SPLITS[1:]])
    return max(found)[1]


def ladder(options: argparse.Namespace) -> dict[str, list[float]]:
    """Run the steps that are missing: accuracies on the test set over the seeds."""
    if options.set == "imdb" and not (options.out / "sample" / "test.jsonl").is_file():
        write_imdb(options.data, options.out / "sample", options.imdb)
    task = make_task(ClassifyRun(str(options.encoder), **common(options)))
    names_of = dict(zip(SPLITS, ("train", task.validation_splits[0], "test"), strict=True))
    splits = {name: task.examples(split) for name, split in names_of.items()}
    words = answer_elementary(task, splits["train"], {"test": splits["test"]})
    scores = {WORDS: [words["bag_of_words"].metrics["accuracy"]]}
    if options.word_vectors:
        scores[VECTORS] = [vectors_alone(options, splits)]
    for step in STEPS[2:]:
        say(f"[{options.set}] {step}")
        scores[step] = [score(network(options, step, seed)) for seed in options.seeds]
    return scores


def row(name: str, values: Sequence[float]) -> str:
    """A row of a table in markdown, in percent."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"| {name} | {len(values)} | {100 * fmean(values):.1f}{spread} |"


def bars(place: Any, groups: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> None:
    """Draw means and standard deviations in percent, a color for each group."""
    rows = list(dict.fromkeys(name for group in groups.values() for name in group))
    height = 0.8 / len(groups)
    for number, (title, group) in enumerate(groups.items()):
        places: npt.NDArray[Any] = np.array([rows.index(name) for name in group])
        middle = [100 * fmean(values) for values in group.values()]
        error = [100 * stdev(values) if len(values) > 1 else 0.0 for values in group.values()]
        shift = (number - (len(groups) - 1) / 2) * height
        place.barh(places + shift, middle, height, xerr=error, label=title)
    place.set_yticks(range(len(rows)), rows, fontsize=8)
    place.set_xlabel(label)
    if len(groups) > 1:
        place.legend(fontsize=8)


def run_ladder(options: argparse.Namespace) -> str:
    """The ladder's table; its figure is OUT/ladder-SET.png."""
    from matplotlib.figure import Figure

    scores = ladder(options)
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    bars(figure.subplots(), {"": scores}, f"accuracy on the test set of {options.set}, %")
    figure.savefig(options.out / f"ladder-{options.set}.png", dpi=120)
    lines = [f"| {options.set} | seeds | accuracy, % |", "|---|---|---|"]
    return "\n".join([*lines, *(row(name, values) for name, values in scores.items())])


def run_grids(options: argparse.Namespace) -> str:
    """The table of all grids; a figure a set is OUT/grids-SET.png."""
    from matplotlib.figure import Figure

    lines = ["| set, block | arm | seeds | error, % |", "|---|---|---|---|"]
    for name in options.sets:
        errors: dict[str, dict[str, list[float]]] = {}
        for title, folder in options.grids.items():
            for arm, shown in TITLES.items():
                ended = [results_of(one) for one in sorted((folder / name / arm).glob("seed-*"))]
                values = [1 - one["test"]["metrics"]["accuracy"] for one in ended if one]
                if values:
                    errors.setdefault(title, {})[shown] = values
                    lines.append(f"| {name}, {title} {row(shown, values)}")
        if errors:
            figure = Figure(figsize=(6, 4.5), layout="constrained")
            bars(figure.subplots(), errors, f"error on the test set of {name}, %")
            figure.savefig(options.out / f"grids-{name}.png", dpi=120)
    if len(lines) == 2:
        raise ConfigError("expected grids with runs that have ended, got none; run ulmfit_grid.py")
    return "\n".join(lines)


def _grids(text: str) -> dict[str, Path]:
    return {title: Path(place) for title, _, place in (p.partition("=") for p in text.split(","))}


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    add = parts.add_parser("ladder").add_argument
    add("--encoder", type=Path, required=True, help="pretrained run or checkpoint")
    add("--data", type=Path, required=True, help="folder with trec/ and imdb/")
    add("--out", type=Path, required=True, help="folder of the runs, tables and figures")
    add("--word-vectors", type=Path, help="also where CNN and BiLSTM start; none = random ones")
    add("--set", default="trec6", help="trec6, imdb (a sample) or agnews")
    add("--imdb", type=numbers, default=[2000, 1000, 2000, 0], metavar="N,N,N,N")
    add("--seeds", type=numbers, default=[1, 2, 3, 4, 5], help="such as 1,2,3,4,5")
    add("--epochs", type=int, default=10)
    add("--rate", type=float, default=1e-3, help="peak learning rate")
    add("--batch-size", type=int, default=32)
    add("--max-length", type=int, default=64, help="maximal tokens of a text")
    add = parts.add_parser("grids").add_argument
    add("--grids", type=_grids, required=True, help="TITLE=FOLDER,TITLE=FOLDER")
    add("--sets", type=names, default=["trec6", "imdb"])
    add("--out", type=Path, required=True, help="folder of table and figures")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run a part and print its table."""
    options = parse(words)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        text = (run_ladder if options.part == "ladder" else run_grids)(options)
    except FinetuneError as error:
        print(f"transfer: {error}", file=sys.stderr)
        return 2
    write_text(options.out / f"{options.part}.md", text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
