"""Answering the sentences of a file, a second, beside `transformers.pipeline`. Rows of `bench.py`.

Both have the same weights, read the file and write a line of JSON for each sentence, in order. The
peer takes the batch size that is its fastest on the first sentences; ours is that of the run. One
row asks for one sentence at a time, as a server does.

    python benchmarks/predicting.py --data data --sentences 2000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from startup import run_and_export
from turns import OURS, Contest, Processes, Settings, Turn, lines_of

PEER, ALONE = "pipeline, its best batch size", "pipeline"
BATCH_SIZES = (1, 4, 8, 16, 32)
TRIED = 200
"""Sentences on which the peer's batch size is chosen."""
ASKED = 200
"""Sentences of a turn that has them one at a time."""
LONGEST = 128
SHORT, LONG = ("SST-2/train.tsv", "sentence"), ("RTE/train.tsv", "sentence1")


def contests(data: Path | None, encoder: Path | None, count: int, rounds: int) -> list[Contest]:
    """Weights as they are, in 8 bits, and as they are with one sentence at a time.

    Args:
        data: Folder with `glue_data`; None: made sentences.
        encoder: Hugging Face folder; None: made weights.
        count: Sentences of a turn; one at a time, ASKED of them at most.
        rounds: Turns of each contestant.
    """
    settings: Settings = {"data": data and str(data), "encoder": encoder and str(encoder)}
    plain: Settings = {"int8": False, "alone": False}
    kinds: list[tuple[str, int, Settings]] = [
        ("", count, plain),
        (", in 8 bits", count, {**plain, "int8": True}),
        (", one at a time", min(count, ASKED), {**plain, "alone": True}),
    ]
    return [
        Contest(
            f"predict, {asked:,} sentences{title}",
            {OURS: "predicting:ours", ALONE if kind["alone"] else PEER: "predicting:theirs"},
            unit="sentences/s",
            amount=asked,
            rounds=rounds,
            settings={**settings, "count": asked, **kind},
        )
        for title, asked, kind in kinds
    ]


def ours(settings: Settings) -> Turn:
    """Make a turn of a loaded run."""
    import finetune
    from finetune.text.features.rows import read_rows

    run, _ = run_and_export(settings)
    predictor = finetune.load(run, int8=settings["int8"])
    source = _file(settings)

    def answers() -> Iterator[Any]:
        rows = read_rows(source)
        if settings["alone"]:
            return (predictor.predict(row["text"]) for _, row in rows)
        return predictor.stream(rows)

    return lambda: _seconds(answers, Path(settings["folder"]) / "answers.jsonl")


def theirs(settings: Settings) -> Turn:
    """Make a turn of a pipeline."""
    from transformers import pipeline

    _, exported = run_and_export(settings)
    model: Any = pipeline("text-classification", str(exported), device="cpu", top_k=None)
    source = _file(settings)
    target = Path(settings["folder"]) / "answers.jsonl"

    def answers(size: int, count: int | None = None) -> Iterator[Any]:
        with source.open(encoding="utf-8") as file:
            texts = (line.rstrip("\n") for line in islice(file, count))
            if settings["alone"]:
                yield from (model(text, truncation=True, max_length=LONGEST) for text in texts)
                return
            yield from model(texts, batch_size=size, truncation=True, max_length=LONGEST)

    def cost(size: int) -> float:
        return _seconds(lambda: answers(size, TRIED), target)

    if settings["alone"]:
        return lambda: _seconds(lambda: answers(1), target)
    best = min(BATCH_SIZES, key=cost)
    print(f"pipeline: best with batches of {best}")
    return lambda: _seconds(lambda: answers(best), target)


def _seconds(answers: Callable[[], Iterator[Any]], target: Path) -> float:
    start = time.perf_counter()
    with warnings.catch_warnings(), target.open("w", encoding="utf-8") as file:
        warnings.simplefilter("ignore")  # of made words, most are unknown
        file.writelines(json.dumps(answer) + "\n" for answer in answers())
    return time.perf_counter() - start


def _file(settings: Settings) -> Path:
    """Sentences of mixed length: three of four from SST-2, the fourth a passage of RTE."""
    file = Path(settings["folder"]) / "sentences.txt"
    random = np.random.default_rng(0)
    glue = settings["data"] and Path(settings["data"]) / "glue_data"
    short, long = (_column(glue, *part) if glue else _made(random) for part in (SHORT, LONG))
    chosen = (
        pool[random.integers(len(pool))]
        for pool in (long if number % 4 == 3 else short for number in range(settings["count"]))
    )
    file.write_text("".join(f"{text}\n" for text in chosen), encoding="utf-8")
    return file


def _column(glue: Path, name: str, column: str) -> list[str]:
    from finetune.text.features.rows import read_rows

    file = glue / name
    file = file if file.is_file() else file.with_name(f"{file.name}.gz")
    return [row[column].strip() for _, row in read_rows(file)]


def _made(random: np.random.Generator) -> list[str]:
    counts = np.minimum(1 + random.geometric(1 / 16, 1000), 100)
    return [" ".join(f"w{word}" for word in random.integers(0, 500, count)) for count in counts]


def main(words: Sequence[str] | None = None) -> int:
    """Measure alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with glue_data/; default: made sentences")
    parser.add_argument("--encoder", type=Path, help="Hugging Face folder; default: made weights")
    parser.add_argument("--sentences", type=int, default=10_000, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--threads", type=int, default=2, help="of each contestant")
    space = parser.parse_args(words)
    with Processes(space.threads) as processes:
        for contest in contests(space.data, space.encoder, space.sentences, space.rounds):
            for line in lines_of(contest, processes.take_rounds(contest)):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
