"""A command line in this process or in one of its own, and what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit status and both streams."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one line of JSON."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The last line of stderr; no command may show a traceback."""
        assert "Traceback" not in self.err
        return self.err.splitlines()[-1]


Call = Callable[..., Outcome]
Refuses = Callable[..., Outcome]


class Process:
    """A command in a process of its own; it is killed, and tells where it hung, after a time."""

    def __init__(
        self, words: list[str], folder: Path, variables: Mapping[str, str], script: Path | None
    ) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        command = ["-m", "tasks"] if script is None else [str(script)]
        self.popen = subprocess.Popen(
            [sys.executable, *command, *words],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, seconds: float = 300) -> Outcome:
        """Wait for its end."""
        try:
            out, err = self.popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.popen.send_signal(signal.SIGABRT)
            out, err = self.popen.communicate()
        return Outcome(self.popen.returncode, out, err)


Start = Callable[..., Process]
