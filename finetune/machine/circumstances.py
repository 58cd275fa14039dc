"""What a number may depend on besides the settings: versions, the machine, the day, the command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any

from finetune.machine.memory import GIB, machine_bytes

LIBRARIES = ("torch", "pytorch-lightning", "tokenizers", "transformers", "numpy", "finetune")
_command: ContextVar[str | None] = ContextVar("_command", default=None)


@contextmanager
def recording_command(words: Sequence[str]) -> Iterator[None]:
    """In the block, runs record this command line.

    Args:
        words: Those after `finetune`.
    """
    token = _command.set(shlex.join(["finetune", *words]))
    try:
        yield
    finally:
        _command.reset(token)


def circumstances() -> dict[str, Any]:
    """Under what a run has ended: `versions`, `machine`, `finished`, `command`, `working_folder`.

    `finished` is the date and time with the offset from UTC; `command` the command line as it was
    typed, None from Python; `working_folder` the one that it was typed in.
    """
    return {
        "versions": versions(),
        "machine": machine(),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": _command.get(),
        "working_folder": os.getcwd(),
    }


def versions() -> dict[str, str]:
    """Python and the libraries that a number may depend on."""
    numbers = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            numbers[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def machine() -> dict[str, Any]:
    """The system, the processor with its cores and memory (GiB), and the GPU; None for no GPU."""
    memory = machine_bytes()
    return {
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": None if memory is None else round(memory / GIB, 1),
        "gpu": _gpu(),
    }


def _processor() -> str:
    """The processor's name; on Linux Python knows its architecture only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # not imported for this
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
