"""What every family asks when it reads its files.

The data folder, the file of a split (plain or gzipped), its bytes and its text, and what must hold
whatever the form: known splits, ids of their own, and texts to train on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from finetune.console.output import counted
from finetune.errors import ConfigError, DataError, nearest
from finetune.files.placeholders import refuse_placeholder
from finetune.files.unpacking import DAMAGED, unpacked, without_sheet
from finetune.task.interface import Example
from finetune.text.features.rows import FROM_UTF16, FROM_WINDOWS, UTF16_MARKS
from finetune.text.tokenizer.tokenizer import is_empty

BY_DATA = "--data DIR (or FINETUNE_DATA) names the folder with"
"""How to say where official files are."""
LISTED = 5
"""Bad rows that a message names."""


def data_folder(data: Path | None) -> Path | None:
    """The data folder that was given, or the one that the variable FINETUNE_DATA names."""
    if data is None and os.environ.get("FINETUNE_DATA"):
        return Path(os.environ["FINETUNE_DATA"])
    return data


def plain_or_gzipped(files: Iterable[Path]) -> list[Path]:
    """Each file, followed by the same with `.gz` behind its name."""
    return [path for file in files for path in (file, file.with_name(f"{file.name}.gz"))]


def is_file(path: Path) -> bool:
    """Whether there is such a file, or such a workbook of the sheet that is named."""
    return Path(without_sheet(path)).is_file()


def first_of(
    candidates: Iterable[Path], missing: str, exists: Callable[[Path], bool] = is_file
) -> Path:
    """The first file that is there.

    Args:
        candidates: Where it may be, the best first.
        missing: The message where there is none.
        exists: What counts as being there.

    Raises:
        DataError: There is none.
    """
    for path in candidates:
        if exists(path):
            return path
    raise DataError(missing)


def official_file(name: str, split: str, files: Sequence[Path], hint: str) -> Path:
    """The file of a split, plain or gzipped.

    Args:
        name: The task, for the message.
        split: Our name of the split, for the message.
        files: Where it may be, the best first.
        hint: How to name another one.

    Raises:
        DataError: There is none.
    """
    missing = f"expected the {split} file of {name} at {files[0]} (or .gz), got none; {hint}"
    return first_of(plain_or_gzipped(files), missing)


def read_bytes(path: Path) -> bytes:
    """Read a whole file, unpacked if its name ends in .gz.

    Raises:
        DataError: It cannot be read, is damaged, or is a git-lfs pointer or a web page.
    """
    try:
        content = path.read_bytes()
        refuse_placeholder(content, path, DataError)
        if path.suffix == ".gz":
            content = unpacked(content, path)
            refuse_placeholder(content, path, DataError)
    except DAMAGED as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from error
    return content


def decode(content: bytes, where: Path | str) -> str:
    """Decode UTF-8, with or without a byte order mark.

    Raises:
        DataError: It is not UTF-8 (file, line and offset of the byte).
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        way_out = FROM_UTF16 if content.startswith(UTF16_MARKS) else FROM_WINDOWS
        offset = error.start
        line = 1 + content.count(b"\n", 0, offset)
        raise DataError(
            f"{where}:{line}: expected UTF-8, got the byte 0x{content[offset]:02x} at offset "
            f"{offset}; {way_out}"
        ) from error


def check_split(name: str, split: str, splits: Collection[str]) -> None:
    """Refuse a split that a task does not have.

    Raises:
        DataError: The task has no such split.
    """
    if split not in splits:
        raise DataError(f"{name} has no split '{split}'; {nearest(split, splits)}")


class NamedSplits:
    """The splits of a task on the user's own files: those that a file was named for."""

    files: Mapping[str, Path]
    """Split -> file."""

    @property
    def train_split(self) -> str | None:
        """`train`, if a file was named for it."""
        return "train" if "train" in self.files else None

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """`validation`, if a file was named for it."""
        return tuple(split for split in ("validation",) if split in self.files)

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`, if a file was named for it."""
        return tuple(split for split in ("test",) if split in self.files)


def check_files(name: str, files: Mapping[str, Path], splits: Collection[str]) -> None:
    """Refuse a file that was named for a split that a task does not have.

    Raises:
        ConfigError: The task has no such split.
    """
    for split, path in files.items():
        if split not in splits:
            raise ConfigError(
                f"{name} has no {split} split, got the file {path} for it; {nearest(split, splits)}"
            )


def line_list(places: Sequence[str]) -> str:
    """The lines of several rows, `: lines 3, 5, 9, …`; nothing of a single one."""
    if len(places) < 2:
        return ""
    lines = ", ".join(place.rpartition(":")[2].removeprefix(" row ") for place in places[:LISTED])
    return f": lines {lines}{', …' * (len(places) > LISTED)}"


class BadRows:
    """The rows of a file that cannot be used, reported together."""

    def __init__(self) -> None:
        """Start without any."""
        self._reasons: list[str] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._reasons)

    def add(self, error: DataError) -> None:
        """Keep what is wrong with a row."""
        self._reasons.append(str(error))

    @contextmanager
    def collected(self) -> Iterator[None]:
        """In the block, what is wrong with a row is kept for the report."""
        try:
            yield
        except DataError as error:
            self.add(error)

    def report(self, file: Path, count: int, hint: str = "correct them") -> None:
        """Refuse a file that has such rows.

        Args:
            file: The file.
            count: Rows that were read.
            hint: What to do about them.

        Raises:
            DataError: There are some. One is named by itself; of several the first five.
        """
        if len(self._reasons) == 1:
            raise DataError(self._reasons[0])
        if self._reasons:
            more = len(self._reasons) - LISTED
            listed = [*self._reasons[:LISTED], *([f"and {more:,} more"] if more > 0 else [])]
            raise DataError(
                f"{file}: expected rows to learn from, got {len(self._reasons):,} of {count:,} "
                f"that cannot be used; {hint}" + "".join(f"\n  {line}" for line in listed)
            )


class UniqueIds:
    """The ids of a file's rows, none of them twice."""

    def __init__(self) -> None:
        """Start without any."""
        self._places: dict[str, str] = {}

    def add(self, identity: int | str, where: str, hint: str = "") -> None:
        """Take the id of a row; 1 and "1" are the same, as keys of a predictions file are.

        Raises:
            DataError: Another row has it.
        """
        if str(identity) in self._places:
            raise DataError(
                f"{where}: expected an id of its own, got {identity!r} a second time, first at "
                f"{self._places[str(identity)]}{hint}"
            )
        self._places[str(identity)] = where


def check_texts(examples: Sequence[Example], where: Path) -> None:
    """Refuse training examples without any text.

    Raises:
        DataError: Every text is empty.
    """
    if all(is_empty(text) for example in examples for text in example.texts):
        raise DataError(
            f"{where}: expected texts to train on, got all of them empty "
            f"({counted(len(examples), 'example')})"
        )
