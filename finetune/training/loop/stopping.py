"""Ctrl-C, SIGTERM and SIGUSR1: all processes of a run stop before the same step.

Whichever process the signal reaches writes a step number into the store through which the processes
have met (torch's TCPStore), and each looks there between two steps. That takes about 60
microseconds and waits for nobody; a collective in each step would make all of them wait.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch

from finetune.machine.restarts import to_continue

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to stop; the last one is what a batch system can be asked to send
(SLURM's --signal=USR1@60)."""
NOTE = "finetune/stop"
"""Key in the store: SIGNAL/STEP, once a process was asked to stop."""
FORWARDED_SECONDS = 2.0
"""Within this time a second signal is the first one, passed on by torchrun or srun."""


class Interrupted(Exception):
    """The run was asked to stop by `signal`; its state is written, if it has begun."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        """Keep the signal that asked and the folder of the state."""
        super().__init__(signal_number, folder)
        self.signal, self.folder = signal_number, folder
        self.message: str | None = None
        """What to say instead, where resuming is not the advice to give."""

    def __str__(self) -> str:
        """Say where the state is, if there is one by now."""
        if self.message is not None:
            return self.message
        if (self.folder / "config.json").is_file():
            return f"stopped; checkpoint saved to {self.folder}; {to_continue()}"
        return "stopped before the first checkpoint; nothing was saved"


class StopSignals:
    """Takes over the signals while a run trains, and says at which step all processes stop."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder of the state, for the message."""
        self.folder = folder
        self._asked: tuple[int, float] | None = None  # signal, and when
        self._handlers: dict[int, Any] = {}
        self._forwarded_seconds = 0.0
        self._steps: list[torch.cuda.Event] = []

    def remember(self) -> None:
        """Note whom the signals belong to, before Lightning's loop begins."""
        for number in STOPPING:
            if (handler := signal.getsignal(number)) is not None:  # None: not one of Python's
                self._handlers[number] = handler

    def take_over(self, trainer: pl.Trainer) -> None:
        """Wait with a stop until the quiet point between two steps."""
        if trainer.world_size > 1:  # torchrun passes on what a terminal has sent to all already
            self._forwarded_seconds = FORWARDED_SECONDS
        for number in self._handlers:
            signal.signal(number, self._ask)

    def give_back(self) -> None:
        """Let the signals belong to whom they belonged before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._asked = number, now
        elif now - self._asked[1] >= self._forwarded_seconds:  # asked twice: at once
            raise Interrupted(number, self.folder)

    @property
    def number(self) -> int | None:
        """The signal that reached this process."""
        return None if self._asked is None else self._asked[0]

    def due(self, trainer: pl.Trainer, step: int) -> int | None:
        """The signal for which the run stops before this step, the same in all processes.

        Args:
            trainer: Its processes; each asks once a step.
            step: Optimizer steps that are behind.
        """
        if trainer.world_size == 1:
            return self.number
        store = torch.distributed.distributed_c10d._get_default_store()
        ahead = self._bound_lead(trainer.strategy.root_device)
        if self.number is not None:
            store.compare_set(NOTE, "", f"{self.number}/{step + ahead}")  # the first one counts
        if not store.check([NOTE]):
            return None
        number, last = map(int, store.get(NOTE).split(b"/"))
        return number if step >= last else None

    def _bound_lead(self, device: torch.device) -> int:
        """Steps that another process may be ahead of this one, or behind.

        On a CPU a step ends when all have taken part in it. The host of a GPU only queues the step:
        here it waits for the step before the last, which all hosts have queued by then.
        """
        if device.type == "cpu":
            return 1
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._steps.append(event)
        if len(self._steps) > 1:
            self._steps.pop(0).synchronize()
        return 2
