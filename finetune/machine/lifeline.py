"""Connections between the first process of a run and the others, where a launcher started them all.

The others wait here until the first one has prepared the run: so nothing is prepared twice, and a
mistake in the settings is reported once. And whichever process ends early, all others notice it:
torchrun would tell them, srun does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from finetune.errors import ConfigError, FinetuneError
from finetune.machine.processes import Place

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

REACH_SECONDS = 300.0
"""How long the first process may take to start."""
LATE_SECONDS = 20.0
"""How long a first process that ends at once waits for the others to start."""
LOOK_SECONDS = 0.2
_PORTS = 10000
"""Between the port at which the processes meet and that of their lifeline."""
_RELEASED, _FAILED, _ENDED, _DIFFERENT = b"r", b"f", b"e", b"d"
_GREETING = b"finetune, one of "
END_OF_FIRST = "the first process of the run has ended; see its error"
OTHER_COMMAND = (
    "expected one command in all tasks of srun, which do one run together, got another one than in "
    "the first task; for a run of its own in each task, unset SLURM_STEP_ID before finetune"
)


class Lifeline:
    """This process's connections: of the first one to all others, of another one to the first."""

    def __init__(self, place: Place, lost: Callable[[], None]) -> None:
        """Open them.

        Args:
            place: Of this process; all have been started.
            lost: Called in a thread when a process at the other end has ended early.

        Raises:
            FinetuneError: The first process cannot be reached.
        """
        self._place, self._lost = place, lost
        self._greeting = _greeting(place)
        self._told = b""  # to all at the other end, those that come later too
        self._changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._server: socket.socket | None = None
        if place.rank == 0:
            self._server = self._listen()
        else:
            self._connections.append(_reach(place, self._greeting))
        self._is_released = False

    def _listen(self) -> socket.socket:
        host = "" if self._place.machines > 1 else self._place.address
        port = 0 if self._place.by_torchrun else _port(self._place)
        server = socket.create_server((host, port), backlog=self._place.by_launcher)
        if self._place.by_torchrun:  # its store is where the others look for the port
            _publish(self._place, server.getsockname()[1])
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return server

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        greeting, got = self._greeting, b""
        with contextlib.suppress(OSError):
            connection.settimeout(REACH_SECONDS)
            got = connection.recv(len(greeting), socket.MSG_WAITALL)
            if not got.startswith(_GREETING):
                return connection.close()  # some other program that looks for open ports
            connection.settimeout(None)
        if got != greeting:
            _send(connection, _DIFFERENT)
            connection.close()
            return self._lost()
        with self._changed:
            self._connections.append(connection)
            _send(connection, self._told)
            self._changed.notify_all()
        self._watch(connection)

    def _watch(self, connection: socket.socket) -> None:
        """Wait for the end of the process at the other end."""
        try:
            ended_well = connection.recv(1) == _ENDED
        except OSError:
            ended_well = False
        if not ended_well:
            self._lost()

    def wait(self) -> None:
        """In another process: wait until the first one has prepared the run, or its job is over.

        Raises:
            ConfigError: It runs another command.
            FinetuneError: It has failed.
        """
        if self._is_released or self._place.rank == 0:
            return
        (connection,) = self._connections
        try:
            answer = connection.recv(1)
        except OSError:
            answer = b""
        if answer == _DIFFERENT:
            raise ConfigError(OTHER_COMMAND)
        if answer != _RELEASED:
            raise FinetuneError(END_OF_FIRST)
        self._is_released = True
        threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def release(self) -> None:
        """In the first process: let the others go on."""
        if self._place.rank == 0 and not self._is_released:
            self._is_released = True
            self._tell(_RELEASED)

    def fail(self) -> None:
        """In the first process: let those that wait fail, when all of them have come."""
        if self._place.rank == 0 and not self._is_released:
            self._tell(_FAILED)
            self._wait_for_late_ones()

    def end(self) -> None:
        """Let the others know that this process has done its part."""
        self._tell(_ENDED)
        self._wait_for_late_ones()

    def _tell(self, what: bytes) -> None:
        with self._changed:
            self._told += what
            for connection in self._connections:
                _send(connection, what)

    def _wait_for_late_ones(self) -> None:
        """Stay until all others have come: they would look for a process that has ended."""
        wanted = self._place.by_launcher - 1 if self._place.rank == 0 else 1
        with self._changed:
            self._changed.wait_for(lambda: len(self._connections) >= wanted, LATE_SECONDS)

    def close(self) -> None:
        """Cut all connections."""
        for one in [*self._connections, *filter(None, [self._server])]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _send(connection: socket.socket, what: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended, which its watch notices
        connection.sendall(what)


def _greeting(place: Place) -> bytes:
    words = [] if place.by_torchrun else sys.argv[1:]  # which may give each its number
    command = hashlib.blake2b("\0".join(words).encode(errors="replace"), digest_size=8).hexdigest()
    return _GREETING + f"{place.size:06}, {command}\n".encode()


def _reach(place: Place, greeting: bytes) -> socket.socket:
    until = time.monotonic() + REACH_SECONDS
    while time.monotonic() < until:
        port = _published(place) if place.by_torchrun else _port(place)
        if port is not None:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((place.address, port), timeout=5)
                connection.settimeout(None)
                connection.sendall(greeting)
                return connection
        time.sleep(LOOK_SECONDS)
    raise FinetuneError(
        f"process {place.rank + 1} of {place.size} cannot reach the first one on {place.address} "
        f"within {REACH_SECONDS / 60:.0f} minutes; see its error, or start all processes again"
    )


def _port(place: Place) -> int:
    """One that all processes know without asking."""
    assert place.port is not None
    return place.port + _PORTS if place.port < 2 * _PORTS else place.port - _PORTS


_KEY = f"finetune/lifeline/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _store(place: Place) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    assert place.port is not None
    return TCPStore(place.address, place.port, is_master=False, wait_for_workers=False)


def _publish(place: Place, port: int) -> None:
    _store(place).set(_KEY, str(port))


def _published(place: Place) -> int | None:
    store = _store(place)
    return int(store.get(_KEY)) if store.check([_KEY]) else None
