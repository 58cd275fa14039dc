"""Several processes for one job: started, watched and ended together.

The first process runs the same command again for each of the others and gives them their place.
Their stderr is collected, and printed only if one of them fails. Or torchrun or srun starts all of
them. Either way the others begin when the first one has prepared the job; and whichever fails, all
end soon, with its error: one that waits for an answer of another cannot notice it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

import torch
from lightning_fabric.plugins.environments.lightning import (
    LightningEnvironment,
    find_free_network_port,
)
from lightning_fabric.utilities import distributed as fabric
from pytorch_lightning.strategies import DDPStrategy, ParallelStrategy
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from finetune.errors import FinetuneError
from finetune.machine.lifeline import END_OF_FIRST, Lifeline
from finetune.machine.processes import MARK, Place, join, others_are_started, place
from finetune.machine.restarts import to_continue
from finetune.training.config import TrainerConfig
from finetune.training.loop.meeting import meet_again, part
from finetune.training.ranks import ALONE, Ranks

GRACE_SECONDS = 10.0
"""How long a process whose partner has failed may take to notice it by itself."""
LOOK_SECONDS = 0.2
OTHER_ENDED = "another process of the run has ended; see its error"


class KnownPlace(LightningEnvironment):
    """The processes of a run, as `finetune.machine.processes` finds them.

    In place of what Lightning would guess from the variables of a shell, a batch system's too: its
    own checkpoint at a batch system's signal would be another one than the run's.
    """

    def __init__(self, place: Place) -> None:
        """Keep the place of this process."""
        super().__init__()
        self.place = place
        self._port = place.port

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the other processes are there already."""
        return self.place.launched

    @property
    def main_address(self) -> str:
        """The machine of the first process."""
        return self.place.address

    @property
    def main_port(self) -> int:
        """Where the processes meet; the first one chooses, if none is given."""
        if self._port is None:
            self._port = find_free_network_port()
        return self._port

    def local_rank(self) -> int:
        """Number of this process on its machine."""
        return self.place.local_rank

    def node_rank(self) -> int:
        """Number of this machine."""
        return self.place.machine

    def teardown(self) -> None:
        """Leave the variables as they are."""


def machines_of(config: TrainerConfig) -> int:
    """Machines of a run; one where this process trains by itself."""
    return place().machines if place().here == config.devices else 1


class WatchedProcesses(ParallelStrategy):
    """For a strategy of Lightning: this module's way to start and watch the processes."""

    def _configure_launcher(self) -> None:
        assert isinstance(self.cluster_environment, KnownPlace)
        here = len(self.parallel_devices or ())
        self._launcher = Launcher(self.cluster_environment, here, place().machines)

    def setup_environment(self) -> None:
        """Meet the other processes."""
        with ending_at_once():
            meet_again(place(), self.root_device)
            super().setup_environment()
        atexit.register(part)  # before `end_others`, which was registered earlier


class Processes(WatchedProcesses, DDPStrategy):
    """Lightning's DDP."""


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let SIGTERM end the process in the block, in which Python would not see it for minutes.

    So torchrun ends those that wait for one that will not come.
    """
    if threading.current_thread() is not threading.main_thread() or _others:
        yield
        return
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Launcher(_SubprocessScriptLauncher):
    """Starts the others at the first training, and sees to it that all end if one of them fails."""

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Any = None, **more: Any
    ) -> Any:
        """Run a function in all processes.

        Raises:
            FinetuneError: Another process has failed.
        """
        environment = self.cluster_environment
        assert isinstance(environment, KnownPlace)
        _let_others_go()
        if not environment.creates_processes_externally:
            _start_others(replace(environment.place, port=environment.main_port))
        fabric._set_num_threads_if_needed(num_processes=self.num_processes)
        with _ending_together():
            return function(*args, **more)


_lifeline: Lifeline | None = None
"""To the other processes, where torchrun or srun has started them."""


@contextlib.contextmanager
def taking_part(devices: int) -> Iterator[int]:
    """Take this process's place in a job while the block runs; all its processes end together.

    Those that torchrun or srun has started enter when the first one has prepared the job.

    Args:
        devices: Processes on each machine that the settings want.

    Yields:
        How many there are, which torchrun decides where it has started them.

    Raises:
        ConfigError: An earlier job, or torchrun, started another number of processes.
        FinetuneError: Another process has failed.
    """
    global _lifeline
    here = join(devices)
    count = here.here if here.by_torchrun else devices
    if _over is not None:  # a stage of a job
        yield count
        return
    by_launcher = here.leads or (here.launched and not here.follows and not _others)
    if by_launcher and _lifeline is None:
        _lifeline = Lifeline(here, _end_lost)
    with _ending_together():
        _wait_for_first(count)
        yield count
        _let_others_go()
        if _lifeline is not None:
            _lifeline.end()


_waiting_ranks = ALONE
"""In the first process: those that wait in a job after the first one until this one is prepared."""


def _wait_for_first(devices: int) -> None:
    """Wait until the first process has prepared the job; that one keeps in mind who waits.

    Raises:
        FinetuneError: It has failed.
    """
    global _waiting_ranks
    if _lifeline is not None:
        _lifeline.wait()
    if not torch.distributed.is_initialized() or devices != place().here:
        return
    ranks = Ranks(place().rank, place().size)
    if ranks.rank == 0:
        _waiting_ranks = ranks
    elif not ranks.of_first(False):
        raise FinetuneError(END_OF_FIRST)


def _let_others_go(*, failed: bool = False) -> None:
    """Let the processes that wait for this one begin the job, or fail."""
    global _waiting_ranks
    if _lifeline is not None:
        _lifeline.fail() if failed else _lifeline.release()
    waiting, _waiting_ranks = _waiting_ranks, ALONE
    waiting.of_first(not failed)


def _end_lost() -> None:
    """End this process if it does not notice by itself that another one has ended early."""
    time.sleep(GRACE_SECONDS)
    print(f"finetune: {OTHER_ENDED}", file=sys.stderr, flush=True)
    os._exit(2)


@dataclass
class _Other:
    """A process that this one has started."""

    rank: int
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]

    def failure(self) -> str | None:
        """What it complained of if it has failed, a line."""
        status = self.process.poll()
        if not status:
            return None
        if (complaint := self.complaint()) is not None:
            return complaint
        name = f"process {self.rank + 1} of {place().size}"
        if status < 0:
            return (
                f"{name} was ended by {_signal_name(-status)}; if memory ran out, lower batch_size "
                f"or devices; {to_continue()}"
            )
        print(self._text(), file=sys.stderr, flush=True)  # a traceback: a fault of ours
        return f"{name} failed with exit status {status}"

    def complaint(self) -> str | None:
        """The error that it has printed, if it has; it may not have ended yet."""
        messages = [line for line in self._text().splitlines() if line.startswith("finetune: ")]
        errors = [line for line in messages if not line.startswith("finetune: warning:")]
        return errors[-1].removeprefix("finetune: ") if errors else None

    def _text(self) -> str:
        # No seek, which would move the place where the process itself writes.
        return os.pread(self.stderr.fileno(), 1 << 24, 0).decode(errors="replace").strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_others: list[_Other] = []


def _start_others(first: Place) -> None:
    """Run the command of this process again, for each of the others on this machine."""
    # Left by torchrun in a shell, it would let the first process wait for a server that is gone.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    for number in range(1, first.here):
        environment = {**os.environ, MARK: first.mark(number), "LOCAL_RANK": str(number)}
        stderr = tempfile.TemporaryFile()
        process = subprocess.Popen(
            _own_command(), env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        _others.append(_Other(first.rank + number, process, stderr))
    atexit.register(end_others)
    others_are_started()
    if _over is not None:
        threading.Thread(target=_watch, args=(_over,), daemon=True).start()


def _own_command() -> list[str]:
    import __main__

    if __main__.__spec__ is None:
        return [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    return [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]


class StoppedTogether(Exception):
    """Another process was asked to stop, by `signal`, and this one has to end with it."""

    def __init__(self, message: str, signal_number: int) -> None:
        """Keep the signal."""
        super().__init__(message)
        self.signal = signal_number


_over: threading.Event | None = None
"""Set at the end of the job that this process takes part in; None outside of one."""


@contextlib.contextmanager
def _ending_together() -> Iterator[None]:
    """End with the error of another process where that has failed; and the others with this one."""
    global _over
    if _over is not None:  # the training of a job
        yield
        return
    _over = over = threading.Event()
    if _others:
        threading.Thread(target=_watch, args=(over,), daemon=True).start()
    try:
        yield
    except BaseException as error:
        over.set()
        if _lost_another(error) and (failure := _failure(GRACE_SECONDS)) is not None:
            raise failure from error
        end_others()
        if not _others or _lifeline is not None:
            with contextlib.suppress(RuntimeError):
                _let_others_go(failed=True)
            if _lifeline is not None and hasattr(error, "signal"):  # all were asked to stop
                _lifeline.end()
        if _lost_another(error):  # started by torchrun or srun: it prints its error itself
            raise FinetuneError(OTHER_ENDED) from error
        raise
    finally:
        _over = None
        over.set()


def _lost_another(error: BaseException) -> bool:
    """Whether a process noticed that another one is gone; gloo and NCCL share no type of error."""
    signs = ("gloo", "NCCL", "onnection", "TCPStore", "ocket", "ProcessGroup")  # C or c, S or s
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _failure(seconds: float) -> Exception | None:
    """What to end with if one of the others fails within so many seconds."""
    until = time.monotonic() + seconds
    complaints: list[tuple[_Other, str]] = []
    while _others and time.monotonic() < until:
        complaints = [(one, text) for one in _others if (text := one.failure()) is not None]
        # Of several the one that failed first, which does not complain of another one.
        causes = [one for one in complaints if one[1] != OTHER_ENDED]
        if causes:
            return _as_error(*causes[0])
        time.sleep(LOOK_SECONDS)
    # On a busy machine it takes seconds to end, and its connections are closed before.
    complaints += [(one, text) for one in _others if (text := one.complaint()) is not None]
    return _as_error(*complaints[0]) if complaints else None


def _as_error(other: _Other, complaint: str) -> Exception:
    stopped_by = (other.process.returncode or 0) - 128
    if stopped_by in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        return StoppedTogether(complaint, stopped_by)
    return FinetuneError(complaint)


def _watch(over: threading.Event) -> None:
    """End this process if it waits on, for one that has failed."""
    while not over.wait(LOOK_SECONDS):
        if any(other.process.poll() for other in _others) and not over.wait(GRACE_SECONDS):
            try:
                print(f"finetune: {_failure(1.0)}", file=sys.stderr, flush=True)
                end_others()
            finally:  # even where nobody reads; the main thread cannot be reached
                os._exit(2)


def end_others() -> None:
    """End what this process has started: the others write nothing that could be lost."""
    for other in _others:
        if other.process.poll() is None:
            other.process.kill()
            other.process.wait()
