"""How long a run will take: on this machine, however busy it is now."""

from __future__ import annotations

import time
from typing import Any

import torch

from finetune.jobs.estimate import batch_cost
from finetune.training.config import LoaderConfig, TrainerConfig


class Waiting(torch.nn.Linear):
    """A module whose step waits, as for a processor that others use."""

    def training_step(self, batch: Any, number: int) -> dict[str, torch.Tensor]:
        time.sleep(0.2)
        return {"loss": self(batch["x"]).sum()}


class Data:
    config = LoaderConfig()

    def order(self, epoch: int) -> list[int]:
        return [0] * 8

    def parts_loader(self, epoch: int, parts: int, batches: list[int], own: slice) -> list[Any]:
        return [{"x": torch.ones(2, 3)} for _ in batches]


def test_waiting_for_the_processor_is_no_part_of_the_estimate() -> None:
    data: Any = Data()
    module: Any = Waiting(3, 1)
    seconds, _ = batch_cost(module, data, TrainerConfig(accelerator="cpu"))
    assert 0 < seconds < 0.1
