"""What `gpu.py` measures of a whole run on the device: its loader, its loop, where it waits.

The function takes a `Bench` and puts its figures there.
"""

from __future__ import annotations

import json
import statistics
import string
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contest import Sentences, Size, classifier
from gpu_bench import Bench, Row
from gpu_speed import CONFIG, VOCABULARY
from lightning_overhead import WARM_UP, bare, lightning

from finetune.encoder import Encoder, EncoderConfig
from finetune.jobs.pretraining import corpus_data, pretrain
from finetune.runs.settings import PretrainRun
from finetune.settings.fields import read
from finetune.text.corpus.corpus import build_corpus
from finetune.text.features.pairs import Features
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer


def loop(bench: Bench) -> None:
    """A whole run of base.yaml: its loader, its loop, and where a step waits for the device."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokenizer = _random_text(bench, folder)
        for length in bench.scale.pretrain_lengths:
            for workers in (0, 4):
                title: Row = {"length": length, "workers": workers}
                figures = partial(_loader, _run(bench, folder, length, workers), tokenizer)
                bench.attempt("the loader alone", title, figures)
            figures = partial(_whole_run, _run(bench, folder, length, 4, **_short(6)))
            bench.attempt(RUN, {"config": CONFIG.name, "length": length}, figures)
        rows = bench.scale.ten_minutes_rows
        ten = {"config": TEN_MINUTES, "rows": rows, "loader.micro_batches": 4, **_short(4)}
        figures = partial(_whole_run, _run(bench, folder, 128, 4, **ten))
        bench.attempt(RUN, {"config": TEN_MINUTES.name, "length": 128}, figures)
        title = {"model": "2x128, 8 to 48 tokens, batches of 32"}
        figures = partial(_overhead, bench, folder)
        bench.attempt("the run's loop beside a bare one, fine-tuning, float32", title, figures)
        if bench.device.type == "cuda":
            _waits(bench, folder)


RUN = "a run with four workers"
TEN_MINUTES = CONFIG.with_name("ten-minutes.yaml")
LETTERS = (string.ascii_lowercase, "aeiou")
SYLLABLES = ["".join(letters) for letters in product(*LETTERS, *LETTERS)]


def _random_text(bench: Bench, folder: Path) -> Tokenizer:
    """Words of one or two random pieces, and a vocabulary of BERT's size that has the pieces."""
    pieces = SYLLABLES[: (VOCABULARY - 5) // 2 + 1]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*specials, *pieces, *(f"##{piece}" for piece in pieces)]
    names = folder / "tokenizer"
    names.mkdir()
    (names / "vocab.txt").write_text("\n".join(vocabulary[:VOCABULARY]) + "\n", encoding="ascii")
    kind = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (names / "tokenizer_config.json").write_text(json.dumps(kind), encoding="ascii")
    rng = np.random.default_rng(0)
    count = bench.scale.corpus_tokens * 2 // 3
    drawn = np.array(pieces[:-1])[rng.integers(0, len(pieces) - 1, (2, count))]
    words = np.where(rng.random(count) < 0.5, drawn[0], np.char.add(drawn[0], drawn[1]))
    documents = np.array_split(words, max(4, count // 400))
    text = "\n\n".join(" ".join(document) for document in documents)
    (folder / "corpus.txt").write_text(text, encoding="ascii")
    return Tokenizer.load(names)


def _run(bench: Bench, folder: Path, length: int, workers: int, **changes: Any) -> PretrainRun:
    """The settings of base.yaml, or another `config`, on the random text."""
    config = changes.pop("config", CONFIG)
    rows = changes.pop("rows", max(1, bench.scale.batch_tokens // length))
    micro_batches = changes.pop("loader.micro_batches", 8)
    keys = {
        "corpus": [str(folder / "corpus.txt")],
        "out": str(folder / f"{config.stem}-{length}"),
        "overwrite": True,
        "tokenizer": str(folder / "tokenizer"),
        "cache_dir": str(folder / "cache"),
        **{f"encoder.{name}": value for name, value in bench.scale.base.items()},
        "data.max_length": length,
        "loader.batch_size": rows * micro_batches,
        "loader.micro_batches": micro_batches,
        "loader.num_workers": workers,
        "loader.validation_batches": 1,
        "trainer.accelerator": "gpu" if bench.device.type == "cuda" else "cpu",
        "trainer.progress": False,
        "tracking.wandb": False,
        **changes,
    }
    return read(PretrainRun, config, keys)


def _loader(run: PretrainRun, tokenizer: Tokenizer) -> Row:
    """Milliseconds of a batch, read as fast as the loader gives them."""
    assert run.cache_dir is not None
    corpus = build_corpus(run.corpus, tokenizer, run.data, run.seed, run.cache_dir)
    module = Pretrainer(Encoder(EncoderConfig(hidden_size=16, num_attention_heads=2)))
    batches = iter(corpus_data(run, module, tokenizer, corpus, run.data).train_dataloader())
    next(batches)  # its workers have started
    start, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if count == 60:
            break
    seconds = (time.perf_counter() - start) / max(1, count)
    rate = run.loader.batch_size / run.loader.micro_batches * run.data.max_length / seconds
    return {"batch_ms": seconds * 1e3, "tokens_per_second": rate}


def _short(steps: int) -> Row:
    """Settings of a run of a few steps."""
    every = {"trainer.log_every_steps": 2, "trainer.validate_every_steps": steps}
    return {"length.max_steps": steps, "length.max_minutes": None, **every}


def _whole_run(run: PretrainRun) -> Row:
    """Tokens a second of the run's own log, without its first line."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pretrain(run)
    seconds = time.perf_counter() - start
    text = (Path(run.out) / "metrics.jsonl").read_text("utf-8")
    lines = [line for line in map(json.loads, text.splitlines()) if "train/loss" in line][1:]
    rate = statistics.median(line["perf/tokens_per_second"] for line in lines)
    return {
        "batches_a_step": run.loader.micro_batches,
        "tokens_per_second": rate,
        "batch_ms": run.loader.batch_size
        / run.loader.micro_batches
        * run.data.max_length
        / rate
        * 1e3,
        "ceiling_share": statistics.median(line["perf/ceiling_share"] for line in lines),
        "peak_gib": lines[-1].get("perf/peak_gib"),
        "seconds_in_all": seconds,
    }


def _overhead(bench: Bench, folder: Path) -> Row:
    """Milliseconds of a step in a bare loop and in the run's."""
    count = 32 * (60 if bench.device.type == "cuda" else 6)
    size = Size(2, 128, 8192)
    accelerator = "gpu" if bench.device.type == "cuda" else "cpu"
    rng = np.random.default_rng(0)
    texts = [
        Features(rng.integers(5, 8192, int(n)).tolist(), [0] * int(n), 0)
        for n in rng.integers(8, 48, count)
    ]
    steps = count // 32 - WARM_UP
    plain = bare(lambda: classifier(size), Sentences(texts, 32), bench.device)
    whole = lightning(
        lambda: classifier(size),
        Sentences(texts, 32),
        folder / "lightning",
        accelerator,
    )
    return {"bare_ms": plain / steps * 1e3, "run_ms": whole / steps * 1e3}


def _waits(bench: Bench, folder: Path) -> None:
    """Lines of code at which a run waits for the device, and how often."""
    steps = 12
    every = {"trainer.log_every_steps": 10**6, "trainer.validate_every_steps": 10**6}
    every |= {"loader.micro_batches": 1, "length.max_steps": steps}
    run = _run(bench, folder, bench.scale.pretrain_lengths[0], 0, **every)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            pretrain(run)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = Counter(
        f"{Path(wait.filename).name}:{wait.lineno}"
        for wait in waits
        if "synchronizing" in str(wait.message)
    )
    for line, count in lines.most_common(12):
        bench.add(f"where a run of {steps} steps waits for the device", line=line, times=count)
    often = sum(1 for count in lines.values() if count >= steps)
    bench.check("lines that wait for the device in every step", often, 0)
