"""Small questions to pretraining, answered in the made world of `finetune demo`.

    python benchmarks/made_world.py objectives --out runs/made-world
    python benchmarks/made_world.py residual --out runs/made-world

`objectives`: the same steps of masked language modelling with 15 % or 30 % masks, of causal
language modelling, and of causal and then masked halves; judged by minimal pairs without any
training, and by fine-tuning on the world's SST-2 and CoLA. `residual`: 1 to 8 blocks with and
without the residual connections (Dong et al., 2021); judged by the loss, and by what the mean token
leaves of the states of the last layer: 0 where all tokens of a text have become one state.

Seeds draw weights, order and masks; the world stays. What has ended is kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from option_values import numbers

from finetune.comparison.seeds import seed_tests, spread
from finetune.console.tables import table
from finetune.encoder import Encoder, EncoderConfig
from finetune.files.writing import write_text
from finetune.heads import HeadConfig
from finetune.inspection import read_sequences
from finetune.inspection.pairs import judge_pairs
from finetune.inspection.similarity import layers_within
from finetune.jobs import adapt, fit, pretrain
from finetune.jobs.sources import Model, TextChoice, load_model
from finetune.runs.settings import AdaptRun, PretrainRun
from finetune.text.corpus.masking import MaskingConfig
from finetune.training.config import CacheConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.randomness import seed_weights
from tasks.demo import fine_tuning, pretraining
from tasks.sample.sample import SamplePaths, write_sample

TASKS = {"glue/sst2": "accuracy", "glue/cola": "matthews_correlation"}
"""Task -> its metric."""
DEPTHS = (1, 2, 4, 8)
TEXTS = 64
"""Texts whose states are compared."""
Figures = dict[str, float]
Arm = Callable[[SamplePaths, Path, int, int], Figures]
"""Sample, folder of its runs, seed, steps -> figures by name."""


def _pretraining(sample: SamplePaths, out: Path, seed: int, steps: int) -> PretrainRun:
    run = pretraining(sample.corpus, out, seed)
    return replace(run, length=LengthConfig(max_steps=steps), baselines=False)


def _objective(rate: float = 0.15, causal_part: float = 0.0) -> Arm:
    """Pretrain with so many masks, the first part of the steps causally, and judge."""

    def arm(sample: SamplePaths, out: Path, seed: int, steps: int) -> Figures:
        first = round(steps * causal_part)
        run = _pretraining(sample, out / "pretrained", seed, first or steps)
        run = replace(run, masks=MaskingConfig(mask_rate=rate))
        run = replace(run, encoder=replace(run.encoder, causal=first > 0))
        pretrain(run)
        if 0 < first < steps:
            _turn(run, out / "turned", steps - first)
        return _judge(sample, out, "turned" if 0 < first < steps else "pretrained", seed)

    return arm


def _turn(run: PretrainRun, out: Path, steps: int) -> None:
    """Continue a causal run as a masked one, with the same rate and schedule."""
    adapt(
        AdaptRun(
            str(run.out),
            str(out),
            corpus=list(run.corpus),
            seed=run.seed,
            overwrite=True,
            objective="mlm",
            text=run.data,
            loader=run.loader,
            optimizer=run.optimizer,
            schedule=run.schedule,
            length=LengthConfig(max_steps=steps),
        )
    )


def _judge(sample: SamplePaths, out: Path, start: str, seed: int) -> Figures:
    """Minimal pairs, and the accuracy of each task."""
    figures = {"minimal pairs": judge_pairs(out / start, [sample.pairs])["all"]["accuracy"]}
    for task, metric in TASKS.items():
        run = fine_tuning(task, str(out / start), sample.data, out, seed)
        run = replace(run, head=HeadConfig("mean"), length=LengthConfig(max_epochs=5))
        figures[task.removeprefix("glue/")] = fit(run)["metrics"][metric]
    return {name: 100 * value for name, value in figures.items()}


def _depth(depth: int, *, residual: bool) -> Arm:
    """Pretrain a narrow net of so many blocks, and look at its last states before and after."""

    def arm(sample: SamplePaths, out: Path, seed: int, steps: int) -> Figures:
        run = _pretraining(sample, out / "pretrained", seed, steps)
        shape = replace(run.encoder, hidden_size=64, intermediate_size=256)
        shape = replace(shape, num_hidden_layers=depth, residual=residual)
        run = replace(run, encoder=shape)
        loss = pretrain(run)["metrics"]["loss"]
        trained = load_model(out / "pretrained")
        fresh = replace(trained, encoder=_fresh(trained.encoder.config, seed))
        left = {"left, fresh": _left(fresh, sample), "left, trained": _left(trained, sample)}
        return {"loss": loss, **left}

    return arm


def _fresh(config: EncoderConfig, seed: int) -> Encoder:
    seed_weights(seed)
    return Encoder(config).eval()


def _left(model: Model, sample: SamplePaths) -> float:
    """What the mean token leaves of a text's states in the last layer, as a fraction."""
    texts = TextChoice("glue/sst2", data=str(sample.data), limit=TEXTS)
    layers = layers_within(model, read_sequences(model, texts), caching=CacheConfig(cache=False))
    return float(layers[-1]["residual"])


QUESTIONS: Mapping[str, Mapping[str, Arm]] = {
    "objectives": {
        "masked, 15 %": _objective(),
        "masked, 30 %": _objective(0.3),
        "causal": _objective(causal_part=1.0),
        "causal, then masked": _objective(causal_part=0.5),
    },
    "residual": {
        f"{depth} block{'s' * (depth > 1)}{'' if residual else ', no residual'}": _depth(
            depth, residual=residual
        )
        for depth in DEPTHS
        for residual in (True, False)
    },
}
"""Question -> its arms; a difference is to the arm above in pairs, or to the first one."""
STEPS = {"objectives": 400, "residual": 500}


def measure(question: str, out: Path, seeds: Sequence[int], steps: int) -> dict[str, list[Figures]]:
    """Figures of each arm, one a seed; those on file are taken."""
    sample = write_sample(out / "sample")
    results: dict[str, list[Figures]] = {arm: [] for arm in QUESTIONS[question]}
    for seed in seeds:  # whole rounds: stopped early, all arms have the same seeds
        for number, (name, arm) in enumerate(QUESTIONS[question].items(), start=1):
            folder = out / question / f"{number}-seed-{seed}"
            file = folder / "figures.json"
            if not file.is_file():
                write_text(file, json.dumps(arm(sample, folder, seed, steps)) + "\n")
            results[name].append(json.loads(file.read_text("utf-8")))
    return results


def tables(question: str, results: Mapping[str, Sequence[Figures]]) -> str:
    """Mean and deviation of each arm, and its paired difference with a 95 % interval."""
    metrics, arms = list(next(iter(results.values()))[0]), list(results)
    rows = []
    for number, arm in enumerate(arms):
        other = arms[number - number % 2 if question == "residual" else 0]
        cells = (_cell(metric, results[arm], results[other], other != arm) for metric in metrics)
        rows.append([arm, *cells])
    return table(rows, [question, *metrics], width=160)


def _cell(metric: str, own: Sequence[Figures], others: Sequence[Figures], compared: bool) -> str:
    values, against = ([figures[metric] for figures in side] for side in (own, others))
    digits = 1 if max(values) > 20 else 3  # percent, or nats and fractions
    over = spread(values)
    text = f"{over.mean:.{digits}f} ± {over.std or 0:.{digits}f}"
    if not compared:
        return text
    tests = seed_tests(values, against, paired=True)
    low, high = tests.interval or (tests.difference, tests.difference)
    return f"{text} ({tests.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}])"


def main(words: Sequence[str] | None = None) -> None:
    """Train and judge, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="default: 1,2,3")
    parser.add_argument("--steps", type=int, help=f"of each pretraining (default: {STEPS})")
    space = parser.parse_args(words)
    steps = space.steps or STEPS[space.question]
    print(tables(space.question, measure(space.question, space.out, space.seeds, steps)))


if __name__ == "__main__":
    main()
