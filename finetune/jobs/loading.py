"""Checkpoints put to use, without anything that trains: what a folder holds, and what answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.overrides import TorchFunctionMode

from finetune.checkpoints.folder import Checkpoint, load_checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.encoder import Encoder
from finetune.errors import CheckpointError, ConfigError
from finetune.heads import HeadConfig
from finetune.runs.families import make_task
from finetune.runs.folder import say
from finetune.runs.settings import FitRun
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.answering import Answerer, Answering
from finetune.training.ranks import pick_device


class _NoDraws(TorchFunctionMode):
    """Leaves fresh weights as the memory is that they get: for a model that is loaded next.

    Not where a model is trained: what is drawn later depends on these draws.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if getattr(function, "__name__", "") in _DRAWS:
            return args[0] if args else named["tensor"]
        return function(*args, **named)


_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"}


def checkpoint_of(folder: Path, run: FitRun, task: Task) -> Path:
    """Where the weights of a run are: in its folder, or where it took them from as they were."""
    return Path(run.encoder_from) if task.train_split is None else folder


def load_answerer(source: Path, run: FitRun) -> tuple[Answerer, Tokenizer]:
    """The model of a fine-tuning run's best checkpoint, on its device and in eval mode.

    Args:
        source: The run's folder, or a checkpoint's.
        run: Names the task that is to be answered: the run's own or one with the same classes.

    Raises:
        CheckpointError: There is no checkpoint, or its head is for other answers than the task's.
    """
    checkpoint = find_checkpoint(source, run.cache_dir)
    tokenizer = checkpoint.tokenizer()
    return answerer_of(checkpoint, tokenizer, source, run), tokenizer


def answerer_of(
    checkpoint: Checkpoint, tokenizer: Tokenizer, source: Path, run: FitRun
) -> Answerer:
    """The model of a checkpoint; see `load_answerer`, whose source names it in errors."""
    task = make_task(run, checkpoint.labels or None)
    config = checkpoint.encoder_config
    task.bind(tokenizer, checkpoint.head, config)
    with _NoDraws():
        head = task.head(config, HeadConfig.from_dict(checkpoint.head))
        encoder = Encoder(config)
    if checkpoint.head.get("kind") != head.kind:
        raise CheckpointError(
            f"{source}: {task.name} needs a head of the kind {head.kind}, got "
            f"{checkpoint.head.get('kind')}; name a run that was fine-tuned on such a task"
        )
    module = Answerer(encoder, head, task)
    checkpoint.load_into(module)
    module.decision = dict(checkpoint.decision)
    device = pick_device(run.trainer.accelerator)
    if device.type == "cpu" and run.trainer.accelerator not in ("auto", "cpu"):
        say(f"{source}: trained on a {run.trainer.accelerator}; none is available here, using cpu")
    module.to(device).eval()
    return module


def in_int8(module: Answering) -> None:
    """Compute the linear layers of a model's encoder, or of all members' encoders, in 8 bits.

    Raises:
        ConfigError: The model is on a GPU.
    """
    from finetune.encoder.int8 import to_int8

    if next(module.parameters()).device.type != "cpu":
        raise ConfigError("int8 is for the CPU; remove it, or hide the GPU (CUDA_VISIBLE_DEVICES=)")
    for one in getattr(module, "members", [module]):
        to_int8(one.encoder)


def fills_masks(run: Path) -> bool:
    """Whether a folder holds a masked language model, and no task's run."""
    return _is_language_model(run, causal=False)


def writes_on(run: Path) -> bool:
    """Whether a folder holds a causal language model, and no task's run."""
    return _is_language_model(run, causal=True)


def _is_language_model(run: Path, *, causal: bool) -> bool:
    try:
        checkpoint = load_checkpoint(run)
    except CheckpointError:
        return False  # whoever takes it for a task's run says what is wrong with it
    is_model = checkpoint.head.get("kind") == "masked_lm"
    return is_model and checkpoint.encoder_config.causal == causal
