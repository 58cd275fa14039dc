from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from finetune.errors import DataError
from tasks.sources.archives import read_members

FILES = {
    "set/b/2.txt": b"two",
    "set/b/10.txt": b"ten\n\xff",
    "set/a/1.txt": b"",
    "set/a/x.md": b"x",
}
TEXTS = ["set/a/1.txt", "set/b/10.txt", "set/b/2.txt"]
REFUSED = {
    "/etc/passwd.txt": "an absolute one",
    "\\share\\x.txt": "an absolute one",
    "C:\\x.txt": "an absolute one",
    "C:x.txt": "an absolute one",
    "set/../../x.txt": "one with",
    "set\\..\\x.txt": "one with",
    "..": "one with",
}
SPECIAL = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a link",
    tarfile.CHRTYPE: "a device or another special file",
    tarfile.BLKTYPE: "a device or another special file",
    tarfile.FIFOTYPE: "a device or another special file",
}


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, "set/a/1.txt"
    return info


def pack(path: Path, extra: Iterable[tarfile.TarInfo] = (), prefix: str = "") -> Path:
    """Pack the files in the order above, then members without content."""
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        archive.addfile(member("set", tarfile.DIRTYPE))
        for name, content in FILES.items():
            archive.addfile(member(prefix + name, size=len(content)), io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return path


def is_text(name: str) -> bool:
    return name.endswith(".txt")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_is_read_in_the_order_of_its_names(
    name: str, prefix: str, tmp_path: Path
) -> None:
    path = pack(tmp_path / name, prefix=prefix)
    assert list(read_members(path, is_text)) == [(f"{path}:{n}", n, FILES[n]) for n in TEXTS]
    assert os.listdir(tmp_path) == [name]


def test_a_folder_gives_what_the_archive_of_it_gives(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "set" / "c").mkdir()
    found = list(read_members(tmp_path, is_text))
    assert found == [(str(tmp_path / name), name, FILES[name]) for name in TEXTS]


def test_nothing_matches_and_nothing_is_read(tmp_path: Path) -> None:
    assert list(read_members(pack(tmp_path / "x.tar"), lambda name: False)) == []
    assert list(read_members(tmp_path, lambda name: name == "no")) == []


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("archive", ["x.tar", "x.tar.gz"])
def test_a_name_that_reaches_outside_is_refused_before_anything_is_used(
    name: str, archive: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = pack(folder / archive, [member(name)])
    members = read_members(path, is_text)
    with pytest.raises(DataError, match=REFUSED[name]) as error:
        next(members)
    assert f"{path}:{name}: expected" in str(error.value)
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.rglob("*")] == ["in", archive]


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_member_that_is_no_file_is_refused_whether_wanted_or_not(
    kind: bytes, tmp_path: Path
) -> None:
    path = pack(tmp_path / "x.tar.gz", [member("set/b/odd", kind)])
    with pytest.raises(
        DataError,
        match=f"x.tar.gz:set/b/odd: expected files and folders only, got {SPECIAL[kind]}",
    ):
        next(read_members(path, is_text))


def test_two_dots_within_a_name_are_no_step_upwards(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [member("set/a..b.txt")])
    assert "set/a..b.txt" in [name for _, name, _ in read_members(path, is_text)]


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [member("./set/a/1.txt")])
    with pytest.raises(DataError, match="x.tar:set/a/1.txt: expected one member of this name, got"):
        next(read_members(path, is_text))


def noise(path: Path) -> Path:
    """An archive that compression cannot shrink."""
    chance = random.Random(0)
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name in ("1.txt", "2.txt"):
            archive.addfile(member(name, size=20_000), io.BytesIO(chance.randbytes(20_000)))
    return path


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("kept", [0, 1, 100, 512, 10_000, 20_992, 21_504, 25_000])
def test_a_cut_archive_is_an_error(name: str, kept: int, tmp_path: Path) -> None:
    path = noise(tmp_path / name)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=f"{name}: expected a readable archive, got: .+"):
        list(read_members(path, is_text))


def test_an_archive_cut_before_its_last_bytes_is_an_error(tmp_path: Path) -> None:
    path = noise(tmp_path / "x.tar.gz")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match="x.tar.gz: expected a readable archive, got"):
        list(read_members(path, is_text))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = noise(tmp_path / "x.tar.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    with pytest.raises(DataError, match="x.tar.gz: expected a readable archive, got"):
        list(read_members(path, is_text))


def test_a_damaged_header_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar")
    content = bytearray(path.read_bytes())
    content[content.index(b"set/b/10.txt") + 150] ^= 1  # within the header's checksum
    path.write_bytes(content)
    with pytest.raises(DataError, match="got: a cut or damaged archive"):
        list(read_members(path, is_text))


@pytest.mark.parametrize(
    "content", [b"not an archive", gzip.compress(b"not an archive")], ids=["text", "gzip"]
)
def test_what_is_no_archive_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="x.tar.gz: expected a readable archive, got"):
        next(read_members(path, is_text))


def test_an_archive_is_known_by_its_content_where_the_name_is_wrong(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar.gz").rename(tmp_path / "y.tar")
    assert [name for _, name, _ in read_members(path, is_text)] == TEXTS


def test_another_file_and_none_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(
        DataError, match=r"x.zip: expected a folder or an archive \(.tar, .tar.gz, "
    ):
        next(read_members(tmp_path / "x.zip", is_text))
    with pytest.raises(DataError, match="y.tar: expected a readable archive, got: .*No such file"):
        next(read_members(tmp_path / "y.tar", is_text))


def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match="1.txt: expected a readable file, got: .*No such file"):
        next(read_members(tmp_path, is_text))
