"""The others wait for the first process, and each notices the end of one that ends early."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from finetune.errors import ConfigError, FinetuneError
from finetune.machine import lifeline
from finetune.machine.lifeline import Lifeline
from finetune.machine.processes import Place

SECONDS = 10
Make = Callable[[int], tuple[Lifeline, threading.Event]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make an end of a lifeline between three processes, and what is set when it loses one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(lifeline, "_port", lambda place: port)

    made: list[Lifeline] = []

    def end(rank: int) -> tuple[Lifeline, threading.Event]:
        lost = threading.Event()
        made.append(Lifeline(Place(rank, 3, True, 1), lost.set))
        return made[-1], lost

    yield end
    for one in made:
        one.close()


def test_the_others_wait_until_the_first_is_ready(make: Make) -> None:
    first, _ = make(0)
    (second, _), ready = make(1), threading.Event()
    waiting = threading.Thread(target=lambda: (second.wait(), ready.set()), daemon=True)
    waiting.start()
    assert not ready.wait(0.2)
    first.release()
    assert ready.wait(SECONDS)
    late, _ = make(2)  # comes when the others have gone on
    late.wait()
    second.wait()  # a second job: nothing to wait for


def test_tasks_with_different_commands_are_no_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, is_lost = make(0)
    monkeypatch.setattr("sys.argv", ["finetune", "pretrain", "--seed", "2"])
    with pytest.raises(ConfigError, match="expected one command in all tasks of srun, .* unset"):
        make(1)[0].wait()
    assert is_lost.wait(SECONDS)


def test_they_fail_with_the_first(make: Make) -> None:
    first, _ = make(0)
    ends = threading.Thread(target=first.fail)  # before the others have come
    ends.start()
    for rank in (1, 2):
        assert ends.is_alive()
        with pytest.raises(FinetuneError, match="the first process of the run has ended; see its"):
            make(rank)[0].wait()
    ends.join(SECONDS)
    assert not ends.is_alive()


def test_an_early_end_is_noticed_and_a_good_one_is_not(make: Make) -> None:
    first, first_lost = make(0)
    (second, _), (third, third_lost) = make(1), make(2)
    first.release()
    second.wait()
    third.wait()
    second.end()
    second._connections[0].shutdown(socket.SHUT_RDWR)  # as the system does when it has ended
    assert not first_lost.wait(0.2)
    third._connections[0].shutdown(socket.SHUT_RDWR)  # and when it was killed
    assert first_lost.wait(SECONDS)
    assert third_lost.wait(SECONDS)


def test_a_program_that_looks_for_open_ports_is_no_process(make: Make) -> None:
    first, lost = make(0)
    port = lifeline._port(Place())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n......")  # as long as what is expected
        assert connection.recv(1) == b""
    assert not lost.wait(0.2)
    assert first._connections == []


def test_a_first_process_that_never_starts_is_not_waited_for_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "REACH_SECONDS", 0.5)
    with pytest.raises(FinetuneError, match="process 2 of 3 cannot reach the first one on 127.0"):
        make(1)
