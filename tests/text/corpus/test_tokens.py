from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from finetune.text.corpus import tokens as module
from finetune.text.corpus.shards import Tokens, shard_name
from finetune.text.corpus.tokens import (
    TokenFolder,
    count_duplicates,
    find_whole,
    write_tokens,
    written_whole,
)
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer import Tokenizer


def stored_ids(folder: TokenFolder) -> list[list[int]]:
    ids = np.fromfile(folder.path / "ids.bin", folder.dtype)
    bounds = np.fromfile(folder.path / "bounds.bin", np.int64)
    assert bounds[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in zip(bounds, bounds[1:], strict=False)]


def test_documents_are_stored_between_cls_and_sep(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    folder = write_tokens(documents, tokenizer, tmp_path / "tokens")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert stored_ids(folder) == [[cls, *ids, sep] for ids in tokenizer.encode_ids(documents)]
    assert folder.dtype == np.uint16


def test_word_starts_are_stored(tokenizer: Tokenizer, documents: list[str], tmp_path: Path) -> None:
    folder = write_tokens(documents, tokenizer, tmp_path / "tokens")
    starts = np.fromfile(folder.path / "word_starts.bin", np.bool_)
    words = [encoding.word_ids for encoding in tokenizer.encode_batch(documents)]
    expected = [[True, *np.diff([-1, *ids]).astype(bool).tolist(), True] for ids in words]
    assert starts.tolist() == [start for document in expected for start in document]


def test_small_chunks_change_nothing(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_tokens(documents, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(module, "_CHUNK_CHARACTERS", 100)
    small = write_tokens(iter(documents), tokenizer, tmp_path / "small")
    assert small.counts == whole.counts
    for file in whole.path.iterdir():
        assert file.read_bytes() == (small.path / file.name).read_bytes()


def test_counts_are_those_of_the_documents(wordpiece: Tokenizer, tmp_path: Path) -> None:
    documents = ["bade fi", "\u200b", "☃ bade", "bade fi", "bade fi"]
    counts = write_tokens(documents, wordpiece, tmp_path / "tokens").counts
    assert (counts.documents, counts.duplicate_documents, counts.empty_documents) == (4, 2, 1)
    ids = [number for text in wordpiece.encode_ids(documents) for number in text]
    assert counts.tokens == len(ids)
    assert counts.unknown_tokens == ids.count(wordpiece.unk_token_id) == 1


def test_large_vocabularies_take_wider_numbers(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    names = {role: usual[0] for role, usual in ROLES.items()}
    words = [*names.values(), *(f"w{number}" for number in range(70_000))]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = write_tokens(["w0 w69999"], Tokenizer(backend, names), tmp_path / "tokens")
    assert folder.dtype == np.uint32
    assert stored_ids(folder) == [[2, 5, 70_004, 3]]


@pytest.mark.parametrize("parts", [1, 3])
def test_duplicates_are_counted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(module, "SLICE", 1000 // (32 * parts))
    digests = np.random.default_rng(0).integers(0, 2**63, 1000).astype(np.uint64)
    digests[500:700] = digests[:200]
    digests[[0, -1]] = 2**64 - 1
    digests.tofile(tmp_path / "digests.bin")
    expected = 1000 - len(np.unique(digests))
    assert count_duplicates([tmp_path / "digests.bin"]) == expected


def test_slices_join_to_the_whole(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(documents, wordpiece, tmp_path / shard_name(0))
    folder = Tokens.join(tmp_path, 1)
    monkeypatch.setattr(module, "SLICE", 64)
    slices = list(folder.document_slices())
    assert [len(digests) for _, digests in slices] == [64, 64, 64, 64, 44]
    assert all(len(bounds) == len(digests) + 1 for bounds, digests in slices)
    last = int(slices[-1][0][-1])
    joined = np.concatenate([ids for _, ids in folder.id_slices(0, last)])
    stored = stored_ids(TokenFolder.of(folder.shard(0)))
    assert joined.tolist() == [number for ids in stored for number in ids]


def test_folder_opens_as_it_was_written(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    folder = write_tokens(documents, wordpiece, tmp_path / "tokens")
    assert TokenFolder.open(tmp_path / "tokens") == folder


@pytest.mark.parametrize("damage", ["cut short", "a flipped bit"])
@pytest.mark.parametrize("file", ["ids.bin", "bounds.bin", "manifest.json"])
def test_damaged_folder_does_not_open_and_goes(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path, file: str, damage: str
) -> None:
    folder = write_tokens(documents, wordpiece, tmp_path / "tokens")
    content = (folder.path / file).read_bytes()
    half = len(content) // 2
    flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    (folder.path / file).write_bytes(content[:half] if damage == "cut short" else flipped)
    with pytest.warns(
        UserWarning, match="tokens: this part of the cache is damaged; computing it again"
    ):
        assert TokenFolder.open(folder.path) is None
    assert not folder.path.exists()
    assert TokenFolder.open(folder.path) is None


def test_folder_of_an_earlier_version_has_no_checksums_and_opens(
    wordpiece: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    folder = write_tokens(documents, wordpiece, tmp_path / "tokens")
    manifest = json.loads((folder.path / "manifest.json").read_text())
    del manifest["checksums"]
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    assert TokenFolder.open(folder.path) == folder


def test_error_while_writing_leaves_nothing(wordpiece: Tokenizer, tmp_path: Path) -> None:
    def broken() -> object:
        yield "bade"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tokens(broken(), wordpiece, tmp_path / "tokens")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def make_whole(path: Path, content: str) -> None:
    with written_whole(path) as folder:
        (folder / "file").write_text(content)
        module.write_manifest(folder, {})


def test_whole_folder_is_kept_and_damaged_one_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    make_whole(path, "first")
    make_whole(path, "second")
    assert (path / "file").read_text() == "first"
    (path / "file").write_text("damaged")
    make_whole(path, "third")
    assert (path / "file").read_text() == "third"
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest == {"sizes": {"file": 5}, "checksums": {"file": zlib.crc32(b"third")}}
    assert list(tmp_path.iterdir()) == [path]


def test_folder_is_invisible_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with written_whole(path):
        assert not path.exists()
    assert path.exists()


def test_a_part_that_another_process_finishes_in_the_meantime_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, named = tmp_path / "made", tmp_path / "split"
    made.mkdir()

    def too_early(folder: Path) -> None:
        made.rename(folder)  # the other process, just after this one has looked

    monkeypatch.setattr(module, "read_manifest", too_early)
    assert find_whole(named) is None
    assert made.exists() or named.exists()
