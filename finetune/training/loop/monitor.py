"""What a run reports while it trains: log lines, and a progress bar with rate and ETA."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch

from finetune.encoder.benchmark import wait_for
from finetune.metrics.semantics import TOKEN_ACCURACIES
from finetune.training.loop.accumulation import FILLER, LabelledMean, labelled, labels_of
from finetune.training.loop.module import EncoderWithHead, epochs_done
from finetune.training.loop.progress import RunLength, log_interval
from finetune.training.loop.progress_bar import ProgressDisplay
from finetune.training.loop.trainer import most_of_all

Figures = dict[str, float]
PLATEAU_WINDOWS = 10


def at_unigram_plateau(losses: Sequence[float], unigram_entropy: float) -> bool:
    """Whether a masked-LM loss has stopped at what word frequencies alone give.

    Args:
        losses: Training losses in nats, one a log line, oldest first.
        unigram_entropy: Entropy of the corpus's token frequencies, nats.

    Returns:
        True if the last ten lines lie within 1 % of each other and within 3 % of the entropy.
    """
    last = losses[-PLATEAU_WINDOWS:]
    if len(last) < PLATEAU_WINDOWS:
        return False
    mean = sum(last) / len(last)
    return (
        max(last) - min(last) < 0.01 * mean and abs(mean - unigram_entropy) < 0.03 * unigram_entropy
    )


class Monitor(pl.Callback):
    """Writes the training figures to the loggers, and shows the progress bar."""

    def __init__(
        self,
        length: RunLength,
        every_steps: int | None,
        *,
        flops_per_token: Callable[[float], float] | None = None,
        ceiling_gflops: float | None = None,
        unigram_entropy: float | None = None,
        peak_gib: Callable[[], float] | None = None,
        examples_per_unit: float = 1.0,
        show_progress: bool = True,
        title: str = "",
    ) -> None:
        """Say what to write and how often.

        Args:
            length: The run's limit, for the bar.
            every_steps: Steps between two lines; None for `log_interval`.
            flops_per_token: Mean length in tokens -> FLOPs of a training step, a token.
            ceiling_gflops: What this machine's matrix products reach, measured at the start.
            unigram_entropy: Entropy of the corpus, nats: what knowing frequencies alone gives.
            peak_gib: Gives the most memory that the process has used so far, GiB.
            examples_per_unit: Examples that one of a batch's `index` stands for: less than 1 where
                texts are read in several windows.
            show_progress: Show a bar if stderr is a terminal, and now and then a line if not.
            title: What stands before the bar.
        """
        self.length, self.every = length, every_steps
        self.flops_per_token, self.ceiling = flops_per_token, ceiling_gflops
        self.unigram_entropy, self.peak_gib = unigram_entropy, peak_gib
        self.examples_per_unit = examples_per_unit
        self.losses: list[float] = []
        self.tokens_seen = 0
        """Tokens since the start of the run, without padding, up to the last line."""
        self.largest_gib = 0.0
        """Most memory that one of the processes has used, GiB, when training ended."""
        self._rows_before = 0  # units up to the last line
        self._since_validation = (0.0, 0.0)  # sum of losses and count, up to the last line
        self._warned = False
        self._step = 0
        self._trainer: pl.Trainer | None = None
        self._start_window()
        self._bar = ProgressDisplay(length, title) if show_progress else None

    def _start_window(self) -> None:
        self._loss = LabelledMean()
        self._tokens: torch.Tensor | int = 0
        self._places = 0
        self._rows = 0
        self._examples = 0
        self._seconds = 0.0
        self._since = time.perf_counter()

    def _is_logged(self, step: int) -> bool:
        return step % (self.every or log_interval(self.length, step)) == 0

    @property
    def rows_seen(self) -> int:
        """Units since the start of the run; in the end those of all processes."""
        return self._rows_before + self._examples

    @property
    def examples_seen(self) -> int:
        """The same in examples, of which each window is a part."""
        return round(self.rows_seen * self.examples_per_unit)

    def _gather(self) -> None:
        """Move the windows of all processes, which must all ask, into that of the first one."""
        trainer = self._trainer
        if trainer is None or trainer.world_size == 1:
            return
        counts = (*self._loss.state(), self._tokens, self._places, self._rows, self._examples)
        # float64 counts tokens exactly up to 2^53, where float32 ends at 2^24.
        window = torch.tensor([float(count) for count in counts], dtype=torch.float64)
        sums = trainer.strategy.reduce(window.to(trainer.strategy.root_device), reduce_op="sum")
        # Zero elsewhere: the next gathering adds all windows up again.
        totals = sums.tolist() if trainer.is_global_zero else [0] * len(counts)
        self._loss = LabelledMean(*totals[:2])
        self._tokens, self._places, self._rows, self._examples = map(int, totals[2:])

    def loss_since_validation(self) -> float | None:
        """The mean training loss since this was last asked; None where no step was made.

        While several processes train, all of them must ask, and the first one is answered.
        """
        self._gather()
        total, count = self._loss.state()
        before, seen = self._since_validation
        # The window stays open: what it has by now is taken off when it is added as a whole.
        self._since_validation = (-total, -count)
        return (before + total) / (seen + count) if seen + count > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """The open window, so that a resumed run writes the lines of the uninterrupted one.

        While several processes train, all of them must ask for it, and the first one's counts.
        """
        self._gather()
        return {
            "rows_seen": self.rows_seen,
            "tokens_seen": self.tokens_seen,
            "losses": self.losses[-PLATEAU_WINDOWS:],
            "loss": self._loss.state(),
            "since_validation": self._since_validation,
            "tokens": int(self._tokens),
            "places": self._places,
            "rows": self._rows,
            "examples": self._examples,
            "seconds": self._seconds + time.perf_counter() - self._since,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue an open window; it is that of all processes, so the first one takes it."""
        self._start_window()
        self.tokens_seen = state_dict.get("tokens_seen", 0)  # none in checkpoints of 0.1
        self.losses = list(state_dict["losses"])
        self._since_validation = state_dict.get("since_validation", (0.0, 0.0))
        examples = state_dict.get("examples", state_dict["rows"])  # none in checkpoints of 0.1
        self._rows_before = state_dict["rows_seen"] - examples
        trainer = self._trainer
        if trainer is not None and trainer.world_size > 1 and not trainer.is_global_zero:
            return
        if "batches" in state_dict:  # of 0.1: a sum of means; each batch then counts the same
            self._loss = LabelledMean(state_dict["loss"], state_dict["batches"])
        else:
            self._loss = LabelledMean(*state_dict["loss"])
        self._tokens, self._places = state_dict["tokens"], state_dict["places"]
        self._rows, self._seconds = state_dict["rows"], state_dict["seconds"]
        self._examples = examples

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the first window."""
        self._trainer, self._step = trainer, trainer.global_step
        self._since = time.perf_counter()
        if self._bar and trainer.is_global_zero:
            self._bar.start(self._step)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the module know whether this step is written."""
        if isinstance(pl_module, EncoderWithHead):
            pl_module.is_logged_step = self._is_logged(trainer.global_step + 1)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Mapping[str, torch.Tensor],
        batch_idx: int,
    ) -> None:
        """Add a batch to the window; write the window if its last step is done."""
        if FILLER not in batch:
            mean = outputs["loss"] * trainer.accumulate_grad_batches  # Lightning divided it
            self._add(batch, mean)
        step, before = trainer.global_step, self._step
        self._step = step
        if step > before and self._is_logged(step):  # not in the midst of accumulating
            self._write(trainer, pl_module, outputs, labels_of(batch))
        if self._bar:
            self._bar.show(step)

    def _add(self, batch: Mapping[str, torch.Tensor], mean: torch.Tensor) -> None:
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        self._loss.add(mean, labelled(batch["labels"]))
        self._places += ids.numel()
        self._rows += len(ids)
        self._examples += len(batch.get("index", ids))  # a unit may be several sequences
        padded = (
            mask is not None and mask.ndim == 2
        )  # (B, T, T) keeps documents apart, without padding
        self._tokens = self._tokens + (mask.sum() if padded else ids.numel())  # type: ignore[union-attr]

    def _write(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        labels: torch.Tensor,
    ) -> None:
        self._gather()
        of_all = self._of_all(trainer, outputs, labels)
        if trainer.world_size > 1 and not trainer.is_global_zero:
            self._start_window()
            return
        total, count = self._loss.state()  # waits for the device: the time below is honest
        self.losses.append(total / max(1.0, count))
        before, seen = self._since_validation
        self._since_validation = (before + total, seen + count)
        figures = {"epoch": epochs_done(trainer), "train/loss": self.losses[-1]}
        figures |= {**self._performance(), **of_all}
        if self.unigram_entropy is not None:
            figures["train/unigram_entropy"] = self.unigram_entropy
        figures |= _rates(trainer)
        if isinstance(pl_module, EncoderWithHead):
            figures |= _freezing(pl_module)
        figures |= _gradients(pl_module)
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step)
        if self._bar:
            self._bar.keep(figures)
        self._warn_at_plateau(trainer.global_step)
        self._rows_before = self.rows_seen
        self._start_window()

    def _of_all(self, trainer: pl.Trainer, outputs: Any, labels: torch.Tensor) -> Figures:
        """What is no sum: the last batches' accuracy, and the memory of the largest process."""
        figures = {}
        for name in TOKEN_ACCURACIES:
            if name in outputs:
                figures[f"train/{name}"] = _accuracy(trainer, outputs[name], labels)
        if self.peak_gib is not None:
            figures["perf/peak_gib"] = most_of_all(trainer, self.peak_gib())
        return figures

    def _performance(self) -> Figures:
        seconds = self._seconds + time.perf_counter() - self._since
        tokens = int(self._tokens)
        rate = tokens / seconds
        self.tokens_seen += tokens
        figures = {
            "perf/tokens_per_second": rate,
            "perf/examples_per_second": self._examples * self.examples_per_unit / seconds,
            "perf/padding": 1 - tokens / self._places,
            "data/examples_seen": self.examples_seen,
            "data/tokens_seen": self.tokens_seen,
        }
        if self.flops_per_token and self.ceiling:
            flops = self.flops_per_token(tokens / self._rows)
            figures["perf/ceiling_share"] = flops * rate / (self.ceiling * 1e9)
        return figures

    def _warn_at_plateau(self, step: int) -> None:
        if self.unigram_entropy is None or self._warned:
            return
        if at_unigram_plateau(self.losses, self.unigram_entropy):
            self._warned = True
            warnings.warn(
                f"step {step}: the loss has stayed at the corpus's unigram entropy "
                f"({self.unigram_entropy:.2f} nats) for {PLATEAU_WINDOWS} log lines: so far the "
                "encoder has learnt only word frequencies; train longer, or try a higher "
                "learning_rate or a smaller batch_size",
                stacklevel=2,
            )

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the window's clock."""
        wait_for(pl_module.device)  # a GPU has steps to do that belong to the window
        self._seconds += time.perf_counter() - self._since
        if self._bar:
            self._bar.note(trainer.global_step, "validating")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the window's clock continue."""
        self._since = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count what all processes have seen, and look for the most memory that one has used."""
        self._gather()
        if self.peak_gib is not None:
            self.largest_gib = most_of_all(trainer, self.peak_gib())

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Take the bar away: Lightning calls no teardown after an error."""
        if self._bar:
            self._bar.stop()


def _accuracy(trainer: pl.Trainer, accuracy: torch.Tensor, labels: torch.Tensor) -> float:
    """That of the batches that all processes have just had."""
    if trainer.world_size == 1:
        return float(accuracy)
    mean = LabelledMean()
    mean.add(accuracy, labels)
    return float(mean.value(trainer))


def _rates(trainer: pl.Trainer) -> Figures:
    """The rate of each layer group; of an optimizer without named groups, by their numbers."""
    groups = trainer.optimizers[0].param_groups
    if not all("layer" in group for group in groups):
        return {f"lr/group_{number}": float(group["lr"]) for number, group in enumerate(groups)}
    return {
        f"lr/{group['layer']}": group["lr"] for group in groups if group["name"] == group["layer"]
    }


def _freezing(module: EncoderWithHead) -> Figures:
    """The boundary and the number of the phase: bands over the other curves."""
    if module.phases is None:
        return {}
    return {
        "frozen/boundary": module.phases.groups.start,
        "frozen/phase": module.phases.current or 0,
    }


def _gradients(module: pl.LightningModule) -> Figures:
    """The norm of the whole gradient and of each group's, as a module keeps them."""
    whole = getattr(module, "gradient_norm", None)
    figures = {} if whole is None else {"train/gradient_norm": float(whole)}
    for name, norm in getattr(module, "gradient_norms", {}).items():
        figures[f"train/gradient_norm/{name}"] = float(norm)
    return figures
