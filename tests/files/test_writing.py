"""A file or folder is written whole or not at all; what is no regular file is streamed into."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.files import writing as files
from finetune.files.writing import (
    new_file,
    new_folder,
    old_of,
    settle,
    sweep,
    write_bytes,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_file_appears_with_its_folder_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with new_file(path) as file:
        file.write("ä\n")
        assert not path.exists()
    assert path.read_bytes() == "ä\n".encode()
    write_bytes(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("stage", ["fsync", "replace", "fdopen"])
def test_a_full_disk_leaves_the_old_file_and_names_it(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_text(path, "old\n")
    monkeypatch.setattr(*((files, "_opened") if stage == "fdopen" else (os, stage)), full)
    with pytest.raises(OSError, match="No space") as raised:
        write_text(path, "new\n")
    assert raised.value.filename == str(path)
    assert path.read_text() == "old\n"
    assert names(tmp_path) == ["file"]


def test_an_error_of_what_is_written_stays_as_it_is(tmp_path: Path) -> None:
    def rows() -> Iterator[str]:
        yield "one\n"
        yield (tmp_path / "missing").read_text()

    with pytest.raises(FileNotFoundError) as raised, new_file(tmp_path / "file") as file:
        file.writelines(rows())
    assert raised.value.filename == str(tmp_path / "missing")

    def refused() -> Iterator[str]:
        try:
            full()
        except OSError:
            raise DataError("in its own words") from None
        yield ""

    with pytest.raises(DataError), new_file(tmp_path / "file") as file:
        file.writelines(refused())
    assert names(tmp_path) == []


def test_a_file_may_be_read_by_whom_the_umask_or_the_old_file_says(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with umask(0o027):
        write_text(path, "")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write_text(path, "more")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    kept = tmp_path / "elsewhere" / "file"
    link, chain = tmp_path / "link", tmp_path / "chain"
    link.symlink_to(Path("elsewhere") / "file")
    chain.symlink_to(link)
    for content in ("first", "second"):  # the first makes what the link points to
        write_text(chain, content)
        assert kept.read_text() == content
        assert kept.is_file()
        assert not kept.is_symlink()
    assert os.readlink(chain) == str(link)
    assert names(tmp_path) == ["chain", "elsewhere", "link"]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links"):
        write_text(loop, "")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "folder", "")
    with pytest.raises(NotADirectoryError):
        write_text(Path(__file__) / "file", "")


def device(tmp_path: Path, minor: int) -> Path:
    """A device like /dev/null (3) or /dev/full (7) that root, too, may lose."""
    if os.geteuid():  # who is not root cannot replace the real ones
        return Path({3: "/dev/null", 7: "/dev/full"}[minor])
    path = tmp_path / f"device-{minor}"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        path.read_bytes() if minor == 3 else None
    except PermissionError:
        pytest.skip("no device can be made here")
    return path


@pytest.mark.parametrize("linked", [False, True])
def test_a_device_is_written_to_and_stays(linked: bool, tmp_path: Path) -> None:
    for minor in (3, 7):
        path = place = device(tmp_path, minor)
        if linked:
            path = tmp_path / f"link-{minor}"
            path.symlink_to(place)
        if minor == 3:
            write_text(path, "gone\n")
        else:
            with pytest.raises(OSError, match="No space") as raised:
                write_text(path, "too much\n")
            assert raised.value.filename == str(path)
        assert stat.S_ISCHR(place.stat().st_mode)
        assert path.is_symlink() == linked


def test_a_pipe_is_streamed_into(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through\n")
    reader.join(30)
    assert got == ["through\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


WRITES = """
import sys; from pathlib import Path; from finetune.files.writing import write_text
write_text(Path(sys.argv[1]), "written\\n")
"""


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_a_descriptor_is_written_where_it_stands(path: str, kind: str, tmp_path: Path) -> None:
    """As `--output /dev/stdout >> log` wants it: what the log holds already stays."""
    words = [sys.executable, "-c", WRITES, path]
    if kind == "pipe":
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=60)
        assert done.stdout == b"written\n"
        return
    log = tmp_path / "log"
    with log.open("w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run(words, stdout=file, check=True, timeout=60)
        subprocess.run(["echo", "after"], stdout=file, check=True, timeout=60)
    assert log.read_text() == "before\nwritten\nafter\n"


def test_a_file_that_may_not_be_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "file", "kept")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everything
    with pytest.raises(PermissionError):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "kept"


# Folders


def filled(folder: Path, content: str, **more: Any) -> None:
    with new_folder(folder, **more) as made:
        (made / "file").write_text(content)


def content(folder: Path) -> str:
    return (folder / "file").read_text()


def test_a_folder_replaces_the_old_one_when_it_is_complete(tmp_path: Path) -> None:
    for text in ("first", "second"):
        filled(tmp_path / "it", text)
        assert content(tmp_path / "it") == text
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "it"):
        raise KeyboardInterrupt
    assert content(tmp_path / "it") == "second"
    assert names(tmp_path) == ["it"]


def test_a_folder_of_another_name_is_left_alone(tmp_path: Path) -> None:
    for name in ("it", "it.old", "it.tmp"):
        filled(tmp_path / name, name)
    filled(tmp_path / "it", "new")
    assert [content(tmp_path / name) for name in ("it", "it.old", "it.tmp")] == [
        "new",
        "it.old",
        "it.tmp",
    ]


def test_a_link_to_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "it").symlink_to(tmp_path / "disk" / "it")
    for text in ("first", "second"):
        filled(tmp_path / "it", text)
        assert content(tmp_path / "disk" / "it") == text
    assert (tmp_path / "it").is_symlink()


def test_what_another_process_completed_first_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "it"

    def is_whole(folder: Path) -> bool:
        return (folder / "file").is_file() and content(folder) != "damaged"

    with new_folder(place, is_whole=is_whole) as made:
        (made / "file").write_text("second")
        filled(place, "first", is_whole=is_whole)
    assert content(place) == "first"
    (place / "file").write_text("damaged")
    filled(place, "third", is_whole=is_whole)
    assert content(place) == "third"
    assert names(tmp_path) == ["it"]


# Kills


class Killed(BaseException):
    """The process is gone: nothing runs after it."""


def test_a_replacement_that_was_cut_off_is_settled(tmp_path: Path) -> None:
    place = tmp_path / "it"
    filled(old_of(place), "old")
    settle(tmp_path)  # killed between the two renames
    assert content(place) == "old"
    filled(old_of(place), "older")
    (tmp_path / f"{files.TEMPORARY}left").mkdir()
    settle(tmp_path)  # killed after them
    assert content(place) == "old"
    assert names(tmp_path) == ["it"]


@pytest.mark.parametrize("make", [lambda p: p.write_text("half"), Path.mkdir])
def test_leftovers_of_the_dead_are_swept_and_those_of_the_living_stay(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    dead, living = tmp_path / f"{files.TEMPORARY}dead", tmp_path / f"{files.TEMPORARY}living"
    make(dead)
    make(living)
    if living.is_dir():
        (dead / "file").write_text("half")
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    write_text(tmp_path / "file", "whole")
    assert names(tmp_path) == [living.name, "file"]
    os.close(descriptor)
    sweep(tmp_path)
    assert names(tmp_path) == ["file"]


def test_what_is_being_written_is_not_swept(tmp_path: Path) -> None:
    with new_file(tmp_path / "one") as file, new_folder(tmp_path / "two") as folder:
        file.write("1")
        write_text(tmp_path / "three", "3")
        sweep(tmp_path)
        (folder / "file").write_text("2")
    assert names(tmp_path) == ["one", "three", "two"]


def test_folder_that_another_process_removes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, calls = os.mkdir, []

    def removed_meanwhile(path: Path, mode: int = 0o777) -> None:
        calls.append(path)
        if files.TEMPORARY in str(path) and len(calls) == 1:
            raise FileExistsError(errno.EEXIST, "it was there, and is removed by now", str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", removed_meanwhile)
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("1")
    assert (tmp_path / "made" / "file").read_text() == "1"


HAMMERS = """
import sys; from pathlib import Path; from finetune.files.writing import new_folder, write_text
folder, name = Path(sys.argv[1]), sys.argv[2]
for number in range(40):
    write_text(folder / f"{name}-{number}", name)
    with new_folder(folder / f"folder-{name}-{number}") as made:
        (made / "file").write_text(name)
"""


def test_processes_that_write_into_one_folder_sweep_nothing_of_each_other(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", HAMMERS, str(tmp_path), name]) for name in "abc"
    ]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert len(names(tmp_path)) == 3 * 80
