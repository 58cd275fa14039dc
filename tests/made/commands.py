"""A command line in this process or in one of its own, and what it left."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.cli.commands import command_table
from finetune.cli.completion import read_pages
from tasks.__main__ import COMMANDS

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


_FLAG = re.compile(r"(?<![\w\-/=.])--[a-z][a-z\d-]*(?![\w])")
_ELSEWHERE = re.compile(
    r"finetune [a-z]|unknown option|(the|of a|of a pretraining) run\b|train(ed)? with"
    r"|other commands|pip install|sbatch"
)
"""What a message says beside a flag of another command than its own."""
_TRAINING = ("glue", "squad", "race", "classify", "answer", "choose", "pretrain")


@functools.cache
def _flags() -> dict[str, set[str]]:
    """All flags by command, such as `glue` and `inspect heads`."""
    pages = read_pages(command_table(COMMANDS))
    flags = {page.path: {option.flag for option in page.options} for page in pages}
    for word in _TRAINING:  # in the file of a sweep; which of its runs continue, it decides
        flags["sweep"] |= flags[word] - {"--resume", "--overwrite"}
    return flags


def check_advice(words: Sequence[str], complaint: str) -> None:
    """See that a command has each flag that its complaint names, but for those that were given.

    Flags of another command are left out, where the message names that command, or the run.
    """
    kind = " ".join(words[:2])
    known = _flags().get(kind if kind in _flags() else "".join(words[:1]))
    for match in _FLAG.finditer(complaint) if known else ():
        flag, end = match[0], complaint.find(";", match.end())
        text = complaint[: len(complaint) if end < 0 else end]
        if not _ELSEWHERE.search(text) and not any(word.startswith(flag) for word in words):
            both = {flag, flag.replace("--no-", "--"), flag.replace("--", "--no-", 1)}
            assert both & (known or set()), f"{kind} has no {flag}: {complaint}"


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
