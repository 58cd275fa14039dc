"""Texts longer than those of training: which positions read them (Press et al., 2022, figure 1)?

A small causal encoder for each kind of positions learns the text of `finetune demo` in blocks of 32
tokens, and then reads unseen text of the same world in windows of 32 to 128 tokens. The figure is
nats a token; what a window's first tokens cost is in it, so longer windows should cost a little
less. Learned positions have 128 rows, of which only the first 32 were trained.

    python benchmarks/lengths.py --out runs/lengths
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from finetune.console.tables import table
from finetune.encoder.config import POSITIONS
from finetune.jobs import pretrain
from finetune.jobs.corpus_score import Text, score_tokens
from finetune.jobs.generation import TextGenerator
from finetune.jobs.sources import load_language_model
from finetune.training.loop.progress import LengthConfig
from tasks.demo import pretraining
from tasks.sample.sample import write_sample
from tasks.sample.world import documents, make_world

CONTEXTS = (32, 64, 128)
MEMORY = 32


def main(words: Sequence[str] | None = None) -> None:
    """Train, score, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each (default: 1500)")
    parser.add_argument("--seed", type=int, default=0, help="of world, text and weights")
    space = parser.parse_args(words)
    sample = write_sample(space.out / "sample", space.seed)
    unseen = space.out / "unseen.txt"
    texts = documents(make_world(space.seed), random.Random(f"{space.seed} unseen"), 60)
    unseen.write_text("\n\n".join(texts), encoding="utf-8")
    rows = []
    for position in POSITIONS:
        run = space.out / position
        if not (run / "results.json").is_file():
            _train(sample.corpus, run, space.seed, space.steps, position)
        rows.append([position, *(f"{_nats(run, unseen, context):.3f}" for context in CONTEXTS)])
    run = space.out / "memory"
    if not (run / "results.json").is_file():
        _train(sample.corpus, run, space.seed, space.steps, "relative", memory=MEMORY)
    rows.append([f"relative, memory {MEMORY}", f"{_nats(run, unseen, CONTEXTS[0]):.3f}", "", ""])
    print(table(rows, ["positions", *(f"T = {context}" for context in CONTEXTS)]))


def _train(corpus: Path, out: Path, seed: int, steps: int, position: str, memory: int = 0) -> None:
    run = pretraining(corpus, out, seed)
    longest = max(CONTEXTS)
    encoder = replace(run.encoder, causal=True, position=position, memory=memory)
    encoder = replace(encoder, max_position_embeddings=longest)
    length, baselines = LengthConfig(max_steps=steps), False
    pretrain(replace(run, encoder=encoder, length=length, baselines=baselines))


def _nats(run: Path, file: Path, context: int) -> float:
    module, tokenizer = load_language_model(run)
    text = Text.read([str(file)], tokenizer)
    model = TextGenerator(module, tokenizer, max_length=context)
    return score_tokens(model, text.ids).metrics(text)["nats_per_token"]


if __name__ == "__main__":
    main()
