"""A run is killed, or the disk is full or fails, at every call by which it changes a file.

Whatever happened, `--resume` (the same command, where nothing had been written yet) ends with the
very files of a run that nothing happened to, and with no others. All calls are tried by
`pytest -m slow` (`make test-all`), a few that are spread over them by every other run of the tests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

import pytest

from tests.faults.cases import (
    COMMANDS,
    Reference,
    World,
    contents,
    differences,
    spread,
    survives_error,
    survives_kill,
    survives_kill_as_it_goes_on,
    survives_kill_as_it_overwrites,
)

SAMPLE = 5
"""Kills of each command that every run of the tests tries."""
ERRORS = {"full": errno.ENOSPC, "failing": errno.EIO}
MID = 2
"""States in which a run is resumed to be killed once more."""


@pytest.fixture(scope="session")
def reference(world: World) -> Callable[[str], Reference]:
    """Gives the uninterrupted run of a command."""
    made: dict[str, Reference] = {}

    def find(command: str) -> Reference:
        if command not in made:
            made[command] = Reference.of(world, command)
        return made[command]

    return find


References = Callable[[str], Reference]


def check(reference: Reference, tried: Iterable[tuple[object, str]]) -> None:
    """Collect what does not survive; a count of what does is printed with pytest -s."""
    lost, count = [], 0
    for point, problem in tried:
        count += 1
        if problem:
            lost.append(f"{point}: {problem}")
            print(lost[-1], flush=True)
    print(f"{reference.command}: {count - len(lost)} of {count} survived", flush=True)
    assert not lost, "\n".join([f"{len(lost)} of {count} did not survive", *lost])


def named(reference: Reference, point: int) -> str:
    call = reference.calls[point - 1]
    path = os.path.relpath(call.path, reference.world.faults.root)
    return f"call {point} of {len(reference.calls)}, {call.name} {path}"


def kills(reference: Reference, points: Iterable[int]) -> None:
    check(reference, ((named(reference, p), survives_kill(reference, p)) for p in points))


def kills_as_it_goes_on(reference: Reference, firsts: Iterable[int], most: int | None) -> None:
    def tried() -> Iterable[tuple[object, str]]:
        for first in firsts:
            seconds = reference.points_after(first)
            for second in seconds if most is None else spread(seconds, most):
                told = survives_kill_as_it_goes_on(reference, first, second)
                yield (f"{named(reference, first)}, then call {second}", told)

    check(reference, tried())


def errors(reference: Reference, number: int, points: Iterable[int]) -> None:
    check(reference, ((named(reference, p), survives_error(reference, p, number)) for p in points))


def kills_as_it_overwrites(reference: Reference, most: int | None) -> None:
    def tried() -> Iterable[tuple[object, str]]:
        points = reference.points_of_overwriting()
        for point in points if most is None else spread(points, most + 2)[1:-1]:
            for how in ("--resume", "--overwrite"):
                told = survives_kill_as_it_overwrites(reference, point, how)
                yield (f"overwriting, call {point}, then {how}", told)

    check(reference, tried())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_command_leaves_the_same_files(command: str, reference: References) -> None:
    found = reference(command)
    found.world.faults.clear()
    assert found.start().status == 0
    assert differences(found.left, contents(found.world.faults.root)) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_some_calls_it_ends_as_if_nothing_had_been(
    command: str, reference: References
) -> None:
    found = reference(command)
    kills(found, spread(found.points(), SAMPLE))


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_once_more_as_it_goes_on_it_ends_as_if_nothing_had_been(
    command: str, reference: References
) -> None:
    found = reference(command)
    kills_as_it_goes_on(found, [spread(found.points(), 3)[1]], 2)


def test_killed_as_it_overwrites_it_goes_on_or_overwrites(reference: References) -> None:
    kills_as_it_overwrites(reference("seeds"), 2)


@pytest.mark.parametrize("disk", ERRORS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_or_failing_disk_is_one_line_and_the_run_can_go_on(
    command: str, disk: str, reference: References
) -> None:
    found = reference(command)
    points = found.points(taking_space=disk == "full")
    errors(found, ERRORS[disk], spread(points, 5)[1:4:2])


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_call_it_ends_as_if_nothing_had_been(
    command: str, reference: References
) -> None:
    found = reference(command)
    kills(found, found.points())


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_call_as_it_goes_on_it_ends_as_if_nothing_had_been(
    command: str, reference: References
) -> None:
    found = reference(command)
    kills_as_it_goes_on(found, spread(found.points(), MID + 2)[1:-1], None)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_call_as_it_overwrites_it_goes_on_or_overwrites(
    command: str, reference: References
) -> None:
    kills_as_it_overwrites(reference(command), None)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ERRORS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_or_failing_disk_at_any_call_is_one_line_and_the_run_can_go_on(
    command: str, disk: str, reference: References
) -> None:
    found = reference(command)
    errors(found, ERRORS[disk], found.points(taking_space=disk == "full"))
