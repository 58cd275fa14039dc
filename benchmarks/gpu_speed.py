"""What `gpu.py` measures on the device: steps beside those of `transformers`.

Each function takes a `Bench` and puts its figures there. A measured step is forward, backward,
clipping and AdamW (fused) on a batch that lies on the device, the same for both contestants.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import torch
from contest import TOKENS, Size, drawn_lengths, masked_batches, ours_of, unscored
from gpu_bench import ROOT, Bench, Row

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.benchmark import BACKWARD, forget_peak, matmul_ceiling, peak_gib, wait_for
from finetune.encoder.cost import forward_flops_per_token
from finetune.heads import Classification, HeadConfig, Span, SpanConfig
from finetune.runs.settings import PretrainRun
from finetune.settings.fields import read
from finetune.text.features.pairs import Features, collate, length_batches
from finetune.training.loop.pretrainer import Pretrainer

CONFIG = ROOT / "configs" / "pretrain" / "base.yaml"
VOCABULARY, PADDED_VOCABULARY = 30522, 30528
"""BERT's, and the next multiple of 64, for which the product with the vocabulary is faster."""
PUBLISHED_TFLOPS = {"H200": 989.4, "H100": 989.4, "A100": 312.0}
"""Dense bfloat16 products by the maker's data sheet (SXM)."""
BATCHES = 8
"""Different batches that a measured step goes through."""
FLASH = "flash_attention_2"
BY_LENGTH, TO_MAXIMUM, ANY = "by length", "to max_length", "any"
"""Batches: texts of like length together, padded to the longest; any, padded to the maximum; any,
padded to the longest."""
VARLEN = "varlen"
"""Attention by cumulative lengths, without padding, which needs a model without its dropout."""

Batch = dict[str, torch.Tensor]
Loss = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Work:
    """Batches on the device, and what they ask for."""

    batches: list[Batch]
    tokens: float
    """Real ones in a batch, on average."""
    places: float
    """With padding."""
    flops: float
    """Of a step on a batch, without what padding costs."""


def pretraining(bench: Bench) -> None:
    """A step of `configs/pretrain/base.yaml`, beside BertForMaskedLM."""
    contestants = [
        ("finetune", "fused", torch.bfloat16, VOCABULARY),
        ("transformers", "sdpa", torch.bfloat16, VOCABULARY),
        ("transformers", "eager", torch.bfloat16, VOCABULARY),
        ("transformers", FLASH, torch.bfloat16, VOCABULARY),
        ("finetune", "fused", torch.float32, VOCABULARY),
        ("transformers", "sdpa", torch.float32, VOCABULARY),
        ("finetune", "fused", torch.bfloat16, PADDED_VOCABULARY),
    ]
    _ceilings(bench)
    rounds = list(product(bench.scale.pretrain_lengths, contestants))
    for number, (length, (who, attention, dtype, vocabulary)) in enumerate(rounds):
        rows = bench.scale.batch_tokens // length
        title = {"length": length, "rows": rows, "who": who, "attention": attention}
        title |= {"dtype": _name(dtype), "vocabulary": vocabulary}
        make = _their_masked_lm if who == "transformers" else _our_masked_lm
        contest = partial(make, _config(bench, vocabulary), attention)
        work = partial(_masked, bench, rows, length, vocabulary)
        figures = partial(_measure, bench, contest, work, dtype, len(rounds) - number)
        bench.attempt("a pretraining step", title, figures)


def fine_tuning(bench: Bench) -> None:
    """Steps on texts with real lengths, in batches of several kinds, beside `transformers`."""
    half, whole = torch.bfloat16, torch.float32
    contestants = [
        ("finetune", "fused", BY_LENGTH, half),
        ("transformers", "sdpa", BY_LENGTH, half),
        ("transformers", "sdpa", TO_MAXIMUM, whole),  # as Trainer and run_glue.py come
        ("finetune", "fused", "no padding", half),
        ("finetune", VARLEN, ANY, half),
        ("transformers", "sdpa", TO_MAXIMUM, half),
        ("transformers", "eager", BY_LENGTH, half),
        ("transformers", FLASH, BY_LENGTH, half),
    ]
    _ceilings(bench)
    rounds = list(product(bench.scale.tuning_texts.items(), contestants))
    for number, ((texts, longest), (who, attention, batches, dtype)) in enumerate(rounds):
        title = {"texts": texts, "max_length": longest, "rows": bench.scale.tuning_rows}
        title |= {"who": who, "attention": attention, "batches": batches, "dtype": _name(dtype)}
        make = _their_task if who == "transformers" else _our_task
        is_span = texts == "squad"
        config = _config(bench, VOCABULARY)
        if attention == VARLEN:
            config = dataclasses.replace(config, attention_probs_dropout_prob=0.0)
        contest = partial(make, config, attention, is_span)
        work = partial(_padded, bench, texts, longest, batches)
        figures = partial(_measure, bench, contest, work, dtype, len(rounds) - number)
        bench.attempt("a fine-tuning step", title, figures)


def _ceilings(bench: Bench) -> None:
    seconds = min(0.5, bench.scale.measured_seconds)
    for dtype in (torch.bfloat16, torch.float32):
        tflops = matmul_ceiling(bench.device, dtype, seconds) / 1e3
        bench.add("matrix products", dtype=_name(dtype), tflops=tflops)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _config(bench: Bench, vocabulary: int) -> EncoderConfig:
    """The encoder of base.yaml: BERT-base with its dropout."""
    base = read(PretrainRun, CONFIG, {"corpus": ["-"], "out": "-"}).encoder
    changes = {"vocab_size": vocabulary, **bench.scale.base}
    return EncoderConfig(**{**base.to_dict(), **changes})


def _masked(bench: Bench, rows: int, length: int, vocabulary: int) -> Work:
    source = masked_batches(Size(1, 64, vocabulary), rows, length, rate=0.15)
    batches = [_on_device(next(source), bench.device) for _ in range(BATCHES)]
    flops = forward_flops_per_token(_config(bench, vocabulary), length) * (1 + BACKWARD)
    tokens = rows * length
    return Work(batches, tokens, tokens, flops * tokens)


def _padded(bench: Bench, texts: str, longest: int, kind: str) -> Work:
    """Texts with the lengths of a task, in batches of a kind."""
    rng = np.random.default_rng(0)
    rows = bench.scale.tuning_rows
    count = rows * BATCHES
    lengths = np.rint(drawn_lengths(TOKENS[texts], count)).astype(int).clip(4, longest)
    if kind == "no padding":
        lengths = np.full(count, round(lengths.mean()))
    made = []
    for size in lengths.tolist():
        ids = rng.integers(5, VOCABULARY, size)
        ends = np.sort(rng.integers(1, size, 2)).tolist()
        label: Any = (ends[0], ends[1]) if texts == "squad" else int(rng.integers(2))
        made.append(Features(ids, np.zeros(size, np.int64), label))
    groups = np.split(np.arange(count), BATCHES)
    if kind == BY_LENGTH:
        groups = length_batches(lengths, rows, seed=0, epoch=0)
    multiple = longest if kind == TO_MAXIMUM else 1
    batches = [collate(made, group, 0, multiple) for group in groups]
    config = _config(bench, VOCABULARY)
    flops = sum(
        size * forward_flops_per_token(config, size, lm_fraction=0.0) for size in lengths.tolist()
    )
    return Work(
        [_on_device(batch, bench.device) for batch in batches],
        float(lengths.mean() * rows),
        statistics.mean(batch["input_ids"].numel() for batch in batches),
        flops * (1 + BACKWARD) / BATCHES,
    )


def _on_device(batch: Mapping[str, torch.Tensor], device: torch.device) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _our_masked_lm(config: EncoderConfig, attention: str) -> tuple[torch.nn.Module, Loss]:
    module = Pretrainer(Encoder(config))
    return module, lambda batch: module.training_step(ours_of(batch), 0)["loss"]


def _their_masked_lm(config: EncoderConfig, attention: str) -> tuple[torch.nn.Module, Loss]:
    module = _theirs("BertForMaskedLM", config, attention)
    return module, lambda batch: module(input_ids=batch["input_ids"], labels=batch["labels"]).loss


def _our_task(config: EncoderConfig, attention: str, is_span: bool) -> tuple[torch.nn.Module, Loss]:
    if is_span:
        module = unscored(Encoder(config), Span(config, HeadConfig(), SpanConfig()))
    else:
        module = unscored(Encoder(config), Classification(config, HeadConfig(pooling="cls"), 2))
    return module, lambda batch: module.training_step(batch, 0)["loss"]


def _their_task(
    config: EncoderConfig, attention: str, is_span: bool
) -> tuple[torch.nn.Module, Loss]:
    ending = "QuestionAnswering" if is_span else "SequenceClassification"
    module = _theirs(f"BertFor{ending}", config, attention)

    def loss_of(batch: Batch) -> torch.Tensor:
        words = {"input_ids": batch["input_ids"], "attention_mask": batch.get("attention_mask")}
        labels = batch["labels"]
        if is_span:
            words |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        else:
            words["labels"] = labels
        loss: torch.Tensor = module(**words).loss
        return loss

    return module, loss_of


def _theirs(name: str, config: EncoderConfig, attention: str) -> torch.nn.Module:
    """A model of `transformers` of the same sizes, with one of its ways to compute attention."""
    if attention == FLASH and importlib.util.find_spec("flash_attn") is None:
        raise ModuleNotFoundError("flash_attn is not installed, and BERT has no other such path")
    import transformers

    sizes = config.to_dict()
    names = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
    names += ["intermediate_size", "max_position_embeddings"]
    theirs = transformers.BertConfig(**{name: sizes[name] for name in names})
    model: torch.nn.Module = getattr(transformers, name)._from_config(
        theirs, attn_implementation=attention
    )
    return model.train()


def _measure(
    bench: Bench,
    contest: Callable[[], tuple[torch.nn.Module, Loss]],
    batches: Callable[[], Work],
    dtype: torch.dtype,
    still_to_come: int,
) -> Row:
    """Repeat a step for this figure's part of the time that is left."""
    device = bench.device
    if bench.left() < 3:
        raise TimeoutError("no time was left for it")
    seconds = min(bench.scale.measured_seconds, bench.left() / (2 * still_to_come))
    with device:  # its weights are drawn there
        (module, loss_of), work = contest(), batches()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    source = cycle(work.batches)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss = loss_of(next(source))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    try:
        forget_peak(device)
        times = _step_seconds(step, device, seconds)
        host = _host_seconds(step, device)
        peak = peak_gib(device)
    finally:
        module.to("meta")  # the memory, also where an error keeps a reference
        optimizer.state.clear()
    return _rates(bench, work, dtype, times, host, peak)


def _step_seconds(step: Callable[[], None], device: torch.device, seconds: float) -> list[float]:
    """Seconds of a step, of several rounds; the device is waited for at their ends alone."""
    for _ in range(BATCHES):  # all shapes
        step()
    wait_for(device)
    start = time.perf_counter()
    for _ in range(2):
        step()
    wait_for(device)
    count = max(1, round(seconds / 5 / (time.perf_counter() - start) * 2))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait_for(device)
        times.append((time.perf_counter() - start) / count)
    return times


def _host_seconds(step: Callable[[], None], device: torch.device) -> float:
    """Seconds until a step is handed over, to a device that has nothing else to do."""
    times = []
    for _ in range(5):
        wait_for(device)
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _rates(
    bench: Bench, work: Work, dtype: torch.dtype, times: list[float], host: float, peak: float
) -> Row:
    seconds = statistics.median(times)
    reached = work.flops / seconds / 1e12
    ceilings = {row["dtype"]: row["tflops"] for row in bench.tables["matrix products"]}
    row: Row = {
        "step_ms": seconds * 1e3,
        "spread": (max(times) - min(times)) / seconds,
        "tokens_per_second": work.tokens / seconds,
        "padding": 1 - work.tokens / work.places,
        "tflops": reached,
        "of_measured_peak": reached / ceilings[_name(dtype)],
    }
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else ""
    for model, tflops in PUBLISHED_TFLOPS.items():
        if model in name and dtype == torch.bfloat16:
            row["of_published_peak"] = reached / tflops
    return {**row, "host_ms": host * 1e3, "peak_gib": peak}
