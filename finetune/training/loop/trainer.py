"""Lightning's Trainer, set up as both kinds of run need it."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.imports import _IS_INTERACTIVE
from pytorch_lightning.loggers import Logger
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import (  # type: ignore[attr-defined]
    MisconfigurationException,
)
from torch.nn.parallel import DistributedDataParallel

from finetune.console.output import counted
from finetune.encoder import EncoderConfig
from finetune.encoder.cost import activation_bytes, parameters
from finetune.encoder.encoder import check_compiles
from finetune.errors import ConfigError
from finetune.machine.memory import FLOAT, TRAINED, check_fits
from finetune.machine.processes import place
from finetune.training.config import TrainerConfig
from finetune.training.loop.freed_memory import FreedMemory, keep_freed_memory
from finetune.training.loop.launching import KnownPlace, Processes, machines_of
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.progress import LengthConfig, RunLength
from finetune.training.loop.sharding import FSDP, ShardedProcesses, shards
from finetune.training.ranks import Ranks, pick_device

T = TypeVar("T")

_SENDS_BUFFERS = next(  # as torch names it up to 2.12, and from 2.13 on
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
FREEZING = "ddp_find_unused_parameters_true"
"""Lightning's name of the strategy for processes that leave some tensors without gradients."""
DDP = ("ddp", FREEZING)
SMALLER = "lower vocab_size, hidden_size, intermediate_size or num_hidden_layers"
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Lightning's name of a mixed precision -> the type in which matrices are multiplied."""
REPLICATED = ("auto", "ddp")
"""Strategies under which each device has all weights."""


class StepValidation(pl.Callback):
    """Validates after every so many optimizer steps of the run, whatever is accumulated.

    Lightning counts batches: as an epoch may end with a step of fewer batches, its validations
    would drift away from the steps, into the middle of one.
    """

    NEVER = sys.maxsize

    def __init__(self, every: int) -> None:
        """Validate after every `every`-th step."""
        self.every = every
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the step where the run stands."""
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        """Let Lightning validate behind this batch, or not."""
        before, self._step = self._step, trainer.global_step
        is_due = self._step > before and self._step % self.every == 0
        trainer.val_check_batch = 1 if is_due else self.NEVER


def build_trainer(
    config: TrainerConfig,
    length: LengthConfig,
    *,
    callbacks: Sequence[pl.Callback],
    loggers: Sequence[Logger],
    micro_batches: int = 1,
) -> pl.Trainer:
    """A Trainer that leaves checkpoints, progress and data order to this package.

    Args:
        config: Machine and intervals.
        length: The run's limit; minutes are watched by the Checkpointer.
        callbacks: In the order in which they are to be called.
        loggers: Where metrics go.
        micro_batches: Of each process in a step (`LoaderConfig`).

    Raises:
        ConfigError: Lightning does not know the accelerator, strategy or precision.
    """
    every = config.validate_every_steps
    validation = [StepValidation(every)] if every else []
    # Adam multiplies the first moment of a word that does not occur by 0.9: denormal in 700 steps.
    flush_denormals()
    keep_freed_memory()
    try:
        trainer = pl.Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=machines_of(config),
            strategy=_strategy(config),
            precision=config.precision,  # type: ignore[arg-type]
            deterministic=config.deterministic or None,  # None: as the caller of torch has it
            accumulate_grad_batches=micro_batches,
            gradient_clip_val=config.gradient_clip,
            max_steps=length.max_steps or -1,
            max_epochs=length.max_epochs or -1,  # -1: no limit but the clock's or that of steps
            val_check_interval=1 if every else None,  # StepValidation decides, step by step
            check_val_every_n_epoch=None if every else 1,
            reload_dataloaders_every_n_epochs=1,  # a loader is a function of epoch and position
            use_distributed_sampler=False,  # `OrderedData` has given each process its batches
            num_sanity_val_steps=0,  # validations are where the settings say, and nowhere else
            enable_checkpointing=False,  # `Checkpointer` writes them
            enable_progress_bar=False,  # `ProgressDisplay` shows it
            enable_model_summary=False,
            logger=list(loggers) or False,
            log_every_n_steps=1,  # training figures are written by Monitor, at its own interval
            callbacks=[*callbacks, *validation, FreedMemory()],
            plugins=[KnownPlace(place())],
            # Lightning keeps no file of its own, and finds none: under a batch system it would
            # start from any hpc_ckpt_*.ckpt in this folder, whatever it is given.
            default_root_dir=os.devnull,
        )
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise ConfigError(
            f"accelerator {config.accelerator!r}, devices {config.devices}, strategy "
            f"{config.strategy!r}, "
            f"precision {config.precision!r}: {' '.join(str(error).split())}"
        ) from error
    _leave_signals(trainer)
    return trainer


def _leave_signals(trainer: pl.Trainer) -> None:
    """Let Lightning neither handle signals nor tell other processes of them."""
    trainer._signal_connector = _NoSignals(trainer)
    # It would be sent to all processes in each batch; `StopSignals` needs no collective.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing  # type: ignore[method-assign]


def _nothing() -> None:
    """Send no signal."""


class _NoSignals(_SignalConnector):
    """Leaves signals to the Checkpointer: at SIGTERM Lightning would wait for other processes."""

    def register_signal_handlers(self) -> None:
        """Take over none."""


def _strategy(config: TrainerConfig) -> str | Processes | ShardedProcesses:
    """Lightning's strategy of one device by its name, or this package's of several processes.

    Raises:
        ConfigError: Several processes are wanted where the first one cannot start the others.
    """
    if not shards(config) and config.strategy == FSDP:  # one process has all the weights
        return "auto"
    if config.devices * machines_of(config) == 1 or config.strategy not in ("auto", *DDP, FSDP):
        return config.strategy
    if _IS_INTERACTIVE:
        raise ConfigError(
            f"devices {config.devices}: several processes need a command or a script that can be "
            "started for each of them; in a notebook or an interactive Python, set devices to 1"
        )
    if shards(config):
        return ShardedProcesses(config.devices * machines_of(config))
    # Buffers never change while training: the first process need not send them in each step.
    unused = config.strategy == FREEZING
    sends: dict[str, Any] = {_SENDS_BUFFERS: False}
    return Processes(find_unused_parameters=unused, **sends)


def tell_lightning() -> None:
    """Let Lightning's loggers write in the first process, whatever a shell has left in RANK."""
    rank_zero_only.rank = place().rank  # type: ignore[attr-defined]


def start_ranks(config: TrainerConfig) -> Ranks:
    """Start the processes of a job, or meet those that were started, before anything is trained.

    Raises:
        ConfigError: As for `build_trainer`.
        FinetuneError: One of them has failed.
    """
    if config.devices * machines_of(config) == 1:
        return Ranks()
    with quiet_lightning():
        # Another strategy wants a module, which there is only when something is trained.
        config = dataclasses.replace(config, strategy="ddp")
        trainer = build_trainer(config, LengthConfig(max_steps=1), callbacks=[], loggers=[])
        strategy = trainer.strategy
        assert isinstance(strategy, Processes)
        strategy.launcher.launch(strategy.setup_environment, trainer=trainer)  # type: ignore[union-attr]
    return Ranks(trainer.global_rank, trainer.world_size)


def most_of_all(trainer: pl.Trainer, value: float) -> float:
    """The largest value that any process has, in every process."""
    if trainer.world_size == 1:
        return value
    # On the device that the processes talk through: NCCL takes tensors of a GPU alone.
    tensor = torch.tensor(value, dtype=torch.float64, device=trainer.strategy.root_device)
    largest = trainer.strategy.reduce(tensor, reduce_op="max")
    return float(largest)


def of_first_process(trainer: pl.Trainer, value: T) -> T:
    """The first process's value, in every process: clocks and signals differ, ranks must not."""
    return value if trainer.world_size == 1 else trainer.strategy.broadcast(value)


def fraction_done(trainer: pl.Trainer, length: RunLength) -> float:
    """Fraction of the run behind, the same in every process."""
    fraction = length.fraction(trainer.global_step)
    if length.total_steps is not None or trainer.world_size == 1:
        return fraction
    module = trainer.lightning_module
    assert isinstance(module, EncoderWithHead)
    sent = module.step_weights.shared.fraction  # with the gradient of the last step
    return of_first_process(trainer, fraction) if sent is None else sent


def flush_denormals() -> bool:
    """Treat floats below about 1e-38 as zero: on a CPU they make a step many times slower.

    Returns:
        Whether the processor can do it.
    """
    return torch.set_flush_denormal(True)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning's advice out of the terminal; its errors still come through."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*is smaller than the logging interval.*")
            warnings.filterwarnings("ignore", message=".*in eval mode.*")
            warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # all validate all
            warnings.filterwarnings("ignore", message=".*`srun` command.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # lightning 2.6 on torch 2.13
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_compiler(config: TrainerConfig) -> None:
    """Refuse compiled blocks on a CPU that has no C++ compiler.

    Raises:
        ConfigError: Torch would find none.
    """
    if not config.compile or pick_device(config.accelerator).type != "cpu":
        return
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch
    if shutil.which(compiler) is None:
        raise ConfigError(
            "compile: expected a C++ compiler, which torch.compile needs on a CPU, got none named "
            f"{compiler}; install one, or name it in the environment variable CXX, or leave "
            "compile out"
        )


def check_training(
    config: EncoderConfig,
    trainer: TrainerConfig,
    *,
    language_model: bool = False,
    all_trained: bool = True,
    batch: tuple[int, int] | None = None,
) -> None:
    """Refuse an encoder that cannot be trained on this machine, before any of it is made.

    Args:
        config: The encoder.
        trainer: The device, and how many processes share the machine.
        language_model: Whether the masked-LM head is trained too.
        all_trained: Whether every weight is trained, from some step on.
        batch: Sequences and tokens in each, where these are known.

    Raises:
        ConfigError: The weights with gradients and Adam's moments, or what the backward pass
            keeps of one batch, are more than the memory of the machine or of its GPU; or its blocks
            are to be compiled and cannot be.
    """
    if trainer.compile:
        check_compiles(config)
    weights = parameters(config, language_model=language_model)
    state = weights * (TRAINED if all_trained else FLOAT)
    parts = "weights, gradients and Adam's moments" if all_trained else "weights"
    what = f"training this encoder of {weights:,} parameters ({parts} in float32)"
    if pick_device(trainer.accelerator).type == "cpu":
        copies = 1 if shards(trainer) else trainer.devices  # each process has its own
        check_fits(state * copies, what, SMALLER)
        if batch is not None:
            shape = f"{counted(batch[0], 'sequence')} of {counted(batch[1], 'token')}"
            check_fits(
                activation_bytes(config, *batch),
                f"a training step on {shape}",
                "lower batch_size or max_length",
            )
        return
    check_fits(weights * FLOAT, f"an encoder of {weights:,} parameters", SMALLER)
    if trainer.strategy in REPLICATED and torch.cuda.is_available():
        most = max(
            torch.cuda.get_device_properties(number).total_memory
            for number in range(torch.cuda.device_count())
        )
        check_fits(state, what, SMALLER, most=most, where="the largest GPU here")
