"""A training step leaves the device alone: no look at its numbers, nothing from another device.

Torch's device `meta` has shapes and no numbers: what would make the host wait for a GPU, and what
would mix it with the CPU, is an error there. So it is seen without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder
from finetune.encoder.scores import SCORES
from finetune.heads import (
    ALL_POOLINGS,
    Classification,
    HeadConfig,
    MultiLabel,
    MultipleChoice,
    Regression,
    Span,
    SpanConfig,
)
from finetune.text.features.pairs import Features, collate
from finetune.training.config import RegularizationConfig
from finetune.training.loop.accumulation import LabelledMean, labelled
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.optimizer import make_optimizer
from tests.made.nets import tiny_config

CONFIG = tiny_config()
META = torch.device("meta")
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "rotary": {"position": "rotary", "norm_position": "pre"},
    "local": {"position": "rotary", "local_attention": 2},
    "sinusoidal": {"position": "sinusoidal"},
    "causal": {"causal": True},
    "checkpointed": {"gradient_checkpointing": True},
    **{score: {"attention_score": score} for score in SCORES},
}
HEADS: dict[str, tuple[Callable[[], nn.Module], Any, int]] = {
    **{
        pooling: (partial(Classification, CONFIG, HeadConfig(pooling=pooling), 2), 1, 1)
        for pooling in ALL_POOLINGS
    },
    "mixed layers": (partial(Classification, CONFIG, HeadConfig(layers="mix"), 2), 1, 1),
    "weighted": (partial(Classification, CONFIG, HeadConfig(), 2, class_weights=[1.0, 2.0]), 1, 1),
    "regression": (partial(Regression, CONFIG, HeadConfig()), 1.5, 1),
    "multi-label": (partial(MultiLabel, CONFIG, HeadConfig(), 2), [0.0, 1.0], 1),
    "span": (partial(Span, CONFIG, HeadConfig(), SpanConfig()), (1, 2), 1),
    "choice": (partial(MultipleChoice, CONFIG, HeadConfig(), 2), 1, 2),
}
REGULARIZED: dict[str, dict[str, float]] = {
    "r-drop": {"r_drop": 1.0},
    "mixout": {"mixout": 0.5},
    "l2-sp": {"l2_sp": 0.1},
    "smoothed": {"label_smoothing": 0.1},
}


def masked() -> dict[str, Tensor]:
    ids = torch.arange(24).view(3, 8) + 5
    return {"input_ids": ids, "positions": torch.tensor([2, 9]), "labels": torch.tensor([7, 14])}


def padded(label: Any, rows: int = 1) -> dict[str, Tensor]:
    lengths = (5, 7, 4, 6)
    texts = [Features(list(range(5, 5 + n)), [0] * n, label, context=(2, n - 1)) for n in lengths]
    return collate(texts, range(len(lengths) // rows), 0, rows=rows)


def tuner(head: Any, rows: int = 1, **regularization: float) -> FineTuner:
    task: Any = SimpleNamespace(train_split="train", sequences_per_example=rows)
    config = RegularizationConfig(**regularization)  # type: ignore[arg-type]
    return FineTuner(Encoder(CONFIG), head, task, regularization=config)


def step(module: EncoderWithHead, batch: dict[str, Tensor], device: torch.device) -> None:
    """What is done in each step of a run, logged ones included, but for the optimizer's part."""
    module.to(device).train()
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    module.is_logged_step = True
    outputs: Any = module.training_step(moved, 0)
    torch.autograd.backward(outputs["loss"])
    LabelledMean().add(outputs["loss"], labelled(moved["labels"]))
    optimizer = make_optimizer(module.layers(), module.optimizer_config, fused=False)
    module.on_before_optimizer_step(optimizer)
    module.configure_gradient_clipping(optimizer, 1.0)
    assert module.gradient_norm is not None
    assert module.gradient_norm.device.type == device.type


@pytest.mark.parametrize("name", ENCODERS)
def test_pretraining_looks_at_no_number_of_a_step(name: str) -> None:
    step(Pretrainer(Encoder(tiny_config(**ENCODERS[name]))), masked(), META)


@pytest.mark.parametrize("name", HEADS)
def test_fine_tuning_looks_at_no_number_of_a_step(name: str) -> None:
    head, label, rows = HEADS[name]
    step(tuner(head(), rows), padded(label, rows), META)


@pytest.mark.parametrize("name", REGULARIZED)
def test_regularization_looks_at_no_number_of_a_step(name: str) -> None:
    head = Classification(CONFIG, HeadConfig(), 2)
    step(tuner(head, **REGULARIZED[name]), padded(1), META)


def test_a_frozen_part_looks_at_no_number_of_a_step() -> None:
    module = tuner(Classification(CONFIG, HeadConfig(), 2))
    module.phases = SimpleNamespace(frozen_depth=1, current=None)  # type: ignore[assignment]
    step(module, padded(1), META)


def test_a_look_at_a_number_would_be_noticed() -> None:
    class Looks(Pretrainer):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            outputs = super().training_step(batch, batch_idx)
            assert outputs["loss"].item() > 0
            return outputs

    with pytest.raises(RuntimeError, match="item"):
        step(Looks(Encoder(CONFIG)), masked(), META)


@pytest.mark.gpu
@pytest.mark.parametrize("name", HEADS)
def test_a_step_on_a_gpu_waits_for_nothing(name: str) -> None:
    head, label, rows = HEADS[name]
    cuda = torch.device("cuda")
    module, batch = tuner(head(), rows), padded(label, rows)
    step(module, batch, cuda)  # libraries wait when they are first used
    module.zero_grad()
    pinned = {name: tensor.pin_memory() for name, tensor in batch.items()}
    moved = {name: tensor.to(cuda, non_blocking=True) for name, tensor in pinned.items()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(module, moved, cuda)
    finally:
        torch.cuda.set_sync_debug_mode("default")
