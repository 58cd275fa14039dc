"""`finetune demo`: the whole road on the embedded sample, offline, in a few minutes.

A tokenizer and an encoder are trained on the sample's text; then the encoder, and the same net from
random weights, are fine-tuned on the sample's tasks with the same settings. What the table shows is
what was measured.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli import command_parser

if TYPE_CHECKING:
    from finetune.run_folder import Results
    from finetune.run_settings import FitRun, PretrainRun
    from tasks.glue import GlueTask

TASKS = ("sst2", "cola", "stsb", "rte")
MINUTES = 3
"""About how long the demo takes on two cores."""


def demo(words: list[str]) -> int:
    """Run the demo; returns the exit status."""
    parser = command_parser("demo", (__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs")
    parser.add_argument(
        "--seed", type=int, default=1, help="draws the sample, the weights, the order"
    )
    space = parser.parse_args(words)
    run_demo(space.out, space.seed)
    return 0


def run_demo(out: Path, seed: int) -> dict[str, tuple[float, float, float]]:
    """Pretrain, fine-tune both ways, and print the table.

    Args:
        out: Gets `sample/`, `pretrained/` and a run folder a fine-tuning; older ones go.
        seed: Draws everything.

    Returns:
        Task -> headline metric of the majority answer, from scratch, and pretrained.
    """
    from finetune.run_folder import say, table
    from finetune.runs import fit, pretrain
    from finetune.task import majority
    from tasks.glue import glue_task
    from tasks.sample import write_sample

    started = time.monotonic()
    say(f"The demo takes about {MINUTES} minutes on two cores; its runs go to {out}.")
    sample = write_sample(out / "sample", seed)
    say(f"[1/3] made a small world: text and labelled files in {sample.data}")
    say("[2/3] pretraining an encoder on the text")
    pretrain(pretraining(sample.corpus, out / "pretrained", seed))
    say(f"[3/3] fine-tuning it, and the same net from scratch, on {', '.join(TASKS)}")
    scores: dict[str, tuple[float, float, float]] = {}
    for name in TASKS:
        task = glue_task(name, sample.data)
        reached = []
        for start in ("none", str(out / "pretrained")):
            run = fine_tuning(name, start, sample.data, out, seed)
            reached.append(_headline(fit(run, _glue)))
        baseline = next(iter(majority(task, task.validation_splits[0]).values()))
        scores[name] = (baseline, *reached)  # type: ignore[assignment]
    rows = [
        [f"{name} ({glue_task(name).monitor})", *(f"{100 * score:.1f}" for score in three)]
        for name, three in scores.items()
    ]
    print("pretrained against from scratch (validation, percent)")
    print(table(rows, ["task (metric)", "majority", "from scratch", "pretrained"]))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes; run folders: {out}/*")
    return scores


def _glue(run: FitRun) -> GlueTask:
    from tasks.glue import glue_task

    return glue_task(run.task, Path(run.data or ""))


def _headline(results: Results) -> float:
    return float(next(iter(results["metrics"].values())))


def pretraining(corpus: Path, out: Path, seed: int) -> PretrainRun:
    """Settings of the demo's pretraining: a 2-block encoder, steps for about a minute."""
    from finetune.encoder import EncoderConfig
    from finetune.run_settings import PretrainRun
    from finetune.text.corpus import CorpusConfig
    from finetune.text.vocabulary import TokenizerConfig
    from finetune.training.data import LoaderConfig
    from finetune.training.optimizer import OptimizerConfig
    from finetune.training.progress import LengthConfig
    from finetune.training.trainer import TrainerConfig
    from tasks.sample import VOCAB_SIZE

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
    """Settings of the demo's fine-tunings: the same for both starts."""
    from finetune.heads import HeadConfig
    from finetune.run_settings import FitRun
    from finetune.training.data import LoaderConfig
    from finetune.training.optimizer import OptimizerConfig
    from finetune.training.progress import LengthConfig

    pretrained = out / "pretrained"
    scratch = start == "none"
    shape = pretraining(Path(), pretrained, seed).encoder
    return FitRun(
        encoder_from=start,
        task=f"glue/{task}",
        out=str(out / f"{task}-{'scratch' if scratch else 'pretrained'}"),
        data=str(data),
        tokenizer=str(pretrained / "tokenizer") if scratch else None,
        seed=seed,
        overwrite=True,
        max_length=64,
        encoder=shape,
        head=HeadConfig(pooling="max"),
        loader=LoaderConfig(batch_size=16),
        optimizer=OptimizerConfig(learning_rate=5e-4),
        length=LengthConfig(max_epochs=10),
    )
