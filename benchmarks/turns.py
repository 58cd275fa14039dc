"""Contestants that take turns, each in a process of its own, and what their turns say.

Other load on the machine affects all of them alike, so the ratio of two turns of the same round is
valid where single figures are not. Use a quiet machine even so: processes on the same cores stall
each other.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")
OURS, LIMIT = "ours", "limit"
Turn = Callable[[], float]
Settings = dict[str, Any]


class TurnFailed(Exception):
    """A contestant could not be made, or failed in its turn."""


@dataclass(frozen=True)
class Contest:
    """One line of the table, or several: one for each peer."""

    name: str
    contestants: Mapping[str, str]
    """Name -> MODULE:FUNCTION, which takes the settings and returns a turn: a call that gives what
    a unit costs, in seconds or GiB. `ours` is one of them; `limit`, if there is one, costs what
    cannot be saved; the others are peers. To the settings come `threads`, the contestant's name and
    a `folder` that is removed in the end."""
    unit: str = "s"
    """Of what the table shows: `s`, `ms` or `GiB` for a cost, `X/s` for units a second."""
    amount: float = 1.0
    """Units of X that one unit of cost stands for."""
    rounds: int = 5
    warm_up: int = 0
    """Rounds before these that do not count."""
    settings: Settings = field(default_factory=dict)

    @property
    def peers(self) -> list[str]:
        """All but ours and the limit."""
        return [name for name in self.contestants if name not in (OURS, LIMIT)]

    def shown(self, cost: float) -> float:
        """A cost in the table's unit."""
        if self.unit.endswith("/s"):
            return self.amount / cost
        return cost * (1e3 if self.unit == "ms" else 1)


class Processes:
    """A process for each contestant, with so many threads; all end with the block."""

    def __init__(self, threads: int) -> None:
        """Start none yet: a process starts with its first contest.

        Args:
            threads: That each may use.
        """
        self.threads = threads
        self._started: dict[str, tuple[Connection, BaseProcess]] = {}

    def __enter__(self) -> Processes:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End all of them."""
        for name in [*self._started]:
            self._end(name)

    def take_rounds(self, contest: Contest) -> dict[str, list[float]]:
        """Let each contestant have its turn, round after round.

        Args:
            contest: Who takes part.

        Returns:
            Name -> its costs, of each round that counts.

        Raises:
            TurnFailed: A contestant failed; the message has its last lines.
        """
        costs: dict[str, list[float]] = {name: [] for name in contest.contestants}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for name, place in contest.contestants.items():
                settings = {**contest.settings, "contestant": name, "threads": self.threads}
                settings["folder"] = str(Path(folder) / name)
                self._connection(name).send((place, settings))  # all are made at once
            for name in costs:
                self._answer(name)
            for number in range(contest.warm_up + contest.rounds):
                for name, values in costs.items():
                    self._connection(name).send(None)
                    cost = self._answer(name)
                    if number >= contest.warm_up:
                        values.append(cost)
        return costs

    def _connection(self, name: str) -> Connection:
        if name not in self._started:
            context = multiprocessing.get_context(
                "spawn"
            )  # torch reads OMP_NUM_THREADS when loaded
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,))
            with _in_environment(environment(self.threads)):
                process.start()
            there.close()  # so that the end of the process is the end of the pipe
            self._started[name] = here, process
        return self._started[name][0]

    def _answer(self, name: str) -> float:
        try:
            answer = self._connection(name).recv()
        except EOFError:
            answer = "its process has ended"
        if isinstance(answer, str):
            for other in [*self._started]:  # the others may be at work for this contest
                self._end(other)
            raise TurnFailed(f"{name}: {answer}")
        return float(answer)

    def _end(self, name: str) -> None:
        here, process = self._started.pop(name)
        here.close()
        process.kill()
        process.join()


def ratios(costs: Sequence[float], others: Sequence[float]) -> list[float]:
    """How many times as much the others cost, round by round."""
    return [other / cost for cost, other in zip(costs, others, strict=True)]


def lines_of(contest: Contest, costs: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """What the rounds say of ours beside each peer.

    Returns:
        A line for each peer: medians in the table's unit, the median of the paired ratios, the
        smallest and the largest of them, and the ratio that the limit has.
    """
    lines = []
    for peer in contest.peers:
        paired = ratios(costs[OURS], costs[peer])
        line: dict[str, Any] = {"row": contest.name, "peer": peer, "unit": contest.unit}
        line |= {"ours": contest.shown(statistics.median(costs[OURS]))}
        line |= {"theirs": contest.shown(statistics.median(costs[peer]))}
        line |= {"ratio": statistics.median(paired), "spread": [min(paired), max(paired)]}
        if LIMIT in costs:
            line["limit"] = statistics.median(ratios(costs[LIMIT], costs[peer]))
        lines.append({**line, "rounds": contest.rounds})
    return lines


def environment(threads: int | None) -> dict[str, str]:
    """Of a contestant's process: no network, our packages found from anywhere, so many threads."""
    root = str(Path(__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    added = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths)}
    added |= {"TOKENIZERS_PARALLELISM": "true" if threads and threads > 1 else "false"}
    if threads:  # before torch is loaded, which reads it once; the other is of tokenizers
        added |= {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    return {**os.environ, **added}


@contextmanager
def _in_environment(changed: dict[str, str]) -> Iterator[None]:
    """Let processes that are started in the block have another environment."""
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(there: Connection) -> None:
    """Be a contestant: make the turn of a contest, then take one whenever asked."""
    log = _own_output()  # a run writes to the terminal, which has the table
    turn: Turn | None = None
    try:
        while True:
            asked = there.recv()
            if asked is None and turn is not None:
                there.send(turn())
                continue
            turn = None  # before the next one is made: its memory
            place, settings = asked
            module, _, function = place.partition(":")
            Path(settings["folder"]).mkdir()
            turn = getattr(importlib.import_module(module), function)(settings)
            there.send(0.0)
    except EOFError:  # nobody asks any more
        return
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        log.seek(0)
        there.send("\n".join(log.read().decode(errors="replace").splitlines()[-15:]))


def _own_output() -> IO[bytes]:
    """Let this process write to a file that nobody else sees."""
    log = tempfile.TemporaryFile(buffering=0)
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    return log


def peak_gib() -> float:
    """Largest resident memory of this process, GiB; not that of the process which started it."""
    try:
        return status("VmHWM") / 2**20
    except (OSError, StopIteration):  # no Linux
        unit = 2**30 if sys.platform == "darwin" else 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def reset_peak() -> int:
    """Let the kernel count this process's peak from now on; its memory now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> int:
    """A size of this process in KiB, by its name in /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def in_own_process(function: Callable[..., T], *what: object) -> T:
    """What a function gives in a process of its own, whose memory is no other's."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *what).result()
