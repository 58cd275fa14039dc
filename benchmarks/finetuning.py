"""Fine-tuning on SST-2's lengths: our run beside `transformers`' Trainer, which pads to 128.

Both train the same net on the same sentences of random tokens, in batches of 32, for one epoch;
building the trainers and the first steps do not count.

    python benchmarks/finetuning.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from contest import PAD, TINY, Sentences, classifier, prepare, sentences, take_turns

from finetune.text.features import Features
from finetune.training.progress import LengthConfig
from finetune.training.trainer import TrainerConfig, build_trainer, quiet_lightning

BATCH, LENGTH, WARM_UP = 32, 128, 3


class Watch(pl.Callback):
    """Takes the time of an epoch from the first step after the warm-up."""

    examples, start, seconds = 0, 0.0, 0.0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        """Start the clock when warm, and count the examples from there."""
        if index == WARM_UP:
            self.start = time.perf_counter()
        self.examples += len(batch["input_ids"]) if index >= WARM_UP else 0

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self.start


def ours(features: list[Features], folder: Path) -> Callable[[], float]:
    """Make a turn of ours: an epoch, in examples a second."""

    def epoch() -> float:
        watch = Watch()
        with quiet_lightning(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = build_trainer(
                TrainerConfig(accelerator="cpu"),
                LengthConfig(max_epochs=1),
                callbacks=[watch],
                loggers=[],
                folder=folder,
            )
            trainer.fit(classifier(TINY), datamodule=Sentences(features, BATCH))
        return watch.examples / watch.seconds

    return epoch


def theirs(features: list[Features], folder: Path) -> Callable[[], float]:
    """Make a turn of theirs: an epoch, in examples a second."""
    from transformers import (
        BertForSequenceClassification,
        PrinterCallback,
        Trainer,
        TrainerCallback,
    )
    from transformers import TrainingArguments as Arguments

    class Clock(TrainerCallback):  # type: ignore[misc]
        start, seconds, steps = 0.0, 0.0, 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == WARM_UP:
                self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seconds, self.steps = time.perf_counter() - self.start, state.global_step - WARM_UP

    def epoch() -> float:
        clock = Clock()
        arguments = Arguments(
            output_dir=str(folder),
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_drop_last=True,
        )
        model = BertForSequenceClassification(TINY.theirs())
        padded = [pad(feature) for feature in features]
        trainer = Trainer(model=model, args=arguments, train_dataset=padded, callbacks=[clock])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return BATCH * clock.steps / clock.seconds

    return epoch


def pad(feature: Features) -> dict[str, Any]:
    """Pad a sentence to 128 tokens, as `run_glue.py` does unless told otherwise."""
    ids, rest = feature.input_ids, LENGTH - len(feature.input_ids)
    return {
        "input_ids": ids + [PAD] * rest,
        "attention_mask": [1] * len(ids) + [0] * rest,
        "token_type_ids": [0] * LENGTH,
        "labels": feature.label,
    }


def main() -> None:
    """Compare at 2x128."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each")
    parser.add_argument("--examples", type=int, default=3200, help="sentences in our epoch")
    parser.add_argument("--theirs", type=int, default=640, help="sentences in theirs, the first")
    parser.add_argument("--threads", type=int, help="threads of torch; all cores if not given")
    options = parser.parse_args()
    prepare(options.threads)
    made = sentences(options.examples, TINY.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        turns = {
            "ours": ours(made, Path(folder)),
            "transformers": theirs(made[: options.theirs], Path(folder)),
        }
        rates = take_turns(turns, options.rounds)
    print(f"{TINY}, SST-2's lengths, batches of {BATCH}, {torch.get_num_threads()} threads")
    figures = "  ".join(f"{name} {rate:,.1f} examples/s" for name, rate in rates.items())
    print(f"{figures}  ratio {rates['ours'] / rates['transformers']:.2f}")


if __name__ == "__main__":
    main()
