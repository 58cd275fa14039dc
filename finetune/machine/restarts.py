"""Commands that a launcher or a batch system starts again after an interruption."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping

COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""How often torchrun has started its processes again, and SLURM its job."""


def is_restart(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this command was started before, and is to continue what it began then."""
    return any(environment.get(name, "").strip("0").isdecimal() for name in COUNTS)


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The SLURM job that this process belongs to, as scontrol names it; None outside of one."""
    array, task = (environment.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")


@functools.cache  # once, however many runs of this process are stopped
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
        return f"SLURM job {job} could not be requeued ({reason}); continue with --resume"
    return f"SLURM job {job} is requeued; it continues from the last checkpoint"
