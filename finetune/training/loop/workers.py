"""Batches made by the training process, or by processes that work ahead of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from finetune.errors import ConfigError

Batch = dict[str, Tensor]


def batch_loader(
    dataset: Dataset[Batch], batches: Iterable[npt.NDArray[np.int64]], num_workers: int
) -> DataLoader[Batch]:
    """A loader of given batches.

    Args:
        dataset: Makes the batch of given example numbers.
        batches: Example numbers of each; they have a length.
        num_workers: Processes that make them; 0 = the training process itself.
    """
    return _Loader(
        dataset,
        batch_size=None,  # the data set makes whole batches
        sampler=batches,
        num_workers=num_workers,
        collate_fn=_as_arrays if num_workers else _as_it_is,  # type: ignore[arg-type]
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # not the one that dropout draws from
        pin_memory=torch.cuda.is_available() and not num_workers,
    )


# Of an iterator that could not be made, whose __del__ would show a traceback for want of it.
_MultiProcessingDataLoaderIter._shutdown = True


class _Loader(DataLoader[Batch]):
    """A DataLoader that starts as many workers as were asked for, also on fewer cores.

    They hand over arrays, through a pipe: of tensors, which would go through /dev/shm, a batch that
    finds no place there is lost in a thread of the worker, and waited for without an end.
    """

    def check_worker_number_rationality(self) -> None:
        """Do not warn of more workers than cores."""

    def __iter__(self) -> Any:
        """Batches as tensors, in memory that a GPU reads directly where there is one.

        Raises:
            ConfigError: The workers cannot be started.
        """
        return self._handed_over() if self.num_workers else super().__iter__()

    def _handed_over(self) -> Iterator[Batch]:
        """Start the workers at the first batch: Lightning fails over an error any earlier."""
        before = signal.getsignal(signal.SIGCHLD)
        try:
            batches = super().__iter__()
        except OSError as error:
            raise ConfigError(
                f"num_workers {self.num_workers}: the processes that make batches cannot be "
                f"started ({error.strerror or error}); they need a little shared memory in "
                "/dev/shm: give it more, or set num_workers to 0"
            ) from error
        if threading.current_thread() is threading.main_thread():
            # torch's handler raises at whatever line a worker's death finds the training process,
            # where it may be ignored or leave a lock held; without it the next batch raises.
            signal.signal(signal.SIGCHLD, before)
        yield from map(_as_tensors, batches)


def _as_it_is(batch: Any) -> Any:
    return batch


def _as_arrays(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def _as_tensors(batch: dict[str, npt.NDArray[Any]]) -> Batch:
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    if not torch.cuda.is_available():
        return tensors
    return {name: tensor.pin_memory() for name, tensor in tensors.items()}


def _start_worker(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the training process decides
    torch.set_num_threads(1)  # more would take the training's cores, and stall it
    torch.set_flush_denormal(True)  # a spawned process starts without
