"""How a command goes on after an interruption: started again by the user, torchrun or SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""How often torchrun has started its processes again, and SLURM its job."""


@dataclass
class _Command:
    """What the command line of this process can do after an interruption."""

    resumes: bool = True
    """It has the flag `--resume`."""
    requeue: bool = False
    """Its settings ask to be requeued after SIGUSR1."""


_command = _Command()  # no ContextVar: threads ask, too


@contextmanager
def of_command() -> Iterator[None]:
    """Run a command line in the block, of which nothing is noted yet."""
    global _command
    before, _command = _command, _Command()
    try:
        yield
    finally:
        _command = before


def cannot_resume() -> None:
    """Note that this command has no --resume."""
    _command.resumes = False


def to_continue() -> str:
    """What continues an interrupted command, as advice."""
    return "continue with --resume" if _command.resumes else "run the same command again"


def ask_for_requeue() -> None:
    """Note that the settings of this command ask for it; its job begins later."""
    _command.requeue = True


def is_restart(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this command was started before, and is to continue what it began then."""
    return any(environment.get(name, "").strip("0").isdecimal() for name in COUNTS)


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The SLURM job that this process belongs to, as scontrol names it; None outside of one."""
    array, task = (environment.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")


def requeue_after(error: BaseException, *, wanted: bool | None = None) -> str | None:
    """Have SLURM start the job of this process again, if SIGUSR1 has stopped it.

    Args:
        error: What the stop has raised; of one stop the job is requeued once.
        wanted: Whether the settings ask for it; None: as the command has noted.

    Returns:
        What came of it, in a sentence; None if there was nothing to do.
    """
    is_wanted = _command.requeue if wanted is None else wanted
    is_asked = getattr(error, "signal", None) == signal.SIGUSR1 and not hasattr(error, "requeued")
    job = slurm_job()
    if not (is_wanted and is_asked and job):
        return None
    vars(error)["requeued"] = True
    return requeue(job)


def requeue(job: str) -> str:
    """Have SLURM start a job again.

    Args:
        job: Its number.

    Returns:
        What came of it, in a sentence.
    """
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=False
        )
        reason = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        return f"SLURM job {job} could not be requeued ({reason}); {to_continue()}"
    return f"SLURM job {job} is requeued; it continues from the last checkpoint"
