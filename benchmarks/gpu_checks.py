"""What `gpu.py` checks on the device: tests, numbers, repetition, interruption. No times.

Each function takes a `Bench` and puts its figures there.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import torch
from contest import Size, masked_batches, ours_of, sentences, unscored
from gpu_bench import ROOT, Bench, Row

from finetune.encoder import Encoder, EncoderConfig, varlen
from finetune.heads import Classification, HeadConfig, Span, SpanConfig
from finetune.jobs.pretraining import pretrain
from finetune.runs.settings import PretrainRun
from finetune.settings.fields import dump, read
from finetune.text.features.pairs import Features, collate
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.pretrainer import Pretrainer

EXACT = 1e-4
"""Largest difference of CPU and GPU in float32."""
ROUNDED = 0.02
"""Largest difference of the losses of bf16-mixed and 32-true, as a fraction."""
INTERRUPTED_STEPS = 400
"""Long enough to be interrupted after its first checkpoint."""

Batch = dict[str, torch.Tensor]
MakeRun = Callable[..., PretrainRun]
"""(name, what differs) -> settings."""


def tests(bench: Bench) -> None:
    """The tests that are marked `gpu`; without a device each says why it is skipped."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text("utf-8")
    ]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "junit.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        words += [f"--junitxml={result}", f"--basetemp={folder}/tmp", *files]
        subprocess.run(words, cwd=ROOT, timeout=max(1.0, bench.left()), check=False)
        suite = ElementTree.parse(result).getroot().find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bench.add("tests marked gpu", **counts)
    for case in suite.iter("testcase"):
        for outcome in ("failure", "error"):
            if (element := case.find(outcome)) is not None:
                reason = (element.get("message") or "").partition("\n")[0]
                bench.add("failed tests", test=case.get("name"), reason=reason[:300])
    bench.check("tests that failed", counts["failures"] + counts["errors"], 0)


def parity(bench: Bench) -> None:
    """The same weights and batches on the CPU and on the device, in float32."""
    table = "CPU against the device, float32, no dropout"
    for title, make, batches in _cases(bench):
        bench.attempt(table, {"model": title}, partial(_compare, bench, make, batches))
    for name in ("outputs", "gradients", "losses"):
        largest = max(float(row.get(name, torch.inf)) for row in bench.tables[table])
        bench.check(f"{name}: largest difference of CPU and device", largest, EXACT)
    _check_unpadded(bench)


def _cases(bench: Bench) -> Iterator[tuple[str, Callable[[], EncoderWithHead], list[Batch]]]:
    scale = bench.scale
    rows, length = min(16, scale.check_rows), scale.check_length
    size = Size(2, 64, bench.scale.check_vocabulary)
    source = masked_batches(size, rows, length, rate=0.15)
    masked = [ours_of(next(source)) for _ in range(8)]
    variants: dict[str, Row] = {
        "masked LM, BERT's form": {},
        "masked LM, rotary positions, pre-norm": {"position": "rotary", "norm_position": "pre"},
        "masked LM, additive score": {"attention_score": "additive"},
        "masked LM, causal": {"causal": True},
    }
    for title, changes in variants.items():
        yield title, partial(_pretrainer, bench, changes), masked
    texts = sentences(8 * rows, bench.scale.check_vocabulary)
    numbers = [list(range(start, start + rows)) for start in range(0, len(texts), rows)]
    yield "classification, padded", partial(_classifier, bench), [_batch(texts, n) for n in numbers]
    asked = [dataclasses.replace(text, label=(1, len(text.input_ids) - 2)) for text in texts]
    yield "spans, padded", partial(_spans, bench), [_batch(asked, n) for n in numbers]


def _batch(texts: Sequence[Features], numbers: Sequence[int]) -> Batch:
    return collate(texts, numbers, pad_token_id=0)


def _encoder(bench: Bench, **changes: Any) -> Encoder:
    torch.manual_seed(1)
    sizes = bench.scale.small | {
        "vocab_size": bench.scale.check_vocabulary,
        "initializer_range": 0.05,
    }
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Encoder(EncoderConfig(**{**sizes, **dropout, **changes}))


def _pretrainer(bench: Bench, changes: Row) -> Pretrainer:
    return Pretrainer(_encoder(bench, **changes))


def _classifier(bench: Bench) -> FineTuner:
    encoder = _encoder(bench)
    head = Classification(encoder.config, HeadConfig(head_dropout=0.0), 2)
    return unscored(encoder, head)


def _spans(bench: Bench) -> FineTuner:
    encoder = _encoder(bench)
    return unscored(encoder, Span(encoder.config, HeadConfig(), SpanConfig()))


def _compare(bench: Bench, make: Callable[[], EncoderWithHead], batches: Sequence[Batch]) -> Row:
    """Largest differences of the outputs, the first gradients and the losses of some steps."""
    here = make()
    there = copy.deepcopy(here).to(bench.device)
    moved = [_moved(batch, bench.device) for batch in batches]
    with torch.no_grad():
        difference = (here.eval()(batches[0]) - there.eval()(moved[0]).cpu()).abs()
    here.train(), there.train()
    optimizers = [here.configure_optimizers(), there.configure_optimizers()]
    figures: Row = {"outputs": difference.nan_to_num(posinf=0.0, neginf=0.0).max().item()}
    losses = 0.0
    for number, batch in enumerate(batches):
        pair: list[Any] = [here.training_step(batch, number)]
        pair.append(there.training_step(moved[number], number))
        for outputs in pair:
            torch.autograd.backward(outputs["loss"])
        if number == 0:
            figures["gradients"] = _gradients_apart(here, there)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        first, second = (float(outputs["loss"].detach()) for outputs in pair)
        losses = max(losses, abs(first - second))
    return {**figures, "losses": losses, "steps": len(batches)}


def _check_unpadded(bench: Bench) -> None:
    """Attention by cumulative lengths beside attention to a padded batch, in bfloat16."""
    table = "with padding against without, bfloat16, no dropout"
    texts = sentences(bench.scale.check_rows, bench.scale.check_vocabulary)
    batch = _moved(_batch(texts, range(len(texts))), bench.device)
    with torch.autocast(bench.device.type, dtype=torch.bfloat16):
        if not varlen.has_kernel(torch.zeros(1, device=bench.device)):
            bench.add(table, left_out="this device has no kernel for it")
            return
        without = _loss_and_gradient(bench, batch)
        with mock.patch.object(varlen, "has_kernel", return_value=False):
            padded = _loss_and_gradient(bench, batch)
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(without, padded, strict=True)]
    bench.add(table, loss=apart[0], gradient=apart[1], rows=len(texts))
    bench.check("bfloat16 without padding: difference, as a fraction", max(apart), ROUNDED)


def _loss_and_gradient(bench: Bench, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    module = _classifier(bench).to(bench.device).train()
    loss = module.training_step(batch, 0)["loss"]
    torch.autograd.backward(loss)
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return loss.detach(), torch.cat(gradients)


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _gradients_apart(here: torch.nn.Module, there: torch.nn.Module) -> float:
    """The largest difference of two gradients, as a fraction of the largest number in them."""
    pairs = zip(here.parameters(), there.parameters(), strict=True)
    gradients = [
        (a.grad, b.grad.cpu()) for a, b in pairs if a.grad is not None and b.grad is not None
    ]
    largest = max(a.abs().max().item() for a, _ in gradients)
    return max((a - b).abs().max().item() for a, b in gradients) / largest


def precision(bench: Bench) -> None:
    """The same run in float32 and in mixed precision: the losses side by side."""
    with _runs(bench) as run:
        curves = {}
        for name in ("32-true", "bf16-mixed"):
            validation = _pretrain(run(name, precision=name))
            curves[name] = _curve(Path(run(name).out)) | {"validation": validation}
    for step, loss in curves["32-true"].items():
        other = curves["bf16-mixed"].get(step, torch.nan)
        row = {"step": step, "loss_32_true": loss, "loss_bf16_mixed": other}
        bench.add("loss by precision", **row, difference=abs(other - loss) / loss)
    apart = [row["difference"] for row in bench.tables["loss by precision"]]
    bench.check("losses: largest difference of bf16-mixed, as a fraction", max(apart), ROUNDED)


def _curve(folder: Path) -> dict[Any, float]:
    """Step -> training loss."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def determinism(bench: Bench) -> None:
    """The same run twice, as it is and with `deterministic`: are the weights the same bits?"""
    with _runs(bench) as run:
        for name, exact in product(("32-true", "bf16-mixed"), (False, True)):
            title = {"precision": name, "deterministic": exact}
            bench.attempt("the same run twice", title, partial(_twice, run, name, exact))
    rows = [row for row in bench.tables["the same run twice"] if row["deterministic"]]
    apart = max(float(row.get("weights_apart", torch.inf)) for row in rows)
    bench.check("deterministic: largest difference of the weights of two runs", apart, 0.0)


def _twice(run: MakeRun, name: str, exact: bool) -> Row:
    runs = [
        run(f"{name}-{exact}-{number}", precision=name, deterministic=exact) for number in (1, 2)
    ]
    began = time.perf_counter()
    for each in runs:
        _pretrain(each)
    torch.use_deterministic_algorithms(False)  # the Trainer leaves it on
    seconds = time.perf_counter() - began
    apart = _apart(*(Path(each.out) for each in runs))
    return {"weights_apart": apart, "same_bits": apart == 0.0, "seconds": seconds}


def interruption(bench: Bench) -> None:
    """A run that is killed, and one that is asked to stop, resumed: the uninterrupted weights?"""
    with _runs(bench) as run, ThreadPoolExecutor(3 if bench.device.type == "cuda" else 1) as pool:
        often = (
            INTERRUPTED_STEPS // 4
        )  # what is written is synced, for which a busy disk takes long
        steps = {"max_steps": INTERRUPTED_STEPS, "checkpoint_every_steps": often}
        steps["log_every_steps"] = often

        def make(name: str) -> list[str]:
            return _written(run(name, deterministic=True, **steps))

        _prepare(run("whole"))
        whole = pool.submit(_finish, make("whole"))
        signals = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
        jobs = {
            name: pool.submit(_interrupted, make(name), number) for name, number in signals.items()
        }
        whole.result()
        for name, job in jobs.items():
            status, step = job.result()
            apart = _apart(Path(run("whole").out), Path(run(name).out))
            bench.add(
                "interrupted and resumed",
                signal=name,
                exit_status=status,
                resumed_at_step=step,
                weights_apart=apart,
            )
            bench.check(f"{name}: ended with another status", float(status not in (-9, 143)), 0.0)
            bench.check(f"{name}: largest difference of the weights", apart, 0.0)


def _written(run: PretrainRun) -> list[str]:
    """The command of a run, whose settings are in a file."""
    file = Path(run.out).with_suffix(".yaml")
    file.write_text(dump(run), encoding="utf-8")
    return [sys.executable, "-m", "finetune", "pretrain", "--config", str(file)]


def _finish(words: Sequence[str]) -> None:
    done = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def _interrupted(words: Sequence[str], number: int) -> tuple[int, int]:
    """Send a signal after the first checkpoint, and resume; the status, and the step resumed at."""
    folder = Path(words[-1]).with_suffix("")
    process = subprocess.Popen(
        words, cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    last = folder / "checkpoints" / "last" / "config.json"
    while process.poll() is None and not last.is_file():
        time.sleep(0.005)
    process.send_signal(number)
    status = process.wait()
    from finetune.checkpoints.folder import load_trainer_state

    state = load_trainer_state(last.parent)
    _finish([*words, "--resume"])
    return status, state["standing"]["step"] if state else 0


def _apart(first: Path, second: Path) -> float:
    """The largest difference of the weights that two runs have ended with."""
    from safetensors.torch import load_file

    files = [run / "checkpoints" / "last" / "model.safetensors" for run in (first, second)]
    one, other = map(load_file, files)
    return max((one[name] - other[name]).abs().max().item() for name in one)


@contextmanager
def _runs(bench: Bench) -> Iterator[MakeRun]:
    """Settings of small pretraining runs on this project's own text, by name and what differs."""
    with tempfile.TemporaryDirectory() as made:
        folder, scale = Path(made), bench.scale
        texts = _own_text(scale.corpus_tokens)
        (folder / "corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
        train_tokenizer(texts, TokenizerConfig(vocab_size=scale.check_vocabulary)).save(
            folder / "tokenizer"
        )

        def run(name: str, **changes: Any) -> PretrainRun:
            keys: Row = {
                "corpus": [str(folder / "corpus.txt")],
                "out": str(folder / name),
                "overwrite": False,
                "tokenizer": str(folder / "tokenizer"),
                "cache_dir": str(folder / "cache"),
                **{f"encoder.{key}": value for key, value in scale.small.items()},
                "encoder.hidden_dropout_prob": 0.1,
                "data.max_length": scale.check_length,
                "loader.batch_size": scale.check_rows,
                "loader.validation_batches": 4,
                "optimizer.learning_rate": 5e-4,
                "length.max_steps": changes.pop("max_steps", scale.check_steps),
                "trainer.accelerator": "gpu" if bench.device.type == "cuda" else "cpu",
                "trainer.log_every_steps": max(1, scale.check_steps // 12),
                "trainer.progress": False,
                "tracking.wandb": False,
                "checkpoints.checkpoint_every_steps": changes.pop("checkpoint_every_steps", 10**6),
                **{f"trainer.{key}": value for key, value in changes.items()},
            }
            return read(PretrainRun, flags=keys)

        yield run


def _own_text(most_tokens: int) -> list[str]:
    """Paragraphs of this project's pages and sources: text to learn from, wherever it runs."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    files += sorted((ROOT / "finetune").rglob("*.py"))
    text = "\n\n".join(file.read_text("utf-8") for file in files)[: 4 * most_tokens]
    return [part for part in text.split("\n\n") if part.strip()]


def _pretrain(run: PretrainRun) -> float:
    """Make the run; its validation loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the text: it is code, and repeats itself
        return float(pretrain(run)["metrics"]["loss"])


def _prepare(run: PretrainRun) -> None:
    """Tokenize the corpus before several processes want it."""
    from finetune.text.corpus.corpus import build_corpus
    from finetune.text.tokenizer.tokenizer import Tokenizer

    assert run.tokenizer is not None
    assert run.cache_dir is not None
    tokenizer = Tokenizer.load(run.tokenizer)
    build_corpus(run.corpus, tokenizer, run.data, run.seed, run.cache_dir)
