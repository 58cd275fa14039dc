"""What a corpus is read from: files, folders and data sets by their names, and pieces of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError, DataError

HUB = "hf://"
KINDS = (".txt", ".txt.gz", ".tokens", ".tokens.gz", ".jsonl", ".jsonl.gz", ".parquet")
"""Kinds of files with text."""


@dataclass(frozen=True)
class HubSource:
    """A data set named `hf://NAME[@CONFIG][:SPLIT[:FIELD]]`; NAME may be a local folder."""

    name: str
    """Name on the hub or folder."""
    config: str | None
    """Configuration, such as `wikitext-103-raw-v1`."""
    split: str
    """Split, `train` unless named."""
    field: str | None
    """Field with the text; None for the `text_field` setting."""

    def __str__(self) -> str:
        """Its address."""
        name = f"{self.name}@{self.config}" if self.config else self.name
        return ":".join(filter(None, (f"{HUB}{name}", self.split, self.field)))

    @classmethod
    def parse(cls, address: str) -> HubSource:
        """Read an address.

        Raises:
            DataError: The address names no data set or has too many parts.
        """
        name, *rest = address.removeprefix(HUB).split(":")
        name, _, config = name.partition("@")
        if not name or len(rest) > 2:
            raise DataError(f"{address}: expected {HUB}NAME[@CONFIG][:SPLIT[:FIELD]]")
        split, field = [*rest, "", ""][:2]
        return cls(name, config or None, split or "train", field or None)


@dataclass(frozen=True)
class Piece:
    """A part of a source that is read alone; a whole source where nothing else is said."""

    source: Path | HubSource
    """The file or data set."""
    begin: int = 0
    """Byte at which its first document begins."""
    end: int | None = None
    """Byte after its last document; None: the end of the file."""
    articles: bool | None = None
    """Whether a title begins a document; None: the first document tells."""
    part: tuple[int, int] = (0, 1)
    """Of a data set: number of the part, and how many parts there are."""

    @property
    def file(self) -> Path:
        """The source, which is a file."""
        return Path(str(self.source))

    @property
    def size(self) -> int:
        """Bytes to read; 0 if that is not known."""
        if isinstance(self.source, HubSource):
            return 0
        return (self.source.stat().st_size if self.end is None else self.end) - self.begin


def split_weight(name: str) -> tuple[str, float | None]:
    """Split an input of a corpus into its path and its weight.

    Args:
        name: `PATH` or `PATH:WEIGHT`. A path that exists is a path, also with a colon in it.

    Returns:
        Path and weight, None where there is none.

    Raises:
        ConfigError: The weight is not a positive number.

    >>> split_weight("news:0.7"), split_weight("C:/news"), split_weight("hf://imdb:train")
    (('news', 0.7), ('C:/news', None), ('hf://imdb:train', None))
    """
    path, colon, last = name.rpartition(":")
    if not colon or not path or Path(name).exists():
        return name, None
    try:
        weight = float(last)
    except ValueError:
        if Path(path).exists():
            raise ConfigError(
                f"corpus: expected {path}:WEIGHT, such as {path}:0.5, got '{name}'"
            ) from None
        return name, None
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"corpus: expected a weight above 0 after the colon, got '{name}'")
    return path, weight


def corpus_sources(paths: Sequence[str | Path]) -> list[Path | HubSource]:
    """Find all that the paths name: each file once, in sorted order, then the hub data sets.

    Args:
        paths: Files, folders (searched to the bottom; files of other kinds and hidden ones are
            passed over) and `hf://` addresses; a weight after a colon is passed over.

    Raises:
        DataError: A path does not exist, is a file of an unknown kind, or is a folder with no
            corpus file in it.
    """
    names = [split_weight(str(path))[0] for path in paths]
    addresses = sorted({name for name in names if name.startswith(HUB)})
    files = {
        file.resolve(): file  # a file that two paths name is read once
        for path in names
        if not path.startswith(HUB)
        for file in _files_under(Path(path))
    }
    named = [files[path] for path in sorted(files)]  # the order of arguments must not matter
    return [*named, *(HubSource.parse(address) for address in addresses)]


def _files_under(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and _is_corpus_file(file)]
        if not files:
            raise DataError(f"{path}: expected files ending in {_kinds()}, got none")
        return files
    if not path.exists():
        raise DataError(f"{path}: no such corpus file or folder")
    if kind(path) not in KINDS:
        raise DataError(f"{path}: cannot read this kind of file; expected one of {_kinds()}")
    return [path]


def _is_corpus_file(file: Path) -> bool:
    return kind(file) in KINDS and not file.name.startswith(".")


def _kinds() -> str:
    return ", ".join(KINDS)


def kind(file: Path) -> str:
    """Say what kind of file it is: its ending, with `.gz` if packed, such as `.txt.gz`."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def digest(source: Path | HubSource) -> str:
    """Hash what a source contains, so that a changed corpus is noticed.

    Args:
        source: A file, whose bytes count and whose name does not, or a hub data set, whose
            revision counts.

    Returns:
        Hexadecimal digits.

    Raises:
        DataError: The source cannot be read.
    """
    if isinstance(source, HubSource):
        with readable(HUB + source.name):
            import datasets

            builder = datasets.load_dataset_builder(source.name, source.config)
        return f"{builder.hash}:{source.split}:{source.field}"
    try:
        with source.open("rb") as file:
            return f"{kind(source)}:{hashlib.file_digest(file, 'blake2b').hexdigest()}"
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def open_hub(source: HubSource) -> Any:
    """Open a data set so that its rows are read one after another.

    Raises:
        DataError: It cannot be read.
    """
    return stream(HUB + source.name, source.name, name=source.config, split=source.split)


def stream(where: str, path: str, **options: Any) -> Any:
    """Open a data set through `datasets` so that rows arrive as they are asked for.

    Args:
        where: Its name, for the message.
        path: What `datasets.load_dataset` opens.
        options: Its further arguments.

    Raises:
        DataError: It cannot be opened.
    """
    with readable(where):
        import datasets

        return datasets.load_dataset(path, streaming=True, **options)


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn what `datasets` raises into one line."""
    try:
        yield
    except ImportError as error:
        raise DataError(f"{where}: needs the package `datasets`: pip install datasets") from error
    except Exception as error:  # datasets, pyarrow, fsspec and the hub each have their own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{where}: cannot be read as a data set: {reason}") from error
