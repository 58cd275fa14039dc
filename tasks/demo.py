"""Pretrain, fine-tune and report on a small built-in sample, offline, in a few minutes.

A tokenizer and an encoder are trained on the sample's text; then the encoder, and the same net from
random weights, are fine-tuned on tasks of each family with the same settings: classes of texts,
answers in passages, choices among options. What the table shows is what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli import add_json, command_parser, whole
from finetune.console.output import printable, put
from finetune.elementary import TRIVIAL
from finetune.metrics.semantics import shown
from finetune.ranges import MOST_SEED
from finetune.runs.results import baselines

if TYPE_CHECKING:
    from finetune.runs.settings import FitRun, PretrainRun
    from tasks.sample.sample import SamplePaths

TASKS = {
    "glue/sst2": "accuracy",
    "glue/rte": "accuracy",
    "squad/2.0": "f1",
    "race/all": "accuracy",
}
"""Task -> the metric that the table shows."""
EPOCHS = {"glue": 10, "squad": 10, "race": 6}
"""By family: about as many as the slower start needs."""
MINUTES = 3
"""About how long the demo takes on two cores."""

Scores = tuple[float, float, float]
"""That metric of the baseline, from scratch, and pretrained."""


def demo(words: list[str]) -> int:
    """Run the demo; returns the exit status."""
    parser = command_parser("demo", (__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs")
    parser.add_argument(
        "--seed",
        type=whole(0, MOST_SEED),
        default=1,
        help="seed of the sample, the weights and the order of batches",
    )
    add_json(parser, "print only the table, as JSON on stdout")
    space = parser.parse_args(words)
    with contextlib.redirect_stdout(sys.stderr) if space.json else contextlib.nullcontext():
        with _stopped_for_good():
            scores = run_demo(space.out, space.seed)
    if space.json:
        starts = (TRIVIAL, "scratch", "pretrained")
        print(
            json.dumps(
                {task: dict(zip(starts, three, strict=True)) for task, three in scores.items()}
            )
        )
    return 0


@contextlib.contextmanager
def _stopped_for_good() -> Iterator[None]:
    """Where a run of the demo was stopped, say what to do: it cannot be resumed."""
    from finetune.training.loop.stopping import Interrupted

    try:
        yield
    except Interrupted as stop:
        stop.message = "the demo was stopped; finetune demo starts again from the beginning"
        raise


def run_demo(out: Path, seed: int) -> dict[str, Scores]:
    """Pretrain, fine-tune both ways, print the table, and write a report of all runs.

    Args:
        out: Gets `sample/`, `pretrained/`, a run folder a fine-tuning and `report.html`; older
            ones go.
        seed: Draws everything.

    Returns:
        Task -> that metric of the trivial baseline, from scratch, and pretrained.
    """
    from finetune.jobs import pretrain
    from finetune.runs.folder import say
    from finetune.runs.opening import check_writable
    from tasks.sample.sample import write_sample

    check_writable(out)
    started = time.monotonic()
    say(f"The demo takes about {MINUTES} minutes on two cores; runs are written to {out}.")
    sample = write_sample(out / "sample", seed)
    say(f"[1/3] generated a sample of texts and labelled files in {sample.data}")
    say("[2/3] pretraining an encoder on the text")
    pretrain(pretraining(sample.corpus, out / "pretrained", seed))
    say(f"[3/3] fine-tuning it, and the same model from scratch, on {', '.join(TASKS)}")
    scores = {task: _compare(task, sample.data, out, seed) for task in TASKS}
    print(_table(scores))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes; run folders: {printable(str(out))}/*")
    put(f"report: {_report(out)}")
    put(_next(sample, out))
    return scores


def _compare(task: str, data: Path, out: Path, seed: int) -> Scores:
    """Fine-tune from both starts."""
    from finetune.jobs import fit

    with warnings.catch_warnings():
        # From scratch, choices may stay at chance for a while; the table says where they end.
        warnings.filterwarnings("ignore", message="over the first third of training")
        scratch, pretrained = (
            fit(fine_tuning(task, start, data, out, seed))
            for start in ("none", str(out / "pretrained"))
        )
    metric = TASKS[task]
    trivial = baselines(scratch)[TRIVIAL][metric]
    return trivial, scratch["metrics"][metric], pretrained["metrics"][metric]


def _table(scores: dict[str, Scores]) -> str:
    from finetune.console.tables import table

    rows = [
        [f"{task} ({metric})", *(shown(metric, score, short=True) for score in scores[task])]
        for task, metric in TASKS.items()
    ]
    header = ["task (metric)", "trivial", "from scratch", "pretrained"]
    return f"pretrained against from scratch (validation, percent)\n{table(rows, header)}"


def _report(out: Path) -> Path:
    """All runs of the demo as a page that opens in a browser."""
    from finetune.report import write_report

    folders = [_folder(task, start, out) for task in TASKS for start in ("pretrained", "scratch")]
    page = out / "report.html"
    title = "finetune demo: pretrained against from scratch"
    return write_report([*folders, out / "pretrained"], page, title=title).path


def _next(sample: SamplePaths, out: Path) -> str:
    """Say what can be done with the runs that are there now."""
    return (
        f"try next:\n{_activation()}"
        f"  finetune evaluate {_folder('race/all', 'pretrained', out)} --split test\n"
        f"  finetune predict {_folder('squad/2.0', 'pretrained', out)} --input {sample.questions}\n"
        f"  finetune inspect pairs {out / 'pretrained'} --file {sample.pairs}"
    )


def _activation() -> str:
    """The line that makes `finetune` a command of this shell, where it is none."""
    script = Path(os.path.relpath(sys.prefix), "bin", "activate")
    needed = shutil.which("finetune") is None and script.is_file()
    return f"  source {script}\n" if needed else ""


def _folder(task: str, start: str, out: Path) -> Path:
    return out / f"{task.replace('/', '-')}-{start}"


def pretraining(corpus: Path, out: Path, seed: int) -> PretrainRun:
    """Settings of the demo's pretraining: a 2-block encoder, steps for about a minute."""
    from finetune.encoder import EncoderConfig
    from finetune.runs.settings import PretrainRun
    from finetune.text.corpus.corpus import CorpusConfig
    from finetune.text.tokenizer.vocabulary import TokenizerConfig
    from finetune.training.config import LoaderConfig, TrainerConfig
    from finetune.training.loop.progress import LengthConfig
    from finetune.training.optimizer import OptimizerConfig
    from tasks.sample.sample import VOCAB_SIZE

    return PretrainRun(
        corpus=[str(corpus)],
        out=str(out),
        seed=seed,
        overwrite=True,
        encoder=EncoderConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=64,
            position="rotary",
            norm_position="pre",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        vocabulary=TokenizerConfig(vocab_size=VOCAB_SIZE),
        data=CorpusConfig(max_length=32),
        loader=LoaderConfig(batch_size=32),
        optimizer=OptimizerConfig(learning_rate=2e-3),
        length=LengthConfig(max_steps=1500),
        trainer=TrainerConfig(log_every_steps=50, validate_every_steps=500),
    )


def fine_tuning(task: str, start: str, data: Path, out: Path, seed: int) -> FitRun:
    """Settings of the demo's fine-tunings: of a task, the same for both starts."""
    from finetune.heads import HeadConfig
    from finetune.runs.settings import fit_settings
    from finetune.training.config import LoaderConfig
    from finetune.training.loop.progress import LengthConfig
    from finetune.training.optimizer import OptimizerConfig

    pretrained = out / "pretrained"
    scratch = start == "none"
    family = task.split("/")[0]
    return fit_settings(family)(
        encoder_from=start,
        task=task,
        out=str(_folder(task, "scratch" if scratch else "pretrained", out)),
        data=str(data),
        tokenizer=str(pretrained / "tokenizer") if scratch else None,
        seed=seed,
        overwrite=True,
        encoder=pretraining(Path(), pretrained, seed).encoder,
        head=HeadConfig(pooling="max"),
        loader=LoaderConfig(batch_size=16),
        optimizer=OptimizerConfig(learning_rate=5e-4),
        length=LengthConfig(max_epochs=EPOCHS[family]),
    )
