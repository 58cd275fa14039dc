from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from finetune.errors import ConfigError, DataError
from finetune.text.corpus import corpus as module
from finetune.text.corpus import preparing
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.tokenizer.tokenizer import Tokenizer

CONFIG = CorpusConfig(max_length=32, validation_fraction=0.1)


def build(path: Path, tokenizer: Tokenizer, seed: int = 1, config: CorpusConfig = CONFIG) -> Corpus:
    return build_corpus([path], tokenizer, config, seed, path.parent / "cache")


def all_ids(corpus: Corpus) -> list[list[int]]:
    return [block.input_ids.tolist() for side in sides(corpus) for block in side]


def sides(corpus: Corpus) -> tuple[Any, Any]:
    return corpus.train, corpus.validation


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The shards that were tokenized, as they come."""
    folders: list[Path] = []
    write = preparing.write_tokens

    def counted(documents: Any, tokenizer: Any, path: Path, words: Any) -> Any:
        folders.append(path)
        return write(documents, tokenizer, path, words)

    monkeypatch.setattr(preparing, "write_tokens", counted)
    return folders


def test_blocks_hold_the_tokens_of_the_documents(
    tokenizer: Tokenizer, documents: list[str], corpus_file: Path
) -> None:
    corpus = build(corpus_file, tokenizer)
    expected = Counter(token for ids in tokenizer.encode_ids(documents) for token in ids)
    found = Counter(token for ids in all_ids(corpus) for token in ids)
    for special in tokenizer.special_ids:
        del found[special]
    assert not found - expected
    dropped = (expected - found).total()
    assert dropped < 2 * (CONFIG.max_length - 2)


def test_validation_documents_are_not_trained_on(
    tokenizer: Tokenizer, documents: list[str], corpus_file: Path
) -> None:
    corpus = build(corpus_file, tokenizer)
    train = tokenizer.decode([token for block in corpus.train for token in block.input_ids])
    validation = tokenizer.decode([n for block in corpus.validation for n in block.input_ids])
    texts = {tokenizer.decode(ids) for ids in tokenizer.encode_ids(documents) if len(ids) > 30}
    held_out = {text for text in texts if text in validation}
    assert held_out
    assert not {text for text in held_out if text in train}


def test_paragraphs_of_an_article_are_all_trained_on_or_all_held_out(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    lines = []
    for number, text in enumerate(documents):
        lines += [f" = Title {number} = ", text, " = = Section = = ", f"end {text}"]
    path = tmp_path / "wiki.tokens"
    path.write_text(" \n" + " \n \n".join(lines), encoding="utf-8")
    corpus = build(path, wordpiece)
    assert corpus.statistics.documents == len(documents)
    for side in sides(corpus):
        stream = wordpiece.decode([n for block in side for n in block.input_ids])
        assert abs(stream.count("= title") - stream.count("= = section")) <= 1  # cut at the end


def test_statistics_are_those_of_the_documents(
    tokenizer: Tokenizer, documents: list[str], corpus_file: Path
) -> None:
    statistics = build(corpus_file, tokenizer).statistics
    encoded = tokenizer.encode_ids(documents)
    lengths, unknown = [len(ids) for ids in encoded], tokenizer.unk_token_id
    assert statistics.documents == 300
    assert statistics.duplicate_documents == 300 - len(set(documents)) >= 2
    assert statistics.tokens == sum(lengths)
    assert statistics.mean_length == pytest.approx(np.mean(lengths))
    shares = sum(ids.count(unknown) for ids in encoded) / sum(lengths)
    assert statistics.unknown_share == pytest.approx(shares)
    assert 10 < statistics.validation_documents < 60
    assert statistics.empty_documents == 0


def test_statistics_count_blocks_and_are_kept_as_json(
    tokenizer: Tokenizer, corpus_file: Path
) -> None:
    corpus = build(corpus_file, tokenizer)
    assert corpus.statistics.train_blocks == len(corpus.train)
    assert corpus.statistics.validation_blocks == len(corpus.validation)
    (file,) = corpus_file.parent.glob("cache/*/*/statistics.json")
    assert json.loads(file.read_text())["tokens"] == corpus.statistics.tokens
    assert f"{corpus.statistics.tokens:,}" in corpus.statistics.as_text()


def test_unigram_entropy_is_that_of_the_training_tokens(
    tokenizer: Tokenizer, documents: list[str], corpus_file: Path
) -> None:
    config = CorpusConfig(max_length=32, validation_fraction=0)
    statistics = build(corpus_file, tokenizer, config=config).statistics
    counts = Counter(token for ids in tokenizer.encode_ids(documents) for token in ids)
    del counts[tokenizer.unk_token_id]
    assert statistics.unigram_entropy == pytest.approx(stats.entropy(list(counts.values())))
    held_out = build(corpus_file, tokenizer).statistics
    assert held_out.unigram_entropy != statistics.unigram_entropy
    assert held_out.unigram_entropy == pytest.approx(statistics.unigram_entropy, abs=0.1)


def test_second_run_reads_nothing_again(
    tokenizer: Tokenizer, corpus_file: Path, tokenized: list[Path]
) -> None:
    first, second = build(corpus_file, tokenizer), build(corpus_file, tokenizer)
    assert len(tokenized) == 1
    assert second.fingerprint == first.fingerprint
    assert second.statistics == first.statistics
    assert all_ids(second) == all_ids(first)


def test_only_what_decides_the_tokens_makes_them_anew(
    wordpiece: Tokenizer, tokenizer: Tokenizer, corpus_file: Path, tokenized: list[Path]
) -> None:
    build(corpus_file, tokenizer)
    build(corpus_file, tokenizer, seed=2)
    build(corpus_file, tokenizer, config=CorpusConfig(max_length=16, documents="separate"))
    moved = corpus_file.rename(corpus_file.with_name("moved.txt"))
    build(moved, tokenizer)
    assert len(tokenized) == 1
    build(moved, wordpiece)
    assert len(tokenized) == 2
    build(moved, tokenizer, config=CorpusConfig(file_is_document=True))
    assert len(tokenized) == 3
    moved.write_text(moved.read_text() + "!")
    build(moved, tokenizer)
    assert len(tokenized) == 4


def test_damaged_cache_is_made_anew(
    wordpiece: Tokenizer, corpus_file: Path, tokenized: list[Path]
) -> None:
    before = all_ids(build(corpus_file, wordpiece))
    (ids,) = corpus_file.parent.glob("cache/*/00000/ids.bin")
    ids.write_bytes(ids.read_bytes()[:-10])
    with pytest.warns(UserWarning, match="damaged; computing it again"):
        assert all_ids(build(corpus_file, wordpiece)) == before
    (starts,) = corpus_file.parent.glob("cache/*/*/train.starts")
    starts.unlink()
    with pytest.warns(UserWarning, match="damaged; computing it again"):
        assert all_ids(build(corpus_file, wordpiece)) == before
    assert len(tokenized) == 2


def test_fingerprint_follows_the_blocks(wordpiece: Tokenizer, corpus_file: Path) -> None:
    configs = [CONFIG, CorpusConfig(max_length=16), CorpusConfig(documents="separate")]
    prints = {build(corpus_file, wordpiece, config=config).fingerprint for config in configs}
    prints.add(build(corpus_file, wordpiece, seed=2).fingerprint)
    assert len(prints) == 4


def test_separate_documents_take_one_special_token_more_each(
    wordpiece: Tokenizer, corpus_file: Path
) -> None:
    counts = []
    for documents in ("joined", "separate"):
        config = CorpusConfig(max_length=32, validation_fraction=0, documents=documents)
        corpus = build(corpus_file, wordpiece, config=config)
        special = [wordpiece.cls_token_id, wordpiece.sep_token_id]
        ids = np.array(all_ids(corpus))[:, 1:-1]
        counts.append([np.count_nonzero(ids == token) for token in special])
    (joined_cls, joined_sep), (separate_cls, separate_sep) = counts
    assert joined_cls == 0
    assert joined_sep == pytest.approx(300, abs=3)
    assert separate_cls == pytest.approx(300, abs=3)
    assert separate_sep == pytest.approx(300, abs=3)


def test_folder_of_several_kinds_is_one_corpus(wordpiece: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("bade fi\n\nmar\n" * 10)
    (folder / "b.jsonl").write_text(json.dumps({"text": "golu vo"}) + "\n")
    config = CorpusConfig(max_length=8)
    assert build(folder, wordpiece, config=config).statistics.documents == 12


def test_progress_is_quiet_where_stderr_is_no_terminal(
    wordpiece: Tokenizer, corpus_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build(corpus_file, wordpiece)
    captured = capfd.readouterr()
    assert captured.err == captured.out == ""


def test_large_file_is_hashed_again_only_if_it_was_changed(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    hashed: list[Path] = []
    hash_file = module.digest
    monkeypatch.setattr(module, "digest", lambda source: hashed.append(source) or hash_file(source))
    monkeypatch.setattr(module, "_LARGE", corpus_file.stat().st_size)
    small = tmp_path / "small.txt"
    small.write_text("a text")
    expected = module.source_digests([corpus_file, small])
    hashed.clear()
    for _ in range(3):
        assert module.source_digests([corpus_file, small], cache) == expected
    assert hashed == [corpus_file, small, small, small]
    time.sleep(0.02)  # the clock of the file system moves in steps
    content = corpus_file.read_bytes()
    corpus_file.write_bytes(content[::-1])
    assert module.source_digests([corpus_file, small], cache) != expected
    corpus_file.write_bytes(content)
    (cache / "digests.json").write_text("damaged")
    assert module.source_digests([corpus_file, small], cache) == expected


def test_missing_corpus_is_an_error(wordpiece: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such corpus"):
        build(tmp_path / "nowhere", wordpiece)


@pytest.mark.parametrize("content", ["", "\n \n\n", "\ufeff", "\u200b\n\n\u200b"])
def test_empty_corpus_is_an_error(wordpiece: Tokenizer, tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=r"a.txt: expected a corpus with text in it, got no"):
        build(tmp_path / "a.txt", wordpiece)


def test_corpus_shorter_than_one_block_is_an_error(wordpiece: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("bade fi\n")
    message = r"a.txt: \d tokens are less than one block of max_length 32; add text or lower"
    with pytest.raises(DataError, match=message):
        build(tmp_path / "a.txt", wordpiece)


def test_error_in_a_file_leaves_no_cache(wordpiece: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"bade fi\n" * 100 + b"\xff")
    with pytest.raises(DataError, match=r"a.txt: byte 800 \(0xff\) is not UTF-8"):
        build(tmp_path / "a.txt", wordpiece)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"documents": "seperate"}, "got 'seperate'; did you mean 'separate'"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number from 0 to below 1"),
        ({"max_length": 2}, "max_length must be a whole number from 3 to .*, got 2"),
        ({"tokenize_workers": -1}, "tokenize_workers must be .*, got -1"),
    ],
)
def test_setting_out_of_range_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CorpusConfig(**settings)


BUILD_AND_PRINT_MEMORY = """
import resource, sys
from finetune.text import CorpusConfig, Tokenizer, build_corpus
from finetune.text.corpus import corpus as module
module._SHARD = 1 << 20
corpus, tokenizer, cache = sys.argv[1:]
config = CorpusConfig(tokenize_workers=1)
build_corpus([corpus], Tokenizer.load(tokenizer), config, 1, cache)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_corpus(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    wordpiece.save(tmp_path / "tokenizer")
    peaks_mib = []
    for times in (50, 400):  # 2 MB and 16 MB
        file = tmp_path / f"{times}.txt"
        with file.open("w") as stream:
            for number in range(times):
                stream.write("\n\n".join(f"{number} {text}" for text in documents) + "\n\n")
        arguments = [str(file), str(tmp_path / "tokenizer"), str(tmp_path / f"cache-{times}")]
        done = subprocess.run(
            [sys.executable, "-c", BUILD_AND_PRINT_MEMORY, *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        peaks_mib.append(int(done.stdout))
    assert peaks_mib[1] < peaks_mib[0] + 10
