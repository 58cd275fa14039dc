"""Commands in forked processes, with a fault at one of the calls by which they change files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    status: int | None
    """Exit status; -N if signal N ended it, None if it hung."""
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last line of stderr; no command may show a traceback."""
        assert "Traceback" not in self.err, self.err
        return self.err.splitlines()[-1] if self.err else ""


@dataclass(frozen=True)
class Call:
    """A call by which a command changed a file."""

    name: str
    takes_space: bool
    path: str


@dataclass(frozen=True)
class Fault:
    """What happens at a call: a signal, or an error; nothing at point 0."""

    point: int = 0
    """Which call below the folder, from 1."""
    signal: int = 0
    """Sent to the process before the call."""
    torn: bool = False
    """Of a call that writes, half is written before the signal."""
    error: int = 0
    """The call's errno; with ENOSPC all later calls that take space fail too."""


def kill(point: int, *, torn: bool = False) -> Fault:
    return Fault(point, signal=signal.SIGKILL, torn=torn)


class Faults:
    """A server that forks a process a command; `root` is the folder whose calls count."""

    def __init__(self, scratch: Path) -> None:
        """Build the library, start the server, and let it import what commands import.

        Args:
            scratch: A folder for the library, the streams and `root`.
        """
        self.scratch, self.root = scratch, scratch / "root"
        self.root.mkdir()
        library = scratch / "preload.so"
        build = ["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "preload.c", "-ldl"]
        subprocess.run(list(map(str, build)), check=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": str(library),
        }
        self.server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.stdin.close()  # type: ignore[union-attr]
        self.server.wait(30)
        self.server.stdout.close()  # type: ignore[union-attr]

    def _ask(self, request: dict[str, Any]) -> Any:
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())  # type: ignore[union-attr]

    def learn(self, *words: object) -> Outcome:
        """Run a command, and let the server import what it imported."""
        outcome = self.run(*words, modules=str(self.scratch / "modules"))
        self._ask({"imports": (self.scratch / "modules").read_text().split()})
        return outcome

    def warm_up(self, *words: object) -> None:
        """Let the server read the settings of a command, so that no child has to look them up."""
        self._ask({"warm_up": [str(word) for word in words]})

    def run(
        self,
        *words: object,
        fault: Fault | None = None,
        trace: bool = False,
        seconds: float = 120,
        environment: dict[str, str] | None = None,
        modules: str = "",
        gib: float = 0,
    ) -> Outcome:
        """Run a command line in a process of its own.

        Args:
            words: Those after `finetune`.
            fault: What happens to it.
            trace: Whether `calls` will be asked for.
            seconds: How long it may take before it counts as hung.
            environment: Further variables.
            modules: File for the names of what it imported.
            gib: Memory that it may take besides what the server has; 0 = any.
        """
        fault = fault or Fault()
        out, err = self.scratch / "out", self.scratch / "err"
        answer = self._ask(
            {
                "words": [str(word) for word in words],
                "cwd": str(self.scratch),
                "root": str(self.root),
                "point": fault.point,
                "signal": int(fault.signal),
                "torn": int(fault.torn),
                "error": fault.error,
                "trace": str(self.scratch / "trace") if trace else "",
                "out": str(out),
                "err": str(err),
                "seconds": seconds,
                "environment": environment or {},
                "modules": modules,
                "bytes": int(gib * 2**30),
            }
        )
        return Outcome(
            answer["status"], out.read_text(errors="replace"), err.read_text(errors="replace")
        )

    def calls(self) -> list[Call]:
        """The calls of the last command that was run with `trace`."""
        lines = (self.scratch / "trace").read_text().splitlines()
        parts = (line.split(" ", 2) for line in lines)
        return [Call(name, space == "1", path) for name, space, path in parts]

    def clear(self) -> None:
        """Empty `root`."""
        shutil.rmtree(self.root)
        self.root.mkdir()
