"""Files as `finetune inspect` writes them, of nets that never were."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tests.made.runs import HOSTILE
from tests.made.texts import write_json

FIGURES = "distance entropy cls_entropy cls sep self previous next".split()


def spread(*values: float) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


def probed(name: str, base: float, blocks: int = 2) -> dict[str, Any]:
    names = ["embeddings", *(f"block {n}" for n in range(1, blocks + 1))]
    scores = [base + 0.1 * n for n in range(len(names))]
    layers = [
        {"layer": n, "name": at, "penalty": [1.0], "metrics": {"accuracy": spread(score, score)}}
        for n, (at, score) in enumerate(zip(names, scores, strict=True))
    ]
    share = spread(1 / len(names), 1 / len(names))
    mix = {"metrics": {"accuracy": spread(0.8, 0.9)}, "shares": [share] * len(names)}
    sizes = {"train": 1200, "validation": 30}
    about = {"run": name, "task": "made/classes", "split": "validation", "metric": "accuracy"}
    about |= {"pooling": "mean", "seeds": [1, 2], "classes": 2, "examples": sizes}
    return {**about, "trivial": {"accuracy": 0.5}, "layers": layers, "mix": mix}


def probe() -> dict[str, Any]:
    groups = {"fine": [probed("fine/seed-1", 0.5), probed("fine/seed-2", 0.6)]}
    groups |= {HOSTILE: [probed("deep", 0.7, blocks=3)], "untrained": [probed("none", 0.5)]}
    return {"metric": "accuracy", "groups": groups}


def similarity() -> dict[str, Any]:
    cka = [[[0.9, 0.2], [0.1, 0.8]], [[0.7, 0.4], [0.3, float("nan")]], [[1.0, 0.5], [0.5, 0.6]]]
    places = [(0, 1), (0, 2), (1, 2)]
    pairs = [
        {"first": a, "second": b, "rows": 1234, "cka": matrix, "same_layer": [matrix[0][0]] * 2}
        for (a, b), matrix in zip(places, cka, strict=True)
    ]
    groups = {"a – b": [spread(0.9, 0.7), spread(0.8, 0.6)], "within b": [spread(1.0)] * 2}
    about = {"texts": "made/classes validation", "pooling": "tokens", "names": ["a", "b", "b"]}
    runs = ["runs/a", "runs/b/seed-1", "runs/b/seed-2"]
    return {**about, "runs": runs, "groups": groups, "pairs": pairs}


def heads(layers: int = 2, count: int = 2) -> dict[str, Any]:
    each = [
        {"layer": layer, "head": head}
        | {name: (layer + head) / 10 + n / 100 for n, name in enumerate(FIGURES)}
        for layer in range(1, layers + 1)
        for head in range(1, count + 1)
    ]
    uniform = dict.fromkeys(FIGURES, 0.125)
    about = {"run": "runs/fine/seed-1", "texts": HOSTILE, "sequences": 20, "tokens": 1500}
    return {**about, "uniform": uniform, "heads": each}


def words() -> dict[str, Any]:
    near = [{"token": HOSTILE, "cosine": 0.5}, {"token": "cat", "cosine": 0.25}]
    return {"run": "tiny", "words": [{"word": "dogs", "pieces": ["dog", "s"], "neighbours": near}]}


def frequency() -> dict[str, Any]:
    figures = {"tokens": 50, "loss": 3.25, "unigram_loss": 6.5, "accuracy": 0.4}
    nothing = {"tokens": 0, "loss": None, "unigram_loss": None, "accuracy": None}
    bounds = [(0, 0, nothing), (1, 9, figures), (1000, 9999, figures)]
    bins = [{"least": a, "most": b, "kinds": 1234, **more} for a, b, more in bounds]
    return {"run": "tiny", "corpus": ["text"], **figures, "bins": bins}


def attention() -> dict[str, Any]:
    row = [0.5, 0.5]
    about = {"run": "runs/fine/seed-1", "texts": ["a"], "tokens": ["[CLS]", HOSTILE]}
    return {**about, "segments": [0, 0], "weights": [[[row, row]]]}


def alignment() -> dict[str, Any]:
    about = {"run": "runs/written", "source": ["[CLS]", HOSTILE], "target": ["dog", "[SEP]"]}
    return {**about, "alignment": [[[0.5, 0.5], [0.25, 0.75]]]}


MADE = {
    "probe": probe,
    "similarity": similarity,
    "heads": heads,
    "words": words,
    "frequency": frequency,
    "attention": attention,
    "alignment": alignment,
}
"""Kind -> what makes its file's content."""


def write_inside(folder: Path, *kinds: str) -> Path:
    """A folder with files of these kinds, of all if none is named."""
    for kind in kinds or MADE:
        write_json(folder / f"{kind}.json", MADE[kind]())
    return folder
