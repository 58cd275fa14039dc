"""Any number of processes make the same shards, each one once, and continue after a kill."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, trainers

from finetune.errors import DataError
from finetune.text.corpus import corpus as corpus_module
from finetune.text.corpus import preparing
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.corpus.sources import Piece
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_SHARD", 4096)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the shards that this process makes."""
    names: list[str] = []
    write = preparing.write_tokens

    def counted(documents: Any, tokenizer: Any, path: Path, words: Any) -> Any:
        names.append(path.name)
        return write(documents, tokenizer, path, words)

    monkeypatch.setattr(preparing, "write_tokens", counted)
    return names


def build(path: Path, tokenizer: Tokenizer, cache: Path, workers: int = 1) -> Corpus:
    config = CorpusConfig(max_length=32, validation_fraction=0.1, tokenize_workers=workers)
    return build_corpus([path], tokenizer, config, 1, cache)


def content(cache: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(cache)): file.read_bytes()
        for file in cache.rglob("*")
        if file.is_file() and file.name != "checked.json"
    }


def shards(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/0*") if path.is_dir())


def test_size_of_the_shards_changes_no_block(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = build(corpus_file, wordpiece, tmp_path / "cut")
    monkeypatch.setattr(corpus_module, "_SHARD", 1 << 26)
    whole = build(corpus_file, wordpiece, tmp_path / "whole")
    assert len(shards(tmp_path / "cut")) > 5
    assert len(shards(tmp_path / "whole")) == 1
    assert cut.statistics == whole.statistics
    for side in ("train", "validation"):
        numbers = range(len(getattr(whole, side)))
        one, other = (getattr(corpus, side).blocks(numbers) for corpus in (cut, whole))
        for name in ("input_ids", "word_starts", "document_ids"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_any_number_of_workers_makes_the_same_files(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str]
) -> None:
    build(corpus_file, wordpiece, tmp_path / "one", workers=1)
    assert len(made) == len(shards(tmp_path / "one")) > 5
    build(corpus_file, wordpiece, tmp_path / "two", workers=2)
    assert len(made) == len(shards(tmp_path / "one"))  # the workers made the others
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_worker_splits_texts_as_this_process_does(documents: list[str]) -> None:
    """Whatever the scores: the library reads them from its own text with an error."""
    backend = tokenizers.Tokenizer(models.Unigram())
    names = {role: usual[0] for role, usual in ROLES.items()}
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=list(names.values()),
        unk_token=names["unk_token"],
        show_progress=False,
    )
    backend.train_from_iterator(documents, trainer)
    tokenizer = Tokenizer(backend, names)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode_batch(documents) == tokenizer.encode_batch(documents)
    assert copy.fingerprint == tokenizer.fingerprint
    scores = json.loads(tokenizer._reader.to_str())["model"]["vocab"]
    assert json.loads(pickle.loads(pickle.dumps(copy))._reader.to_str())["model"]["vocab"] == scores


def test_shards_that_were_made_before_a_kill_are_not_made_again(
    wordpiece: Tokenizer,
    corpus_file: Path,
    tmp_path: Path,
    made: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = build(corpus_file, wordpiece, tmp_path / "whole")
    total = len(made)
    made.clear()

    def killed(documents: Iterator[str]) -> Iterator[str]:
        if len(made) == 4:
            raise KeyboardInterrupt
        yield from documents

    read = preparing.read_documents
    monkeypatch.setattr(preparing, "read_documents", lambda *a, **k: killed(read(*a, **k)))
    with pytest.raises(KeyboardInterrupt):
        build(corpus_file, wordpiece, tmp_path / "cache")
    assert [path.name for path in shards(tmp_path / "cache")] == made[:3]
    monkeypatch.setattr(preparing, "read_documents", read)
    made.clear()
    again = build(corpus_file, wordpiece, tmp_path / "cache")
    assert made == [f"{number:05d}" for number in range(3, total)]
    assert content(tmp_path / "cache") == content(tmp_path / "whole")
    assert again.statistics == whole.statistics


PREPARE_SLOWLY = """
import pickle, sys, time
from finetune.text.corpus import corpus, preparing
corpus._SHARD = 4096
read = preparing.read_documents
def slowly(*words, **options):
    time.sleep(0.3)
    yield from read(*words, **options)
preparing.read_documents = slowly
from finetune.text import CorpusConfig
path, cache = sys.argv[1:]
config = CorpusConfig(max_length=32, validation_fraction=0.1, tokenize_workers=1)
corpus.build_corpus([path], pickle.load(sys.stdin.buffer), config, 1, cache)
"""


def start(tokenizer: Tokenizer, *words: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE_SLOWLY, *map(str, words)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    pickle.dump(tokenizer, process.stdin)
    process.stdin.close()
    return process


def wait_for(count: int, cache: Path) -> None:
    deadline = time.monotonic() + 60
    while len(shards(cache)) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def test_process_continues_what_a_killed_one_began(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str]
) -> None:
    build(corpus_file, wordpiece, tmp_path / "whole")
    total = len(made)
    made.clear()
    process = start(wordpiece, corpus_file, tmp_path / "cache")
    wait_for(2, tmp_path / "cache")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_ino for path in shards(tmp_path / "cache")}
    assert 2 <= len(before) < total
    build(corpus_file, wordpiece, tmp_path / "cache")
    assert len(made) == total - len(before)
    assert not set(made) & set(before)
    assert content(tmp_path / "cache") == content(tmp_path / "whole")


def test_processes_that_share_a_cache_share_the_work(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str]
) -> None:
    process = start(wordpiece, corpus_file, tmp_path / "cache")
    wait_for(1, tmp_path / "cache")
    build(corpus_file, wordpiece, tmp_path / "cache")  # waits for the other's last shard
    assert process.wait() == 0
    assert len(made) < len(shards(tmp_path / "cache"))
    assert len(made) == len(set(made))
    build(corpus_file, wordpiece, tmp_path / "whole")
    assert content(tmp_path / "cache") == content(tmp_path / "whole")


def test_damaged_shard_is_noticed_and_made_again_alone(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str]
) -> None:
    cache = tmp_path / "cache"
    build(corpus_file, wordpiece, cache)
    before = content(cache)
    for _ in range(2):
        build(corpus_file, wordpiece, cache)  # checked by now
        made.clear()
        file = shards(cache)[3] / "ids.bin"
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        time.sleep(0.02)  # the clock of the file system moves in steps
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"/00003: this part of the cache is damaged"):
            build(corpus_file, wordpiece, cache)
        assert made == ["00003"]
        assert content(cache) == before


def test_whole_shards_are_not_read_to_be_opened_a_second_time(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.text.corpus import tokens

    for _ in range(2):
        build(corpus_file, wordpiece, tmp_path / "cache")
    monkeypatch.setattr(tokens, "_checksum", lambda _: pytest.fail("read again"))
    build(corpus_file, wordpiece, tmp_path / "cache")


@pytest.mark.parametrize("index", ["", "{}", '{"shards": [[1, 2]], "wide": false, "counts": {}}'])
def test_damaged_index_is_written_again_from_the_shards(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str], index: str
) -> None:
    cache = tmp_path / "cache"
    build(corpus_file, wordpiece, cache)
    before = content(cache)
    made.clear()
    (file,) = cache.glob("*/index.json")
    file.write_text(index)
    build(corpus_file, wordpiece, cache)
    assert not made
    assert content(cache) == before


def test_copy_on_the_machine_is_made_once_and_read(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, made: list[str]
) -> None:
    cache, local = tmp_path / "cache", tmp_path / "local"
    corpus = build(corpus_file, wordpiece, cache)
    config = CorpusConfig(max_length=32, validation_fraction=0.1, local_dir=str(local))
    made.clear()
    copy = build_corpus([corpus_file], wordpiece, config, 1, cache)
    assert copy.fingerprint == corpus.fingerprint
    assert copy.folder.is_relative_to(local)
    assert not made
    times = {path: path.stat().st_ctime_ns for path in local.rglob("*.bin")}
    assert content(local) == content(cache)
    (shards(local)[2] / "ids.bin").write_bytes(b"")  # a copy that was cut short is copied again
    with pytest.warns(UserWarning, match="/00002: this part of the cache is damaged"):
        again = build_corpus([corpus_file], wordpiece, config, 1, cache)
    assert not made
    now = {path: path.stat().st_ctime_ns for path in local.rglob("*.bin")}
    assert {path.parent.name for path in times if now[path] != times[path]} == {"00002"}
    numbers = range(len(corpus.train))
    shutil.rmtree(cache)
    assert len(again.train.blocks(numbers).input_ids) == len(numbers)


def test_a_copy_that_does_not_fit_is_an_error_of_its_own_folder(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path
) -> None:
    cache, local = tmp_path / "cache", tmp_path / "local"
    build(corpus_file, wordpiece, cache)
    config = CorpusConfig(max_length=32, validation_fraction=0.1, local_dir=str(local))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            build_corpus([corpus_file], wordpiece, config, 1, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.EFBIG
    assert Path(raised.value.filename).is_relative_to(local)
    copy = build_corpus([corpus_file], wordpiece, config, 1, cache)
    assert copy.folder.is_relative_to(local)


def test_error_of_a_worker_is_that_of_the_command(
    wordpiece: Tokenizer, documents: Sequence[str], tmp_path: Path
) -> None:
    rows = [json.dumps({"text": text}) for text in documents]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, '{"body": ""}', *rows]) + "\n")
    with pytest.raises(DataError, match=r"a.jsonl:301: no field 'text'; its fields are body"):
        build(tmp_path / "a.jsonl", wordpiece, tmp_path / "cache", workers=2)
    (tmp_path / "b.txt").write_bytes("\n\n".join(documents).encode() + b"\n\n\xff")
    place = (tmp_path / "b.txt").stat().st_size - 1
    with pytest.raises(DataError, match=rf"b.txt: byte {place} \(0xff\) is not UTF-8"):
        build(tmp_path / "b.txt", wordpiece, tmp_path / "cache", workers=2)


def test_worker_ends_with_the_process_that_started_it(wordpiece: Tokenizer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.txt")  # nobody writes into it
    pieces = [[Piece(tmp_path / "endless.txt")]]
    preparation = preparing.Preparation(tmp_path / "tokens", pieces, wordpiece, "text", False)
    worker = subprocess.Popen(
        [sys.executable, "-c", preparing._WORKER],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    preparing._send(preparation, worker)
    deadline = time.monotonic() + 60
    while not (tmp_path / "tokens").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert worker.poll() is None
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(20) == 1


def test_killed_worker_ends_the_command_in_one_line(
    wordpiece: Tokenizer, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(preparing, "_WORKER", killing)
    with pytest.raises(DataError, match="ended by signal 9, .* fewer tokenize_workers") as error:
        build(corpus_file, wordpiece, tmp_path / "cache", workers=2)
    assert "\n" not in str(error.value)
