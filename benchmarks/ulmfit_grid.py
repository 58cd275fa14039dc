"""ULMFiT's ablations on an encoder, with error bars (Howard and Ruder, 2018, tables 6 and 7).

TREC-6 complete, and a seeded sample of IMDb, stratified by class. Classifiers start from one
encoder a way of LM fine-tuning, adapted once: the spread is that of the classifier's seeds (head,
order, dropout), and all seeds and policies read one cache of the frozen part. Every run has the
same number of epochs and keeps its best one by validation accuracy (on a tenth of the training
texts, as in the paper); the official test set is scored once and chooses nothing.

What is ours: each rate rises over the first tenth of the run, also where the paper has a constant
one; the topmost rate is an option, as an LSTM's does not serve an encoder; chain-thaw has a tenth
of it below the head, as in the paper.

A run is a folder in --out: what has ended is kept, what was interrupted is resumed, and seeds may
be added later.

    python benchmarks/ulmfit_grid.py --encoder runs/tiny --data data --out runs/ulmfit-grid
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from option_values import names, numbers
from ulmfit_sample import write_imdb
from ulmfit_table import TITLES, results_of, table

from finetune.checkpoints.folder import load_checkpoint
from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError, DataError, FinetuneError
from finetune.files.writing import write_text
from finetune.heads import HeadConfig
from finetune.jobs import adapt, fit
from finetune.jobs.evaluation import evaluate
from finetune.runs.folder import RunFolder, say
from finetune.runs.settings import AdaptRun
from finetune.text.corpus.corpus import CorpusConfig
from finetune.tracking import TrackingConfig
from finetune.training.config import LoaderConfig, TrainerConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.stopping import Interrupted
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import ScheduleConfig, ScheduleName
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan
from tasks.run_settings import ClassifyRun

DISCR = 2.6
STLR: ScheduleName = "slanted_triangular"
BEST_LM = "full-discr-stlr"


@dataclass(frozen=True)
class LmArm:
    """A way of fine-tuning the language model."""

    rate_decay: float = 1.0
    schedule: ScheduleName = "constant"


LM_ARMS = {
    "full": LmArm(),
    "full-discr": LmArm(DISCR),
    BEST_LM: LmArm(DISCR, STLR),
}
"""Table 6's rows, but for the one without."""


@dataclass(frozen=True)
class Arm:
    """A way of fine-tuning the classifier, on an encoder with or without LM fine-tuning."""

    unfreeze: str = "all"
    rate_decay: float = 1.0
    schedule: ScheduleName = "constant"
    lm: str | None = BEST_LM
    """Key of `LM_ARMS`; None: the encoder as it was given."""
    scratch: bool = False
    """Random weights in its shape."""


ARMS = {
    "scratch": Arm(lm=None, scratch=True),
    "full": Arm(),
    "full-discr": Arm(rate_decay=DISCR),
    "last": Arm("head"),
    "chain": Arm("chain"),
    "freez": Arm("gradual"),
    "freez-discr": Arm("gradual", DISCR),
    "freez-stlr": Arm("gradual", 1.0, STLR),
    "freez-cos": Arm("gradual", 1.0, "cosine"),
    "freez-discr-stlr": Arm("gradual", DISCR, STLR),
    "lm-none": Arm("gradual", DISCR, STLR, lm=None),
    "lm-full": Arm("gradual", DISCR, STLR, lm="full"),
    "lm-full-discr": Arm("gradual", DISCR, STLR, lm="full-discr"),
}
"""Table 7's rows, then table 6's; the last row of both is `freez-discr-stlr`."""

SETS = ("trec6", "imdb", "agnews")
SESSION = ("out", "data", "sets", "arms", "seeds", "accelerator", "keep", "table", "quick")
"""Options that may differ when a grid is continued."""


@dataclass(frozen=True)
class Grid:
    """All settings of a grid, as runs want them."""

    options: argparse.Namespace
    shape: EncoderConfig

    def max_length(self, name: str) -> int:
        """Longest sequence of a set, in tokens."""
        wanted = int(getattr(self.options, "trec_length" if name == "trec6" else "text_length"))
        learned = self.shape.position == "learned"
        return min(wanted, self.shape.max_position_embeddings) if learned else wanted

    def folder(self, name: str, *parts: str) -> Path:
        """A folder of a set."""
        return Path(self.options.out, name, *parts)

    def _common(self, name: str) -> dict[str, Any]:
        options = self.options
        return {
            "data": str(options.data),
            "cache_dir": str(Path(options.out) / "cache"),
            "dropout": options.dropout,
            "loader": LoaderConfig(batch_size=options.batch_size),
            "trainer": TrainerConfig(accelerator=options.accelerator),
            "tracking": TrackingConfig(wandb=False),
        }

    def adaptation(self, name: str, lm: str) -> AdaptRun:
        """The run that fine-tunes the language model on a set's texts."""
        options, arm = self.options, LM_ARMS[lm]
        imdb = name == "imdb"
        return AdaptRun(
            encoder_from=str(options.encoder),
            out=str(self.folder(name, "lm", lm)),
            corpus=[str(self.folder(name, "sample", "lm.jsonl"))] if imdb else None,
            task=None if imdb else f"classify/{name}",
            text=CorpusConfig(max_length=self.max_length(name)),
            optimizer=OptimizerConfig(options.lm_rate, rate_decay=arm.rate_decay),
            schedule=ScheduleConfig(arm.schedule),
            length=LengthConfig(max_epochs=options.lm_epochs),
            **self._common(name),
        )

    def unfreezing(self, arm: Arm) -> UnfreezeConfig:
        """When an arm trains what, and chain-thaw's own rates."""
        options, last = self.options, self.shape.num_hidden_layers
        below = [f"embeddings..block_{last}={options.learning_rate / 10:g}"]
        return UnfreezeConfig(
            arm.unfreeze,
            phase_epochs=options.phase_epochs,
            schedule_scope=options.schedule_scope,
            group_rates=below if arm.unfreeze == "chain" else None,
        )

    def fine_tuning(self, name: str, arm_name: str, seed: int) -> ClassifyRun:
        """The run of a classifier."""
        options, arm = self.options, ARMS[arm_name]
        start = str(self.folder(name, "lm", arm.lm)) if arm.lm else str(options.encoder)
        sample = self.folder(name, "sample")
        files: dict[str, Any] = {split: str(sample / f"{split}.jsonl") for split in SPLITS}
        discr = arm.rate_decay > 1 and options.discr_rate
        return ClassifyRun(
            encoder_from="none" if arm.scratch else start,
            tokenizer=str(options.encoder) if arm.scratch else None,
            encoder=self.shape if arm.scratch else EncoderConfig(),
            task="classify/own" if name == "imdb" else f"classify/{name}",
            out=str(self.folder(name, arm_name, f"seed-{seed}")),
            seed=seed,
            max_length=self.max_length(name),
            head=HeadConfig(options.pooling),
            unfreezing=self.unfreezing(arm),
            optimizer=OptimizerConfig(discr or options.learning_rate, rate_decay=arm.rate_decay),
            schedule=ScheduleConfig(arm.schedule),
            length=LengthConfig(max_epochs=options.epochs),
            **(files if name == "imdb" else {}),
            **self._common(name),
        )

    def check(self) -> None:
        """See, before hours have gone, that every plan fits the number of epochs.

        Raises:
            ConfigError: One does not, or --out holds a grid with other options.
        """
        for name in self.options.arms:
            blocks = self.shape.num_hidden_layers
            make_plan(self.unfreezing(ARMS[name]), blocks, self.options.epochs)
        file = Path(self.options.out) / "grid.json"
        now = {key: value for key, value in vars(self.options).items() if key not in SESSION}
        now = json.loads(json.dumps(now, default=str))
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else now
        for key in now:
            if before.get(key) != now[key]:
                raise ConfigError(
                    f"{file}: {key} was {before.get(key)!r} when the grid began and is "
                    f"{now[key]!r} now; name another --out"
                )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(now, indent=2) + "\n")

    def work(self) -> Iterator[tuple[str, str, int]]:
        """Set, arm and seed of each run; every arm has its first seed before one has a second."""
        for name in self.options.sets:
            for seed in self.options.seeds:
                for arm in self.options.arms:
                    yield name, arm, seed


SPLITS = ("train", "validation", "test")


def run_adaptation(grid: Grid, name: str, lm: str) -> None:
    """Fine-tune a language model, unless that has ended; continue where it was interrupted."""
    run = grid.adaptation(name, lm)
    folder = Path(run.out)
    if (folder / "results.json").is_file():
        return
    say(f"[{name}] LM fine-tuning: {lm}")
    adapt(replace(run, resume=RunFolder(folder).has_started))


def run_one(grid: Grid, name: str, arm: str, seed: int) -> None:
    """Fine-tune a classifier and score it on the test set, unless that has ended."""
    run = grid.fine_tuning(name, arm, seed)
    folder = Path(str(run.out))
    if (folder / "test.json").is_file():
        return
    lm = ARMS[arm].lm
    if lm is not None:
        run_adaptation(grid, name, lm)
    say(f"[{name}] {TITLES[arm]}, seed {seed}")
    if not (folder / "results.json").is_file():
        fit(replace(run, resume=RunFolder(folder).has_started))
    tested = evaluate(folder, "test")
    write_text(folder / "test.json", json.dumps(tested, indent=2) + "\n")
    if not grid.options.keep:
        shutil.rmtree(folder / "checkpoints")


def run_all(grid: Grid) -> list[str]:
    """Run what is missing.

    Returns:
        What failed, a line each; a run that diverged does not stop the others.
    """
    options, failed = grid.options, []
    for name, arm, seed in grid.work():
        samples = grid.folder(name, "sample")
        if name == "imdb" and not (samples / "lm.jsonl").is_file():
            write_imdb(options.data, samples, options.imdb)
        try:
            run_one(grid, name, arm, seed)
        except (ConfigError, DataError):
            raise
        except FinetuneError as error:
            failed.append(f"{name}, {arm}, seed {seed}: {error}")
            say(failed[-1])
    return failed


def report(grid: Grid, failed: Sequence[str]) -> str:
    """All tables, in markdown; also written to OUT/table.md."""
    options = grid.options
    parts = []
    for name in options.sets:
        results: Mapping[str, Any] = {
            arm: [results_of(grid.folder(name, arm, f"seed-{seed}")) for seed in options.seeds]
            for arm in options.arms
        }
        about = "complete"
        if name == "imdb":
            about = "a sample: {:,} train, {:,} validation, {:,} test, {:,} unlabelled".format(
                *options.imdb
            )
        parts.append(f"## {name} ({about})\n\n{table(name, results, options.compare_on)}")
    if failed:
        parts.append("\n".join(["Failed:", "", *(f"- {line}" for line in failed)]))
    text = "\n\n".join(parts) + "\n"
    write_text(Path(options.out) / "table.md", text)
    return text


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--encoder", type=Path, required=True, help="pretrained run or checkpoint")
    add("--data", type=Path, required=True, help="folder with trec/ and imdb/")
    add("--out", type=Path, required=True, help="folder of the grid")
    add("--sets", type=names, default=["trec6", "imdb"], help=f"any of {', '.join(SETS)}")
    add("--arms", type=names, default=list(ARMS), help=f"any of {', '.join(ARMS)}")
    add("--seeds", type=numbers, default=[1, 2, 3, 4, 5], help="such as 1,2,3,4,5")
    add("--imdb", type=numbers, default=[2000, 1000, 2000, 6000], metavar="N,N,N,N")
    add("--epochs", type=int, default=10, help="epochs of each classifier")
    add("--phase-epochs", type=float, default=1.0, help="epochs of each phase of gradual and chain")
    add("--schedule-scope", default="run", choices=("run", "phase"), help="what a schedule covers")
    add("--lm-epochs", type=int, default=3, help="epochs of LM fine-tuning")
    add("--learning-rate", type=float, default=1e-3, help="peak rate of the topmost group")
    add("--discr-rate", type=float, help="the same for discriminative rates")
    add("--lm-rate", type=float, default=3e-4, help="peak rate of LM fine-tuning")
    add("--dropout", type=float, help="dropout of the encoder; default: its config")
    add("--pooling", default="concat", help="the head's: concat (ULMFiT's), mean, max, cls")
    add("--batch-size", type=int, default=32)
    add("--trec-length", type=int, default=64, help="maximal tokens of a question")
    add("--text-length", type=int, default=256, help="maximal tokens of another text")
    add("--compare-on", default="test", choices=("test", "validation"))
    add("--accelerator", default="auto", help="cpu, gpu or auto")
    add("--keep", action="store_true", help="keep the checkpoints of scored classifiers")
    add("--table", action="store_true", help="run nothing; print the table of finished runs")
    add("--quick", action="store_true", help="smoke test: two seeds, two epochs, 800 reviews")
    options = parser.parse_args(words)
    if options.quick:
        options.seeds, options.imdb = options.seeds[:2], [400, 100, 200, 100]
        options.epochs, options.phase_epochs, options.lm_epochs = 2, 0.1, 1
    for name, known in (("sets", SETS), ("arms", ARMS)):
        if unknown := [word for word in getattr(options, name) if word not in known]:
            parser.error(f"--{name}: expected {', '.join(known)}, got {', '.join(unknown)}")
    if len(options.imdb) != 4:
        parser.error("--imdb: expected train,validation,test,unlabelled, got another count")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run the grid and print its tables; 0 if all has ended."""
    options = parse(words)
    try:
        grid = Grid(options, load_checkpoint(options.encoder).encoder_config)
        grid.check()
        failed = [] if options.table else run_all(grid)
        print(report(grid, failed))
    except FinetuneError as error:
        print(f"ulmfit_grid: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print("ulmfit_grid: stopped; run the same command to continue", file=sys.stderr)
        return 128 + stopped.signal
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
