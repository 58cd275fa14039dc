"""One training, from its start or its last checkpoint to its end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger

from finetune import tracking
from finetune.checkpoints.folder import load_checkpoint, load_trainer_state
from finetune.encoder.benchmark import forget_peak, matmul_ceiling, peak_gib
from finetune.errors import ConfigError
from finetune.jobs.artifacts import artifacts_of
from finetune.jobs.run_checkpoints import Saver
from finetune.machine.circumstances import circumstances
from finetune.machine.processes import is_first_process
from finetune.runs.folder import RunFolder, say
from finetune.runs.inputs import with_full_paths
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import TrainerConfig
from finetune.training.loop.chance import ChanceWatch
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.data import OrderedData, check_parts
from finetune.training.loop.launching import machines_of
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.monitor import Monitor
from finetune.training.loop.progress import Clock, Extension, LengthConfig, RunLength
from finetune.training.loop.progress_bar import position
from finetune.training.loop.sharding import fill, shards, take_out
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import (
    FREEZING,
    MIXED,
    build_trainer,
    check_compiler,
    flush_denormals,
    fraction_done,
    quiet_lightning,
    start_ranks,
    tell_lightning,
)
from finetune.training.loop.validation_report import ValidationReport
from finetune.training.ranks import ALONE, Ranks, pick_device

R = TypeVar("R", PretrainRun, AdaptRun, FitRun)


def check_machine(run: PretrainRun | AdaptRun | FitRun) -> None:
    """Refuse a device, a precision or a logger that is not to be had, before anything is written.

    Raises:
        ConfigError: Lightning refuses the settings of `run.trainer`, a package or a compiler is
            missing, or a batch has fewer examples than parts.
    """
    tracking.check_packages(run.tracking)
    check_compiler(run.trainer)
    with quiet_lightning():
        build_trainer(run.trainer, run.length.or_default(), callbacks=[], loggers=[])
    check_parts(run.loader, run.trainer.devices * machines_of(run.trainer))


def with_devices(run: R, devices: int) -> R:
    """The settings with the number of processes that there are, which torchrun may decide."""
    return dataclasses.replace(run, trainer=dataclasses.replace(run.trainer, devices=devices))


class Session:
    """What the two kinds of training have in common: loggers, trainer, checkpoints, results."""

    def __init__(
        self,
        run: PretrainRun | AdaptRun | FitRun,
        folder: RunFolder,
        module: EncoderWithHead,
        data: OrderedData,
        tokenizer: Tokenizer,
        *,
        head: dict[str, Any],
        task: Task | None = None,
        seeds_to_come: int = 0,
    ) -> None:
        """Keep the parts, and read the state of a resumed run; nothing is written yet.

        Args:
            run: The settings.
            folder: RUN.
            module: What is trained.
            data: What it is trained on.
            tokenizer: Saved with the weights.
            head: What a checkpoint says of its head.
            task: What is fine-tuned on; None for language models.
            seeds_to_come: Runs that follow this one, for the time left.

        Raises:
            CheckpointError: That state is damaged.
            ConfigError: Blocks are to be compiled that cannot be.
        """
        if run.trainer.compile:
            module.encoder.compile_blocks()
        self.run, self.folder, self.module, self.data = run, folder, module, data
        self.task, self.saver = task, Saver(tokenizer, head, task)
        self.trainer: pl.Trainer | None = None
        self.last = folder.checkpoints / "last"
        self.state = load_trainer_state(self.last) if run.resume else None
        self.length = self._length()
        self.seeds_to_come = seeds_to_come
        self.loggers: list[Logger] = []
        self.ranks = ALONE
        """The processes that train; of a run that has ended there is one."""
        self.seconds = 0.0
        self.examples_seen, self.largest_gib = 0, 0.0
        self.best: float | None = None
        """Value of the monitored metric by which the best checkpoint was chosen."""

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state is not None and bool(self.state["finished"])

    def start_ranks(self) -> Ranks:
        """Start the other processes, if there are any and something is to be trained."""
        if not self.has_ended:
            self.ranks = start_ranks(self.run.trainer)
        return self.ranks

    def train(
        self,
        *,
        monitor: str,
        task: str,
        unigram_entropy: float | None = None,
    ) -> None:
        """Train to the end of the run, from where it stands.

        Args:
            monitor: Name of the logged value that chooses the best checkpoint.
            task: What the run is called in the trackers.
            unigram_entropy: Of the corpus, nats; logged beside the loss of a language model.
        """
        state, length = self.state, self.length
        self.start_ranks()
        tell_lightning()
        self.loggers = self._open_loggers(task)
        watch = self._monitor(length, task, unigram_entropy)
        forget_peak(pick_device(self.run.trainer.accelerator))  # of the ceiling, of seeds before
        checkpointer = Checkpointer(
            self.folder.checkpoints,
            self._write,
            length,
            self.run.checkpoints,
            monitor=monitor,
            state=state,
            micro_batches=self.run.loader.micro_batches,
        )
        if state is not None:
            last = load_checkpoint(self.last)
            last.check_all()
            if is_first_process() or not shards(self.run.trainer):  # which hands out the weights
                last.load_into(self.module)
            self.data.start_at(checkpointer.progress)
            length.clock.resume(float(state["seconds"]))
            here = position(length, checkpointer.progress.step)
            ended = state["finished"]
            say(f"{'trained to its end' if ended else 'continuing from'}: {here}")
        if state is None or not state["finished"]:
            report = ValidationReport(
                length, watch, checkpointer, say, runs_to_come=self.seeds_to_come
            )
            if length.extension is not None:
                self._set_results_aside()
            with self._in_parts():
                self._fit(length, [watch, *self._watches(), checkpointer, report])
            self.seconds = length.clock.seconds
        else:
            watch.load_state_dict(state["callbacks"][watch.state_key])
            self.seconds = float(state["seconds"])
        fill(self.module)
        self.examples_seen, self.largest_gib = watch.examples_seen, watch.largest_gib
        self.best = checkpointer.best

    @contextmanager
    def _in_parts(self) -> Iterator[None]:
        """Where weights are divided among processes: train a copy that has taken them over.

        The module itself has no weights afterwards, until it is filled with those of the best
        checkpoint.
        """
        module = self.module
        if shards(self.run.trainer):
            self.module = take_out(module)
        yield
        if hasattr(module, "decision"):
            module.decision = self.module.decision
        self.module = module

    def _length(self) -> RunLength:
        """How long the run is, or how far beyond that a finished one is trained.

        Raises:
            ConfigError: It was extended by more epochs already, or its extension has not ended.
        """
        steps = self.data.batches_per_epoch
        length = RunLength(self.run.length.or_default(), steps, Clock())
        if self.state is None:
            return length
        before = self.state.get("extension")  # none in checkpoints of 0.1
        length.extension = None if before is None else Extension(**before)
        done, wanted = before["epochs"] if before else 0, self.run.extend_epochs or 0
        if not wanted or wanted == done:
            return length
        if wanted < done or not self.state["finished"]:
            ended = self.state["finished"]
            raise ConfigError(
                f"{self.folder.path}: --extend-epochs {wanted}: the run was extended by {done} "
                f"epochs already{'' if ended else ', which have not ended'}; continue with "
                f"--resume alone{', or give a larger number' if ended else ' first'}"
            )
        start = self.state["standing"]["step"]
        length.extension = Extension(wanted, start, start + (wanted - done) * steps)
        self.state |= {"finished": False, "bad_validations": 0}
        return length

    def _fit(self, length: RunLength, callbacks: list[pl.Callback]) -> None:
        """Run Lightning's loop; if it fails, the trackers learn it before the error is raised."""
        limit = length.limit
        if length.extension is not None:
            limit = LengthConfig(max_steps=length.extension.end)
            if self.module.phases is not None:
                self.module.phases = self.module.phases.as_last()
        try:
            with quiet_lightning():
                trainer = build_trainer(
                    self._trainer_config(),
                    limit,
                    callbacks=callbacks,
                    loggers=self.loggers,
                    micro_batches=self.run.loader.micro_batches,
                )
                self._say_hello(trainer)
                self.module.progress = lambda: fraction_done(trainer, length)
                self.trainer = trainer
                trainer.fit(self.module, datamodule=self.data)
        except BaseException:
            tracking.finish(self.loggers, failed=True)
            raise

    def _set_results_aside(self) -> None:
        """Of the run; as its first seed begins, also of all others, which will continue too."""
        above = RunFolder(self.folder.path.parent)
        if above.seed(self.run.seed) == self.folder and above.results_file.is_file():
            for place in (*above.seeds, above):
                place.set_results_aside()
        self.folder.set_results_aside()

    def _trainer_config(self) -> TrainerConfig:
        """The run's; several processes must bear that a phase leaves tensors without gradients."""
        config, phases = self.run.trainer, self.module.phases
        freezes = phases is not None and bool(phases.rates.plan.boundaries())
        processes = config.devices * machines_of(config)
        if freezes and processes > 1 and config.strategy in ("auto", "ddp"):
            return dataclasses.replace(config, strategy=FREEZING)
        return config

    def _say_hello(self, trainer: pl.Trainer) -> None:
        parameters = sum(p.numel() for p in self.module.parameters())
        device = trainer.strategy.root_device
        count = torch.get_num_threads()
        threads = f" ({count} thread{'s' * (count > 1)})" if device.type == "cpu" else ""
        processes = f" in {trainer.world_size} processes" if trainer.world_size > 1 else ""
        flushed = "; denormals flushed to zero" if flush_denormals() else ""
        say(f"training {parameters:,} parameters on {device.type}{threads}{processes}{flushed}")

    def _open_loggers(self, task: str) -> list[Logger]:
        path, group = self.folder.path.absolute(), f"{task} · {self._encoder_name()}"
        name = path.name
        if RunFolder(path.parent).seed(self.run.seed).path == path:  # seeds belong together
            name, group = f"{path.parent.name}/{name}", f"{group} · {path.parent.name}"
        return tracking.loggers(
            self.run.tracking,
            self.folder.path,
            dataclasses.asdict(with_full_paths(self.run)),
            name=name,
            group=group,
            kind=_kind(self.run),
            tags=[task],
            resume=self.run.resume,
            steps=self.state["standing"]["step"] if self.state else 0,
        )

    def _monitor(self, length: RunLength, task: str, unigram_entropy: float | None) -> Monitor:
        data = self.data
        return Monitor(
            length,
            self.run.trainer.log_every_steps,
            flops_per_token=self.module.flops_per_token,
            ceiling_gflops=self._ceiling(),
            unigram_entropy=unigram_entropy,
            peak_gib=self._peak_gib,
            examples_per_unit=data.examples_per_unit if isinstance(data, TaskData) else 1.0,
            show_progress=self.run.trainer.progress,
            title=task,
        )

    def _peak_gib(self) -> float:
        return peak_gib(pick_device(self.run.trainer.accelerator))

    def _watches(self) -> list[pl.Callback]:
        """What looks at the loss of a kind of task while it trains."""
        if self.task is None or self.task.sequences_per_example == 1:
            return []
        return [ChanceWatch(self.task.sequences_per_example, self.module.fraction_done)]

    def _ceiling(self) -> float | None:
        """GFLOPS of matrix products here; for pretraining only, where half a second is nothing."""
        if self.task is not None or not is_first_process():
            return None
        device = pick_device(self.run.trainer.accelerator)
        dtype = MIXED.get(self.run.trainer.precision, torch.float32)
        ceiling = matmul_ceiling(device, dtype if device.type == "cuda" else torch.float32)
        # Processes share the cores that this one has used, unless each gets as many.
        shared = device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
        ceiling *= machines_of(self.run.trainer)
        return ceiling if shared else ceiling * self.run.trainer.devices

    def _write(self, folder: Path, state: dict[str, Any] | None) -> None:
        optimizers = self.trainer.optimizers if self.trainer else []
        self.saver.save(folder, self.module, state, next(iter(optimizers), None))

    def save_tuned(self) -> None:
        """Write the best checkpoint again, whose numbers were tuned on its own answers."""
        if is_first_process():
            self._write(self.folder.checkpoints / "best", None)

    def _encoder_name(self) -> str:
        source = getattr(self.run, "encoder_from", "")
        return "scratch" if source == "none" else Path(source or self.folder.path).absolute().name

    def results(self, task: str, split: str, metrics: dict[str, float], examples: int) -> Results:
        """What results.json holds for every kind of run."""
        return {
            "task": task,
            "split": split,
            "metrics": metrics,
            "examples": examples,
            "seed": self.run.seed,
            "encoder": getattr(self.run, "encoder_from", str(self.folder.path)),
            **({"extended_epochs": self.length.extension.epochs} if self.length.extension else {}),
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "train_seconds": self.seconds,
            "examples_per_second": self.examples_seen / self.seconds if self.seconds else 0.0,
            "peak_gib": max(self.largest_gib, self._peak_gib()),
            **circumstances(),
        }

    def close(self, results: Results) -> None:
        """Hand the results to the trackers, and to those that take them tables and files."""
        tracking.finish(
            self.loggers,
            results,
            shown=lambda: tracking.Shown(
                self._tables(), artifacts_of(self.run, self.folder, results)
            ),
        )

    def _tables(self) -> list[tracking.Table]:
        """Answers to examples that are shown beside the run's numbers."""
        task, data, most = self.task, self.data, self.run.tracking.table_examples
        if task is None or not isinstance(data, TaskData) or not most:
            return []
        from finetune.jobs.answer_tables import answer_tables

        tables = []
        for split in (*task.validation_splits, *task.test_splits):
            if (rows := self.folder.read_predictions(split)) is not None:
                examples = {example.id: example for example in data.examples(split)}
                tables += answer_tables(split, rows, examples, most)
        return tables


def _kind(run: PretrainRun | AdaptRun | FitRun) -> str:
    """What a run does, in the words of the field."""
    if isinstance(run, FitRun):
        return "fine-tune"
    return "adapt" if isinstance(run, AdaptRun) else "pretrain"
