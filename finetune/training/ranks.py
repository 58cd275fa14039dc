"""Several processes that divide what is computed without training: scores, answers, the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from finetune.machine.processes import place

if TYPE_CHECKING:
    import pytorch_lightning as pl

T = TypeVar("T")
Indices = npt.NDArray[np.int64]


def pick_device(accelerator: str) -> torch.device:
    """The device that Lightning takes under this name, for what is computed outside its Trainer."""
    wants_gpu = accelerator in ("auto", "gpu", "cuda")
    if not wants_gpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", place().local_rank) if place().size > 1 else torch.device("cuda")


@dataclass(frozen=True)
class Ranks:
    """The processes that divide a job among themselves, and exchange what they have computed.

    All of them must ask for an exchange, in the same order. Of one process everything is its own.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, trainer: pl.Trainer | None) -> Ranks:
        """Those of a trainer; one process where there is none.

        Where weights are divided among processes, all must take part in each batch: none has a part
        of the batches for itself.
        """
        from pytorch_lightning.strategies import ModelParallelStrategy

        if trainer is None or isinstance(trainer.strategy, ModelParallelStrategy):
            return cls()
        return cls(trainer.global_rank, trainer.world_size)

    def part(self, batches: Sequence[Indices]) -> list[Indices]:
        """This process's part of some batches: an empty one where there are fewer than processes.

        Lightning does not ask a process without a batch for anything, and the others would wait.
        """
        own = list(batches[self.rank :: self.size])
        return own if own or self.size == 1 else [np.empty(0, dtype=np.int64)]

    def merged(self, results: Sequence[T]) -> list[T]:
        """What each process has made of its `part`, in the order of the whole, in every process."""
        parts = self.gathered(list(results))
        turns = zip_longest(*parts, fillvalue=_NONE)
        return [one for turn in turns for one in turn if one is not _NONE]

    def gathered(self, value: T) -> list[T]:
        """The value of each process, in every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def of_first(self, value: T) -> T:
        """The first process's value, in every process."""
        if self.size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values)
        return values[0]

    def agreed(self, action: Callable[[], T]) -> list[T]:
        """Do something in each process; what one cannot write fails in all.

        Returns:
            What each has made of it.

        Raises:
            OSError: It failed in one of them.
        """
        try:
            done: T | OSError = action()
        except OSError as error:
            done = error
        results = self.gathered(done)
        for result in results:
            if isinstance(result, OSError):
                raise result
        return results  # type: ignore[return-value]


ALONE = Ranks()
"""The only process of a job."""
_NONE: Any = object()
