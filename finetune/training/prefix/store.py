"""Hidden states on disk: unpadded, checked, within a budget, shared by processes.

A folder has two files an entry (the hidden states of a set of sequences at one depth):
NAME.states, the states of all tokens one after the other, and NAME.json, the manifest, which is
written last. Files NAME.partial are being filled; *.lock keep processes apart (`flock`, so a lock
ends with its process). Nothing here knows of a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from finetune.errors import DataError
from finetune.files.writing import locked_file, remove_unused, sweep, write_json
from finetune.machine.restarts import to_continue

FORMAT = 1
"""Of the files; another number makes older entries unknown."""
GIB = 1 << 30

Rows = npt.NDArray[np.int64]
Note = Callable[[str], None]
"""Called with one line that a user should know."""

_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16}
_BYTES: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(np.int16),
}  # numpy has no bfloat16


def token_bytes(width: int, precision: str) -> int:
    """Bytes of a token's hidden state of that width (D)."""
    return width * _BYTES[precision].itemsize


@dataclass(frozen=True)
class Entry:
    """What a manifest says: the hidden states of a set of sequences at one depth."""

    name: str
    """Of its files; made of the keys of the sequences and of the weights."""
    about: str
    """The set in words, for people."""
    depth: int
    """Blocks below the boundary."""
    width: int
    """Numbers a token, D."""
    precision: str
    """fp32 or bf16."""
    rows: int
    """Number of sequences, N."""
    tokens: int
    """Real tokens of all sequences."""
    lengths: str
    """Hash of the sequences' lengths."""
    content: str = ""
    """Checksum of the states."""
    encoder: str = ""
    """What the encoder is called, for people; empty in entries of 0.1."""

    @property
    def bytes(self) -> int:
        """Size of the states."""
        return self.tokens * token_bytes(self.width, self.precision)

    @property
    def group(self) -> str:
        """What depths of the same sequences and embeddings share: they are filled together."""
        return self.name.partition("-")[0]


def digest(*parts: bytes | str | memoryview) -> str:
    """Hash some parts, the bounds between them included: 32 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


class States:
    """An entry that was found whole; no other process removes it while it is open."""

    def __init__(self, folder: Path, entry: Entry, lengths: Rows) -> None:
        """Open the file and check it, which also brings it into memory where that suffices.

        Args:
            folder: The cache.
            entry: As it should be; its `content` is read from the manifest.
            lengths: Tokens of each sequence (N,).

        Raises:
            FileNotFoundError: There is no such entry.
            ValueError: It is damaged or of another form.
            OSError: It cannot be read.
        """
        self.entry = _manifest(folder / f"{entry.name}.json")
        # The names for people and the content are none of what distinguishes entries.
        was = self.entry
        if was != replace(entry, about=was.about, encoder=was.encoder, content=was.content):
            raise ValueError("its manifest belongs to something else")
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._path = folder / f"{entry.name}.states"
        self._file = file = os.open(self._path, os.O_RDONLY)
        self.close = weakref.finalize(self, _unlock, file)
        """Lets others remove the entry."""
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            self._check(file)
        except BaseException:
            self.close()
            raise
        with suppress(OSError):  # a folder that may only be read serves as well
            os.utime(folder / f"{entry.name}.json")

    def _check(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size != self.entry.bytes:
            raise ValueError(f"it has {size:,} bytes instead of {self.entry.bytes:,}")
        if _checksum(file, self.entry.content) != self.entry.content:
            raise ValueError("its content does not fit its checksum")

    def read(self, rows: Sequence[int] | Rows, length: int) -> Tensor:
        """The states of some sequences, zeros behind each one's end.

        Args:
            rows: Numbers of the sequences (B,).
            length: T, at least that of the longest.

        Returns:
            float32 (B, T, D), on the CPU.

        Raises:
            DataError: The file was cut short since it was opened.
        """
        numbers = np.asarray(rows, dtype=np.int64)
        # Torch's memory is aligned, as numpy's is not: kernels round by where a row begins.
        kind = torch.float32 if self.entry.precision == "fp32" else torch.int16
        padded = torch.zeros(len(numbers), length, self.entry.width, dtype=kind)
        states, ends = padded.numpy(), self._starts[numbers + 1]
        for row, (start, end) in enumerate(zip(self._starts[numbers], ends, strict=True)):
            self._read_into(states[row, : end - start], int(start))
        return padded.view(_STORED[self.entry.precision]).float()

    def _read_into(self, states: npt.NDArray[Any], token: int) -> None:
        # Through the file and not a map: where it is cut short, a map kills the process.
        offset = token * token_bytes(self.entry.width, self.entry.precision)
        left = states.data.cast("B") if states.size else memoryview(b"")
        while left:
            done = os.preadv(self._file, [left], offset)
            if not done:
                raise DataError(
                    f"{self._path}: expected {self.entry.bytes:,} bytes, got that the file was "
                    f"cut short while a run reads it; {to_continue()}, it is made again"
                )
            left, offset = left[done:], offset + done


def _unlock(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may hold a copy of the file
    os.close(file)


class Writer:
    """Fills an entry; it appears only when every sequence was written."""

    def __init__(self, folder: Path, entry: Entry, lengths: Rows, *, makes: bool = True) -> None:
        """Reserve the file under another name.

        Args:
            folder: The cache.
            entry: What is written.
            lengths: Tokens of each sequence (N,).
            makes: Whether to make the file; if not, another process of the run has, and finishes.

        Raises:
            OSError: The folder cannot be written.
        """
        self.folder, self.entry, self.lengths = folder, entry, lengths
        self._starts = (np.cumsum(lengths) - lengths) * token_bytes(entry.width, entry.precision)
        self.written = np.zeros(len(lengths), dtype=bool)
        """Which sequences were written (N,)."""
        self._makes = makes
        self._partial = folder / f"{entry.name}.partial"
        # Locked until the manifest is there: whoever frees space must not take it for a remnant.
        self._file = open(locked_file(self._partial) if makes else self._partial, "r+b")
        if makes:
            os.ftruncate(self._file.fileno(), entry.bytes)  # so that others count it whole

    def __enter__(self) -> Writer:
        """Enter."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind unless it was finished."""
        self._file.close()
        if self._makes:
            self._partial.unlink(missing_ok=True)

    def write(self, rows: Sequence[int] | Rows, hidden: Tensor) -> None:
        """Store the states of some sequences without their padding.

        Args:
            rows: Numbers of the sequences (B,).
            hidden: (B, T, D) on the CPU.
        """
        stored = hidden.detach().to(_STORED[self.entry.precision]).contiguous()
        if self.entry.precision == "bf16":
            stored = stored.view(torch.int16)
        numbers = np.asarray(rows, dtype=np.int64)
        for states, row in zip(stored.numpy(), numbers.tolist(), strict=True):
            self._put(states[: self.lengths[row]], int(self._starts[row]))
        self.written[numbers] = True

    def _put(self, states: npt.NDArray[Any], offset: int) -> None:
        # Through the file and not a map: on a full disk a map kills the process.
        left = np.ascontiguousarray(states).data.cast("B") if states.size else memoryview(b"")
        while left:
            done = os.pwrite(self._file.fileno(), left, offset)
            left, offset = left[done:], offset + done

    def finish(self) -> None:
        """Let the entry appear.

        Raises:
            ValueError: A sequence is missing.
            OSError: The disk is full.
        """
        if not self.written.all():
            missing = int(np.flatnonzero(~self.written)[0])
            raise ValueError(f"the batches to fill the cache from lack sequence {missing}")
        os.fsync(self._file.fileno())  # the states before the manifest that vouches for them
        written = replace(self.entry, content=_checksum(self._file.fileno()))
        self._partial.replace(self.folder / f"{self.entry.name}.states")
        write_json(self.folder / f"{self.entry.name}.json", asdict(written) | {"format": FORMAT})


def _checksum(file: int, expected: str = "") -> str:
    """Sum up a whole file against damage, fast; where a hash is expected (older entries), hash."""
    state, crc, offset, older = hashlib.blake2b(digest_size=16), 0, 0, len(expected) == 32
    buffer = memoryview(bytearray(1 << 20))
    while count := os.preadv(file, [buffer], offset):  # a map of a file cut short kills the process
        content = buffer[:count]
        crc = crc if older else zlib.crc32(content, crc)
        state.update(content if older else b"")
        offset += count
    return state.hexdigest() if older else f"{crc:08x}"


def _manifest(path: Path) -> Entry:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != FORMAT:
            raise ValueError("it was written by another version")
        return Entry(**fields)
    except (TypeError, KeyError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError("its manifest cannot be read") from error


def find_states(folder: Path, entry: Entry, lengths: Rows, note: Note) -> States | None:
    """Open an entry; one that is damaged is removed, with a note, so that it is filled again.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        return States(folder, entry, lengths)
    except FileNotFoundError:
        return None
    except ValueError as error:
        note(f"{folder / entry.name}.states: {error}; these hidden states are computed again")
        _remove(folder, entry.name)
        return None


@contextmanager
def filling(folder: Path, group: str, note: Note) -> Iterator[None]:
    """Keep other processes from filling the same group; wait for one that does.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{group}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"{folder}: waiting for another run that is writing this cache")
            fcntl.flock(file, fcntl.LOCK_EX)
        for remnant in folder.glob("*.partial"):  # of runs that were killed
            remove_unused(remnant)
        yield


def free_space(folder: Path, needed: int, budget: int, keep: Iterable[str] = ()) -> int:
    """Remove entries that were not used for longest, until there is space or no more to remove.

    Entries that are open in some process stay, and so do those named.

    Args:
        folder: The cache.
        needed: Bytes that are to be added.
        budget: Bytes that the folder may have in all.
        keep: Names of entries that are needed.

    Returns:
        Bytes that may be added, within the budget and what the disk has left.
    """
    with (folder / "budget.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once could remove too much
        for entry in sorted(list_entries(folder), key=lambda entry: _used(folder, entry.name)):
            if _space(folder, budget) >= needed:
                break
            if entry.name not in keep:
                _remove_unused(folder, entry.name)
        return _space(folder, budget)


def _space(folder: Path, budget: int) -> int:
    taken = sum(_size(path) for path in (*folder.glob("*.states"), *folder.glob("*.partial")))
    return max(0, min(budget - taken, shutil.disk_usage(folder).free))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process removed it just now
        return 0


def _used(folder: Path, name: str) -> float:
    try:
        return (folder / f"{name}.json").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_unused(folder: Path, name: str) -> None:
    """Remove an entry, unless a process has it open."""
    try:
        with (folder / f"{name}.states").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder, name)
    except FileNotFoundError:
        _remove(folder, name)
    except BlockingIOError:
        pass


def _remove(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)
    (folder / f"{name}.states").unlink(missing_ok=True)


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache, the last used first; those that cannot be read are left out."""
    entries = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError):
            entries.append(_manifest(path))
    return sorted(entries, key=lambda entry: -_used(folder, entry.name))


def clear(folder: Path) -> int:
    """Remove every entry that no process has open, and what killed runs left.

    Returns:
        Bytes that this freed.
    """
    before = sum(_size(path) for path in folder.glob("*"))
    for path in (*folder.glob("*.json"), *folder.glob("*.states")):
        _remove_unused(folder, path.stem)
    for path in folder.glob("*.partial"):
        remove_unused(path)
    sweep(folder)
    return before - sum(_size(path) for path in folder.glob("*"))
