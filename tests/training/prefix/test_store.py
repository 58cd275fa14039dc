from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from finetune.files.writing import locked_file
from finetune.training.prefix import store as prefix_store
from finetune.training.prefix.store import (
    Entry,
    Rows,
    States,
    Writer,
    clear,
    digest,
    filling,
    find_states,
    free_space,
    list_entries,
)

LENGTHS = np.array([3, 1, 4, 2])
HUGE = 1 << 40


def entry_of(name: str = "group-01-weights", precision: str = "fp32") -> Entry:
    return Entry(name, "made up", 1, 5, precision, 4, 10, digest(LENGTHS.tobytes()))


def states_of(rows: list[int], length: int = 4) -> Tensor:
    hidden = torch.randn(4, length, 5, generator=torch.Generator().manual_seed(0))
    real = torch.arange(length) < torch.from_numpy(LENGTHS)[:, None]
    return (hidden * real[..., None])[rows]


def store(folder: Path, entry: Entry) -> None:
    with Writer(folder, entry, LENGTHS) as writer:
        writer.write(np.array([2, 0]), states_of([2, 0]))
        writer.write(np.array([3, 1]), states_of([3, 1])[:, :3])
        writer.finish()


def age(folder: Path, name: str, seconds: float) -> None:
    os.utime(folder / f"{name}.json", (1e9 - seconds, 1e9 - seconds))


def opened(folder: Path, entry: Entry, lengths: Rows = LENGTHS) -> tuple[States | None, list[str]]:
    notes: list[str] = []
    return find_states(folder, entry, lengths, notes.append), notes


def test_states_come_back_bit_equal_padded_with_zeros(tmp_path: Path) -> None:
    store(tmp_path, entry_of())
    states, notes = opened(tmp_path, entry_of())
    assert states is not None
    assert notes == []
    for rows, length in (([0, 1, 2, 3], 4), ([3, 3, 0], 7), ([1], 1)):
        assert torch.equal(
            states.read(np.array(rows), length), states_of(rows, 4)[:, :length]
        ) or torch.equal(states.read(rows, length)[:, :4], states_of(rows, 4))
    assert not states.read([0], 9)[:, 3:].any()


def test_only_real_tokens_take_room(tmp_path: Path) -> None:
    for precision, size in (("fp32", 4), ("bf16", 2)):
        entry = entry_of(f"g-01-{precision}", precision)
        store(tmp_path, entry)
        assert (tmp_path / f"{entry.name}.states").stat().st_size == 10 * 5 * size == entry.bytes


def test_bf16_states_are_rounded_once(tmp_path: Path) -> None:
    entry = entry_of(precision="bf16")
    store(tmp_path, entry)
    states, _ = opened(tmp_path, entry)
    assert states is not None
    read = states.read([0, 1, 2, 3], 4)
    assert read.dtype == torch.float32
    assert torch.equal(read, states_of([0, 1, 2, 3]).bfloat16().float())
    torch.testing.assert_close(read, states_of([0, 1, 2, 3]), rtol=2**-8, atol=0)


def test_an_entry_that_lacks_a_sequence_never_appears(tmp_path: Path) -> None:
    with Writer(tmp_path, entry_of(), LENGTHS) as writer:
        writer.write([0, 2, 3], states_of([0, 2, 3]))
        with pytest.raises(ValueError, match="lack sequence 1"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_interrupted_filling_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with Writer(tmp_path, entry_of(), LENGTHS) as writer:
            writer.write([0], states_of([0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path, entry_of()) == (None, [])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[77] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


@pytest.mark.parametrize(
    ("ending", "damage", "message"),
    [
        ("states", flip, "content does not fit its checksum"),
        ("states", cut_short, "it has 196 bytes instead of 200"),
        ("json", lambda path: path.write_text("{"), "manifest cannot be read"),
        ("json", lambda path: path.write_text("[]"), "manifest cannot be read"),
        ("json", lambda path: path.write_bytes(b"\xff"), "manifest cannot be read"),
        (
            "json",
            lambda path: path.write_text(path.read_text().replace('"format": 1', '"format": 0')),
            "written by another version",
        ),
        (
            "json",
            lambda path: path.write_text(path.read_text().replace('"width": 5', '"width": 50')),
            "belongs to something else",
        ),
    ],
)
def test_damage_is_noticed_and_removed(
    tmp_path: Path, ending: str, damage: object, message: str
) -> None:
    store(tmp_path, entry_of())
    damage(tmp_path / f"{entry_of().name}.{ending}")  # type: ignore[operator]
    states, notes = opened(tmp_path, entry_of())
    assert states is None
    assert len(notes) == 1
    assert message in notes[0]
    assert "computed again" in notes[0]
    assert list(tmp_path.iterdir()) == []


def test_an_older_entry_with_a_hash_is_still_checked_and_read(tmp_path: Path) -> None:
    store(tmp_path, entry_of())
    manifest, states = (tmp_path / f"{entry_of().name}.{end}" for end in ("json", "states"))
    content = hashlib.blake2b(states.read_bytes(), digest_size=16).hexdigest()
    fields = json.loads(manifest.read_text())
    assert fields["content"] == f"{zlib.crc32(states.read_bytes()):08x}"
    manifest.write_text(json.dumps(fields | {"content": content}))
    assert opened(tmp_path, entry_of())[1] == []
    flip(states)
    assert "content does not fit its checksum" in opened(tmp_path, entry_of())[1][0]


def test_stale_entry_of_other_lengths_or_shape_is_noticed(tmp_path: Path) -> None:
    for change in ({"lengths": "other"}, {"width": 6}, {"rows": 5}, {"depth": 2}):
        store(tmp_path, entry_of())
        states, notes = opened(tmp_path, replace(entry_of(), **change))  # type: ignore[arg-type]
        assert states is None
        assert "belongs to something else" in notes[0]


def test_room_is_made_by_removing_what_was_not_used_for_longest(tmp_path: Path) -> None:
    names = ["a-01-w", "b-01-w", "c-01-w"]
    for seconds, name in zip((10, 30, 20), names, strict=True):
        store(tmp_path, entry_of(name))
        age(tmp_path, name, seconds)
    assert free_space(tmp_path, 200, 600) == 200
    assert [entry.name for entry in list_entries(tmp_path)] == ["a-01-w", "c-01-w"]


def test_opening_counts_as_use(tmp_path: Path) -> None:
    for seconds, name in ((20, "a-01-w"), (10, "b-01-w")):
        store(tmp_path, entry_of(name))
        age(tmp_path, name, seconds)
    states, _ = opened(tmp_path, entry_of("a-01-w"))
    assert states is not None
    states.close()
    free_space(tmp_path, 200, 400)
    assert [entry.name for entry in list_entries(tmp_path)] == ["a-01-w"]


def test_what_is_open_or_needed_is_not_removed(tmp_path: Path) -> None:
    for name in ("open-01-w", "needed-01-w", "free-01-w"):
        store(tmp_path, entry_of(name))
    states, _ = opened(tmp_path, entry_of("open-01-w"))
    assert states is not None
    assert free_space(tmp_path, 600, 600, keep=["needed-01-w"]) == 200
    assert {entry.name for entry in list_entries(tmp_path)} == {"open-01-w", "needed-01-w"}
    states.close()


def test_states_stay_readable_after_their_removal(tmp_path: Path) -> None:
    store(tmp_path, entry_of())
    states, _ = opened(tmp_path, entry_of())
    assert states is not None
    for path in list(tmp_path.iterdir()):
        path.unlink()
    assert torch.equal(states.read([2], 4), states_of([2]))


def test_what_is_being_filled_counts_whole(tmp_path: Path) -> None:
    with Writer(tmp_path, entry_of(), LENGTHS):
        assert free_space(tmp_path, HUGE, 1000) == 800


def test_remnants_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "group-02-old.partial").write_bytes(b"x" * 50)
    other = tmp_path / "other-02-old.partial"
    with open(locked_file(other), "wb"):  # a living process fills it
        with filling(tmp_path, "group", pytest.fail):
            assert list(tmp_path.glob("*.partial")) == [other]
    with filling(tmp_path, "group", pytest.fail):
        assert list(tmp_path.glob("*.partial")) == []


def test_second_filler_waits_and_says_so(tmp_path: Path) -> None:
    notes: list[str] = []
    done = threading.Event()

    def second() -> None:
        with filling(tmp_path, "group", notes.append):
            done.set()

    with filling(tmp_path, "group", pytest.fail):
        thread = threading.Thread(target=second)
        thread.start()
        assert not done.wait(0.2)
    thread.join(10)
    assert done.is_set()
    assert "waiting for another run" in notes[0]


def test_list_says_what_is_there_last_used_first(tmp_path: Path) -> None:
    for seconds, name in ((20, "a-01-w"), (10, "b-01-w")):
        store(tmp_path, entry_of(name))
        age(tmp_path, name, seconds)
    (tmp_path / "broken.json").write_text("?")
    assert [(e.name, e.about, e.depth, e.bytes) for e in list_entries(tmp_path)] == [
        ("b-01-w", "made up", 1, 200),
        ("a-01-w", "made up", 1, 200),
    ]
    assert list_entries(tmp_path / "nothing") == []


def test_clear_removes_all_but_what_is_open(tmp_path: Path) -> None:
    for name in ("a-01-w", "b-01-w"):
        store(tmp_path, entry_of(name))
    (tmp_path / "c-01-w.partial").write_bytes(b"x" * 50)
    (tmp_path / "d-01-w.states").write_bytes(b"x" * 50)  # killed before its manifest
    states, _ = opened(tmp_path, entry_of("a-01-w"))
    assert states is not None
    assert clear(tmp_path) > 300
    assert {path.stem for path in tmp_path.iterdir()} == {"a-01-w"}
    states.close()
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert clear(tmp_path / "nothing") == 0


def test_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prefix_store.os, "pwrite", full)
    with pytest.raises(OSError, match="No space"), Writer(tmp_path, entry_of(), LENGTHS) as writer:
        writer.write([0], states_of([0]))
    assert list(tmp_path.iterdir()) == []


def test_room_is_bounded_by_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs(tmp_path)
    assert free_space(tmp_path, 10, HUGE * 1000) <= usage.f_frsize * usage.f_blocks


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(
        prefix_store.os, "pwrite", lambda file, data, offset: write(file, data[:7], offset)
    )
    store(tmp_path, entry_of())
    states, notes = opened(tmp_path, entry_of())
    assert states is not None
    assert torch.equal(states.read([0, 1, 2, 3], 4), states_of([0, 1, 2, 3]))


def test_unfinished_entry_is_locked_against_removal(tmp_path: Path) -> None:
    with Writer(tmp_path, entry_of(), LENGTHS):
        clear(tmp_path)
        partial = tmp_path / f"{entry_of().name}.partial"
        assert partial.exists()
        with partial.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
