"""Make the shards of a corpus, by any number of processes on any number of machines.

A process takes the first shard that is missing and that no other one is making, which a lock on a
file says (`flock`: it goes with its process, however that ends). So processes that share a cache
folder share the work, whoever started them, and a shard that is there is not made again.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import DataError, FinetuneError
from finetune.files.writing import NO_LOCKS
from finetune.machine.processes import place
from finetune.text.corpus.documents import Advance, read_documents
from finetune.text.corpus.shards import Tokens, shard_name
from finetune.text.corpus.sources import Piece
from finetune.text.corpus.tokens import find_whole, read_manifest, write_tokens, written_whole
from finetune.text.tokenizer.tokenizer import Tokenizer, tokenizer_threads
from finetune.text.tokenizer.word_cache import WordCache

_WORKER = "from finetune.text.corpus.preparing import serve; serve()"
_SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Preparation:
    """All that decides the tokens of a corpus, and where they go."""

    folder: Path
    """Folder of the corpus."""
    shards: Sequence[Sequence[Piece]]
    """What each shard is read from."""
    tokenizer: Tokenizer
    """Splits the documents."""
    text_field: str
    """Field of a row with the text."""
    file_is_document: bool
    """Whether a text file is one document."""

    def is_made(self, number: int) -> bool:
        """Whether a shard is there."""
        return read_manifest(self.folder / shard_name(number)) is not None

    def missing(self) -> list[int]:
        """Numbers of the shards that are not there."""
        return [number for number in range(len(self.shards)) if not self.is_made(number)]

    def size(self, number: int) -> int:
        """Bytes that a shard is read from."""
        return sum(piece.size for piece in self.shards[number])


def prepare(preparation: Preparation, workers: int, advance: Advance) -> Tokens:
    """Make the shards that are missing, and the index.

    Args:
        preparation: What to make.
        workers: Processes that tokenize; 0 for one a core.
        advance: Called with the bytes of corpus files that were read.

    Raises:
        DataError: A document cannot be read, or a worker was killed.
    """
    for number in range(len(preparation.shards)):  # what an earlier process made may be damaged
        find_whole(preparation.folder / shard_name(number))
    missing = preparation.missing()
    cores = max(1, len(os.sched_getaffinity(0)) // place().size)  # other ranks prepare too
    processes = min(workers or cores, len(missing))
    try:
        if processes > 1:
            _start_workers(preparation, missing, processes, advance)
        else:
            with tokenizer_threads(workers):
                _make_missing(preparation, advance)
    except BaseException:
        with suppress(OSError):  # nothing has been made
            preparation.folder.rmdir()
        raise
    tokens = Tokens.join(preparation.folder, len(preparation.shards))
    for lock in preparation.folder.glob("*.lock"):  # of killed processes
        lock.unlink(missing_ok=True)
    return tokens


def _make_missing(preparation: Preparation, advance: Advance) -> None:
    words = WordCache(preparation.tokenizer)
    for wait in (False, True):  # first what nobody makes, then what others have not finished
        for number in preparation.missing():
            if preparation.is_made(number):  # by now
                continue
            with _taken(preparation.folder, shard_name(number), wait=wait) as is_mine:
                if is_mine and not preparation.is_made(number):
                    _make(preparation, number, words, advance)


def _make(preparation: Preparation, number: int, words: WordCache, advance: Advance) -> None:
    documents = read_documents(
        preparation.shards[number],
        text_field=preparation.text_field,
        file_is_document=preparation.file_is_document,
        advance=advance,
    )
    write_tokens(documents, preparation.tokenizer, preparation.folder / shard_name(number), words)


def copy_corpus(tokens: Tokens, split: str, folder: Path) -> Tokens:
    """Copy a prepared corpus, once, whichever processes of a machine ask for it.

    Args:
        tokens: The corpus.
        split: Name of the folder of its split.
        folder: Where the copy goes, beside those of others.

    Returns:
        The copy.

    Raises:
        DataError: It is not what was copied.
    """
    target = folder / tokens.path.name
    names = [*(shard_name(number) for number in range(len(tokens.shards))), split]
    for name in names:
        with _taken(target, name, wait=True):
            if find_whole(target / name) is None:
                with written_whole(target / name) as copy:
                    for file in (tokens.path / name).iterdir():
                        _copy(file, copy / file.name)
    copied = Tokens.open(target) or Tokens.join(target, len(tokens.shards))
    if copied.shards != tokens.shards:
        raise DataError(f"{target}: expected a copy of {tokens.path}; remove it to copy it again")
    return copied


def _copy(file: Path, target: Path) -> None:
    """Copy a file; if the target's disk is full the error is not that of the file."""
    with file.open("rb") as source, target.open("wb") as made:
        shutil.copyfileobj(source, made, 1 << 20)


@contextmanager
def _taken(folder: Path, name: str, *, wait: bool) -> Iterator[bool]:
    """Take a part of a corpus to make it; False if another process has, unless one is to wait."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / f"{name}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        is_mine = _lock(descriptor, wait=wait)
        try:
            yield is_mine
        finally:
            if is_mine:
                lock.unlink(missing_ok=True)  # who waits for it looks whether the shard is there
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:  # without locks each process makes each shard, and the first one stays
        if error.errno not in NO_LOCKS:
            raise
    return True


def _start_workers(
    preparation: Preparation, missing: list[int], count: int, advance: Advance
) -> None:
    # No fork, which would copy the locks of running threads, and no module of the user's.
    command = [sys.executable, "-P", "-c", _WORKER]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            workers.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
            )
            _send(preparation, workers[-1])
        _wait(preparation, missing, workers, advance)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def _send(content: Any, worker: subprocess.Popen[bytes]) -> None:
    """Send an object; the pipe stays open, so that a worker notices the end of this process."""
    if worker.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended already, and says why
            pickle.dump(content, worker.stdin)
            worker.stdin.flush()


def _wait(
    preparation: Preparation,
    missing: list[int],
    workers: list[subprocess.Popen[bytes]],
    advance: Advance,
) -> None:
    while True:
        states = [worker.poll() for worker in workers]
        for worker, state in zip(workers, states, strict=True):
            if state:
                raise _failure(worker, state)
        there = set(os.listdir(preparation.folder)) if preparation.folder.exists() else set()
        made = {number for number in missing if shard_name(number) in there}
        missing = [number for number in missing if number not in made]
        advance(sum(map(preparation.size, made)))
        if None not in states:
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _failure(worker: subprocess.Popen[bytes], status: int) -> Exception:
    content = worker.stdout.read() if worker.stdout else b""
    if content:
        error: Exception = pickle.loads(content)  # from our own process
        return error
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return DataError(
        f"a process that prepares the corpus ended by {how}, for instance for want of memory; run "
        "the command again, which continues, with fewer tokenize_workers"
    )


def serve() -> None:
    """Make shards as another process says, on stdin; the whole of a worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the process above decides
    preparation = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_sender, daemon=True).start()
    try:
        _make_missing(preparation, lambda _: None)
    except (FinetuneError, OSError) as error:
        sys.stdout.buffer.write(pickle.dumps(error))
        sys.stdout.buffer.flush()
        os._exit(2)


def _end_with_the_sender() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing more is sent
    os._exit(1)
