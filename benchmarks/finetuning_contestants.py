"""The contestants of the fine-tuning benchmark; each turn is a process of its own.

    python finetuning_contestants.py TURN.json

`ours` is the command `finetune glue` with the settings of theirs; `recipe` the same command with a
configuration file. The others are `transformers`' Trainer. All validate and save after each epoch
and keep the best one; the seconds of the steps alone are taken by a callback in each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from turns import peak_gib

EVAL_BATCH = 32


@dataclass(frozen=True)
class Turn:
    """A training that is asked for."""

    contestant: str
    task: str
    """Of GLUE."""
    data: str
    """Folder with `glue_data/`."""
    encoder: str
    """A Hugging Face folder."""
    folder: str
    """Gets the run."""
    seed: int = 1
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    max_length: int = 128
    threads: int | None = None
    config: str | None = None
    """Of the contestant `recipe`, which brings its own length, rate and batch size."""


@dataclass(frozen=True)
class Setting:
    """A way to use Trainer."""

    pad_to_length: bool = False
    """Pad every sequence to `max_length`, as `run_glue.py` does by default."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Beside those of all."""
    our_process: bool = False
    """Flush denormals and keep freed memory, as our runs do."""


GROUPED = {"train_sampling_strategy": "group_by_length", "optim": "adamw_torch_fused"}
SETTINGS = {
    "hf-default": Setting(pad_to_length=True),
    "hf-dynamic": Setting(arguments={"optim": "adamw_torch_fused"}),
    "hf-best": Setting(arguments=GROUPED),
    "hf-best-process": Setting(arguments=GROUPED, our_process=True),
}
"""Trainer's contestants; the last has what is no setting of Trainer's but could be done around."""
CONTESTANTS = ("ours", "recipe", *SETTINGS)


class Steps:
    """Counts the seconds of the training steps of each epoch, and nothing beside them."""

    def __init__(self) -> None:
        """Start with none."""
        self.clock: list[float] = []
        self.processor: list[float] = []
        self._since: tuple[float, float] | None = None

    def start(self) -> None:
        """An epoch begins."""
        self._since = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Its last step is done; a second call changes nothing."""
        if self._since is not None:
            self.clock.append(time.perf_counter() - self._since[0])
            self.processor.append(time.process_time() - self._since[1])
            self._since = None

    def figures(self, examples: int) -> dict[str, Any]:
        """Seconds of each epoch, by the clock and of the processor over all threads."""
        rows = examples * len(self.clock)
        return {
            "examples": examples,
            "step_seconds": self.clock,
            "processor_seconds": self.processor,
            "examples_per_second": rows / sum(self.clock),
            "examples_per_processor_second": rows / sum(self.processor),
        }


def our_words(turn: Turn) -> list[str]:
    """The command line of `ours` or `recipe`."""
    words = ["glue", turn.task, "--encoder", turn.encoder, "--data", turn.data]
    words += ["--out", turn.folder, "--overwrite", "--seed", str(turn.seed), "--no-wandb"]
    words += ["--no-progress", "--accelerator", "cpu", "--checkpoint-every-steps", "1000000000"]
    words += ["--cache-dir", str(Path(turn.folder).parent / "cache")]
    if turn.contestant == "recipe":
        return [*words, "--config", str(turn.config)]
    return [*words, *same_as_theirs(turn)]


def same_as_theirs(turn: Turn) -> list[str]:
    """Trainer's defaults, and what the turn sets for both."""
    settings = {
        "max-epochs": turn.epochs,
        "batch-size": turn.batch_size,
        "learning-rate": turn.learning_rate,
        "max-length": turn.max_length,
        "schedule": "linear",
        "warmup-ratio": 0,
        "weight-decay": 0,
        "adam-epsilon": 1e-8,
        "gradient-clip": 1.0,
        "pooling": "cls",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def ours(turn: Turn) -> dict[str, Any]:
    """Make our run, as the command makes it, with a watch on its epochs."""
    import pytorch_lightning as pl

    from finetune.jobs import session
    from finetune.training.loop.trainer import build_trainer
    from tasks.__main__ import main as command

    steps = Steps()

    class Watch(pl.Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            steps.start()

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            steps.stop()

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            steps.stop()

    def watched(*words: Any, callbacks: Sequence[pl.Callback], **named: Any) -> pl.Trainer:
        return build_trainer(*words, callbacks=[Watch(), *callbacks], **named)

    with mock.patch.object(session, "build_trainer", watched):
        if command(our_words(turn)) != 0:
            raise SystemExit(1)
    folder = Path(turn.folder)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    name = next(iter(results["metrics"]))
    scores = [line[f"val/{name}"] for line in map(json.loads, lines) if f"val/{name}" in line]
    shutil.rmtree(folder / "checkpoints")
    return {
        "metrics": results["metrics"],
        "epoch_scores": scores,
        "whole_seconds": results["train_seconds"],
        **steps.figures(results["data"]["train"]["examples"]),
    }


def encoded(tokenizer: Any, task: Any, examples: Sequence[Any], turn: Turn) -> list[Any]:
    """Token ids and labels, as Trainer takes them."""
    columns = [list(column) for column in zip(*(one.texts for one in examples), strict=True)]
    padding = "max_length" if SETTINGS[turn.contestant].pad_to_length else False
    made = tokenizer(*columns, truncation=True, max_length=turn.max_length, padding=padding)
    labels = [task.labels.index(one.label) if task.labels else one.label for one in examples]
    return [
        {"labels": label} | {name: made[name][number] for name in made}
        for number, label in enumerate(labels)
    ]


def by_length(tokenizer: Any, examples: Sequence[Any]) -> list[Any]:
    """The longest first: in this order the least is padded, and each answer has its example."""
    return sorted(examples, key=lambda one: -len(tokenizer(*one.texts)["input_ids"]))


def arguments_of(turn: Turn, monitor: str) -> dict[str, Any]:
    """Trainer's arguments that are not its defaults."""
    return {
        "output_dir": str(Path(turn.folder) / "trainer"),
        "per_device_train_batch_size": turn.batch_size,
        "per_device_eval_batch_size": EVAL_BATCH,
        "num_train_epochs": turn.epochs,
        "learning_rate": turn.learning_rate,
        "seed": turn.seed,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": monitor,
        "greater_is_better": True,
        **SETTINGS[turn.contestant].arguments,
    }


def theirs(turn: Turn) -> dict[str, Any]:
    """Train with Trainer, answer the development set with its best epoch, and score the answers."""
    import numpy as np
    import transformers as hf
    from torch.utils.data import SequentialSampler
    from transformers.training_args import OptimizerNames

    from finetune.machine.circumstances import versions
    from finetune.runs.folder import RunFolder
    from finetune.runs.predictions import write_predictions
    from tasks.glue.task import glue_task

    steps, folder = Steps(), Path(turn.folder)

    class Watch(hf.TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps.start()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps.stop()

    if SETTINGS[turn.contestant].our_process:
        from finetune.training.loop.freed_memory import keep_freed_memory
        from finetune.training.loop.trainer import flush_denormals

        flush_denormals()
        keep_freed_memory()

    class InOrder(hf.Trainer):
        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            """Grouped by length, Trainer would answer in an order of its own."""
            return SequentialSampler(eval_dataset)

    task = glue_task(turn.task, Path(turn.data))
    tokenizer = hf.AutoTokenizer.from_pretrained(turn.encoder)
    train = task.examples("train")
    development = by_length(tokenizer, task.examples("validation"))
    asked: Any = encoded(tokenizer, task, development, turn)

    def answers(predicted: Any) -> Any:
        """Rows of what Trainer predicted, once its labels are seen to be those of `asked`."""
        kind = predicted.label_ids.dtype  # float32 too
        labels = np.asarray([one["labels"] for one in asked], kind)
        if not np.array_equal(labels, predicted.label_ids):
            raise SystemExit("Trainer answered the development set in another order")
        logits = predicted.predictions
        return task.answers(logits if task.labels else logits.reshape(-1), development, [])

    hf.set_seed(turn.seed)
    trainer = InOrder(
        model=hf.AutoModelForSequenceClassification.from_pretrained(
            turn.encoder, num_labels=max(1, len(task.labels))
        ),
        args=hf.TrainingArguments(**arguments_of(turn, task.monitor)),
        train_dataset=encoded(tokenizer, task, train, turn),
        eval_dataset=asked,
        processing_class=tokenizer,
        compute_metrics=lambda predicted: task.score(answers(predicted)),
        callbacks=[Watch()],
    )
    trainer.remove_callback(hf.PrinterCallback)
    start = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - start
    rows = answers(trainer.predict(asked))
    write_predictions(rows, folder / "predictions" / "validation.jsonl")
    monitored = f"eval_{task.monitor}"
    figures = {
        "metrics": task.score(rows),
        "epoch_scores": [e[monitored] for e in trainer.state.log_history if monitored in e],
        "whole_seconds": whole,
        **steps.figures(len(train)),
        "optimizer": OptimizerNames(trainer.args.optim).value,
    }
    results = {"task": task.name, "split": "validation", "metrics": figures["metrics"]}
    results |= {"examples": len(rows), "seed": turn.seed, "encoder": turn.encoder}
    results |= {"collapsed": len({row["prediction"] for row in rows}) == 1}
    RunFolder(folder).write_results(results | {"train_seconds": whole, "versions": versions()})
    shutil.rmtree(folder / "trainer", ignore_errors=True)
    return figures


def take(turn: Turn) -> None:
    """Take a turn, and leave its figures in the run's folder."""
    import torch

    if turn.threads is not None:
        torch.set_num_threads(turn.threads)
    folder = Path(turn.folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = theirs(turn) if turn.contestant in SETTINGS else ours(turn)
    figures |= {"turn": asdict(turn), "threads": torch.get_num_threads(), "peak_gib": peak_gib()}
    partial = folder / "turn.json.tmp"
    partial.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / "turn.json")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    take(Turn(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
