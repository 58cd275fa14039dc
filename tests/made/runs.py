"""Run folders that no training made: every form of answers, and a family that has their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.runs.families import Anchor, Family
from finetune.task.interface import Example, GoldAnswer
from tests.made.texts import write_json, write_lines

CLASSES = ("no", "yes")
HOSTILE = (
    "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
)
"""What a row may hold; it is shown, not run."""
PASSAGE = "The cat sat on the mat. " * 30 + HOSTILE + " Then the dog came home at noon."


class MadeTask:
    """Examples by the names of the tasks below, and accuracy; nothing else is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def examples(self, split: str) -> list[Example]:
        assert split == "validation"
        if self.name.endswith("/spans"):
            gold = (GoldAnswer("noon", PASSAGE.index("noon")),)
            return [Example(n, (f"When, {n}?", PASSAGE), gold) for n in range(6)]
        if self.name.endswith("/choices"):
            options = ("in a box", HOSTILE, "under it", "at home")
            return [Example(n, (PASSAGE, f"Where, {n}?", *options), "A") for n in range(6)]
        return [Example(n, (f"text {n} {HOSTILE}",), CLASSES[n % 2]) for n in range(40)]

    def score(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"accuracy": float(np.mean([row["prediction"] == row["label"] for row in answers]))}


FAMILIES: Mapping[str, Family] = {
    "made": Family(
        "made tasks",
        lambda run, labels: MadeTask(run.task),  # type: ignore[arg-type, return-value]
        anchors=lambda: {
            "made/classes": [Anchor("accuracy", 0.9, "A large one", "test", "Someone, 2020")]
        },
    )
}


def class_rows(seed: int, accuracy: float, examples: int = 40) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(examples):
        share = float(rng.uniform(0.5, 1) if rng.random() < accuracy else rng.uniform(0, 0.5))
        right = CLASSES[n % 2]
        shares = {name: share if name == right else 1 - share for name in CLASSES}
        said = max(shares, key=lambda name: shares[name])
        rows.append({"id": n, "prediction": said, "probabilities": shares, "label": right})
    return rows


def span_rows() -> list[dict[str, Any]]:
    start = PASSAGE.index("cat")
    best = [{"text": "cat", "start": start, "end": start + 3, "probability": 0.8}]
    best += [{"text": "noon", "start": PASSAGE.index("noon"), "end": 0, "probability": 0.1}]
    gold = [{"text": "noon", "start": PASSAGE.index("noon")}]
    said = {"prediction": "cat", "start": start, "end": start + 3, "score": 1.0, "null_odds": -2.0}
    return [{"id": n, **said, "nbest": best, "answers": gold} for n in range(6)]


def choice_rows() -> list[dict[str, Any]]:
    shares = {"A": 0.1, "B": 0.7, "C": 0.1, "D": 0.1}
    return [{"id": n, "prediction": "B", "probabilities": shares, "label": "A"} for n in range(6)]


def metric_lines(seed: int, steps: int = 300, every: int = 10) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(every, steps + 1, every):
        line = {
            "step": step,
            "epoch": step / 100,
            "train/loss": float(np.exp(-step / 150) + rng.normal(0, 0.02)),
            "perf/tokens_per_second": 1000.0 + step,
            "perf/padding": 0.1,
            "lr/embeddings": 1e-4 if step > 100 else 0.0,
            "lr/block_1": 1e-4 if step > 100 else 0.0,
            "lr/head": 3e-4,
            "train/gradient_norm": 1.0,
        }
        if step % 100 == 0:
            line |= {"val/loss": 0.5, "val/accuracy": 0.5 + step / 1000}
        lines.append(line)
    return lines


PLAN = [
    {
        "phase": 1,
        "epochs": [0.0, 1.0],
        "steps": [0, 100],
        "groups": ["head"],
        "parameters": 100,
        "boundary": 2,
        "rates": {"head": {"start": 0.0, "peak": 3e-4, "end": 3e-4}},
    },
    {
        "phase": 2,
        "epochs": [1.0, 3.0],
        "steps": [100, None],
        "groups": ["embeddings", "block_1", "head"],
        "parameters": 1000,
        "boundary": 0,
        "rates": {"embeddings": None, "block_1": None, "head": None},
    },
]


def results(task: str, seed: int, metrics: Mapping[str, float], **more: Any) -> dict[str, Any]:
    return {
        "task": f"made/{task}",
        "split": "validation",
        "metrics": dict(metrics),
        "examples": 40,
        "seed": seed,
        "encoder": "tiny",
        "parameters": 1100,
        "train_seconds": 90.0,
        "examples_per_second": 100.0,
        "peak_gib": 0.5,
        "collapsed": False,
        "baselines": {"trivial": {"accuracy": 0.5}},
        "data": {"padding": 0.1, "train": {"examples": 40, "sequences": 40, "trimmed": 0.0}},
        **more,
    }


def write_run(
    folder: Path,
    task: str,
    metrics: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    seed: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A run folder of one seed."""
    told = results(task, seed, metrics, **more)
    write_json(folder / "results.json", told)
    start = told["encoder"]
    (folder / "config.yaml").write_text(
        f"encoder_from: {start}\ntask: made/{task}\ndata: somewhere\nmax_length: 16\n"
    )
    write_lines(folder / "metrics.jsonl", metric_lines(seed))
    write_lines(folder / "predictions" / "validation.jsonl", rows)
    return told


def write_class_run(folder: Path, accuracy: float, seeds: Sequence[int], **more: Any) -> None:
    """A run of several seeds, `folder/seed-1` …"""
    runs = []
    for seed in seeds:
        rows = class_rows(seed, accuracy)
        right = float(np.mean([row["prediction"] == row["label"] for row in rows]))
        place = folder / f"seed-{seed}"
        runs.append(write_run(place, "classes", {"accuracy": right}, rows, seed, **more))
    (folder / "config.yaml").write_text((folder / f"seed-{seeds[0]}/config.yaml").read_text())
    values = [run["metrics"]["accuracy"] for run in runs]
    whole = {"task": "made/classes", "split": "validation", "seeds": list(seeds)}
    spread = {"mean": float(np.mean(values)), "std": float(np.std(values)), "values": values}
    write_json(folder / "results.json", {**whole, "metrics": {"accuracy": spread}, "runs": runs})


def write_checkpoint(folder: Path, head: str) -> None:
    """A checkpoint's description, without weights."""
    encoder = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder |= {"intermediate_size": 32, "vocab_size": 60, "max_position_embeddings": 32}
    told = {"format": "finetune", "format_version": 1, "encoder": encoder}
    more = {"head": {"kind": head}, "task": None, "labels": []}
    write_json(folder / "checkpoints" / "best" / "config.json", told | more)


def write_pretraining(folder: Path) -> None:
    """A pretraining with its corpus' unigram entropy."""
    lines = metric_lines(9)
    for line in lines:
        line |= {"train/unigram_entropy": 0.6, "train/masked_accuracy": 0.2}
        line |= {"val/masked_accuracy": 0.3, "val/perplexity": 20.0} if "val/loss" in line else {}
    write_lines(folder / "metrics.jsonl", lines)
    (folder / "config.yaml").write_text("corpus: [text]\nmasks: {mask_rate: 0.15}\n")
    told = results("x", 1, {"loss": 0.4, "masked_accuracy": 0.3, "perplexity": 20.0})
    write_json(folder / "results.json", {**told, "task": "pretrain", "baselines": {}})


def write_world(root: Path) -> Path:
    """A folder of runs of every kind."""
    write_class_run(root / "fine", 0.9, (1, 2, 3), plan=PLAN)
    write_class_run(root / "plain", 0.6, (1, 2, 3), encoder="none")
    write_run(root / "spans", "spans", {"exact_match": 0.0, "f1": 0.1}, span_rows())
    many = {"padding": 0.1, "train": {"examples": 6, "sequences": 24, "trimmed": 0.0}}
    write_run(root / "choices", "choices", {"accuracy": 0.0}, choice_rows(), data=many)
    write_pretraining(root / "pretrained")
    write_checkpoint(root / "pretrained", "masked_lm")
    write_checkpoint(root / "fine" / "seed-1", "classification")
    return root
