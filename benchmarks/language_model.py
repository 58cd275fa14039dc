"""A causal run beside counting: word perplexity on a text, and loss by position in the block.

The n-gram models (interpolated modified Kneser-Ney) count the same tokens of the training text that
the net was pretrained on, and predict the same tokens of the test text. Word perplexity divides by
the words between white space, so that runs with other tokenizers can stand in one table.

    python benchmarks/language_model.py runs/gpt --train wiki.train.tokens --test wiki.test.tokens
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.console.tables import table
from finetune.elementary.ngrams import NGrams
from finetune.jobs.corpus_score import Scores, Text, score_tokens
from finetune.jobs.generation import TextGenerator, load_generator

ORDERS = {"unigram": 1, "bigram": 2, "4-gram": 4}
"""Counting models -> tokens of their longest n-gram."""


def ngram_nats(
    train: npt.NDArray[np.int64], test: npt.NDArray[np.int64], start: int, size: int, order: int
) -> npt.NDArray[np.float64]:
    """Nats of each token of a test stream under an n-gram model of a training stream, (N,)."""
    model = NGrams(np.insert(train, 0, start)[None], size, order)
    nats = -model.log_probabilities(np.insert(test, 0, start)[None])[0]
    return np.asarray(nats, dtype=np.float64)


def loss_by_position(scores: Scores, nats: npt.NDArray[np.float64]) -> list[dict[str, float]]:
    """Mean nats where so many tokens are seen: 1, 2, 3 to 4, 5 to 8 … of the net, and of n-grams.

    Args:
        scores: Of windows side by side, so that each position of a block is scored as often.
        nats: Of an n-gram model, of the same tokens.
    """
    rows, low = [], 1
    while low <= scores.seen.max():
        high = max(low, 2 * (low - 1))
        chosen = (scores.seen >= low) & (scores.seen <= high)
        if chosen.any():
            values = {"net": scores.nats[chosen].mean(), "n_gram": nats[chosen].mean()}
            rows.append(
                {"from": low, "to": high} | {name: float(one) for name, one in values.items()}
            )
        low = high + 1
    return rows


def measure(
    model: TextGenerator, train: Text, test: Text, strides: Sequence[int]
) -> dict[str, Any]:
    """All figures of a run: metrics by model, and the loss by position."""
    tokenizer, all_seen = model.tokenizer, np.ones(len(test.ids), dtype=bool)
    streams = (train.ids, test.ids, tokenizer.cls_token_id, tokenizer.vocab_size)
    metrics, nats = {}, {}
    for name, order in ORDERS.items():
        nats[name] = ngram_nats(*streams, order)
        metrics[name] = Scores(nats[name], all_seen, all_seen).metrics(test)
        metrics[name].pop("next_token_accuracy")
    whole = score_tokens(model, test.ids, model.max_length)
    metrics["net, blocks side by side"] = whole.metrics(test)
    for stride in strides:
        metrics[f"net, stride {stride}"] = score_tokens(model, test.ids, stride).metrics(test)
    return {"metrics": metrics, "by_position": loss_by_position(whole, nats["4-gram"])}


def tables(figures: dict[str, Any]) -> str:
    """Both tables as text."""
    names = ["nats_per_token", "word_perplexity", "bits_per_byte"]
    rows = [
        [model, *(f"{metrics[name]:.3f}" for name in names)]
        for model, metrics in figures["metrics"].items()
    ]
    positions = [
        [f"{row['from']} to {row['to']}", f"{row['net']:.3f}", f"{row['n_gram']:.3f}"]
        for row in figures["by_position"]
    ]
    return "\n".join(
        [
            table(rows, ["model", *names]),
            "",
            table(positions, ["tokens seen in the block", "net", "4-gram, nats per token"]),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a run, and print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a causal pretraining run")
    parser.add_argument("--train", nargs="+", required=True, help="text that it was trained on")
    parser.add_argument("--test", nargs="+", required=True, help="text to be predicted")
    parser.add_argument("--strides", type=int, nargs="*", help="default: a half and an eighth")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    space = parser.parse_args(arguments)
    model = load_generator(space.run)
    strides = space.strides or [model.max_length // part for part in (2, 8)]
    train, test = (Text.read(files, model.tokenizer) for files in (space.train, space.test))
    figures = measure(model, train, test, [max(1, stride) for stride in strides])
    figures["unknown_tokens"] = test.unknown / len(test.ids)
    print(tables(figures))
    print(f"unknown tokens of the test text: {100 * figures['unknown_tokens']:.2f} %")
    if space.out:
        space.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
