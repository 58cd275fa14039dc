"""The pieces of a source have its documents, each one once and in order."""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.text.corpus.cutting import cut_shards, cut_source
from finetune.text.corpus.documents import read_documents
from finetune.text.corpus.sources import HubSource, corpus_sources

LINES = (
    "word",
    "two words",
    "",
    " ",
    "\u3000",
    "= T =",
    " = Title = ",
    "= = S = =",
    "= a b",
    "é\r",
)


def read(*sources: object, whole: bool = False) -> list[str]:
    return list(read_documents(sources, file_is_document=whole))  # type: ignore[arg-type]


def check(file: Path, size: int) -> int:
    """Compare the documents of the pieces with those of the file; returns how many pieces."""
    pieces = cut_source(file, size)
    assert read(*pieces) == read(file)
    assert [document for piece in pieces for document in read(piece)] == read(file)
    assert sum(piece.size for piece in pieces) == file.stat().st_size
    assert all(one.end == other.begin for one, other in pairwise(pieces))
    return len(pieces)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(LINES), max_size=40), st.integers(1, 60), st.booleans())
def test_pieces_of_a_text_have_its_documents(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, ends: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.txt"
    file.write_bytes(("\n".join(lines) + "\n" * ends).encode())
    check(file, size)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(LINES), max_size=40), st.integers(1, 60), st.booleans())
def test_pieces_of_rows_have_their_documents(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, ends: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.jsonl"
    rows = [json.dumps({"text": line}) if line != " " else "" for line in lines]
    file.write_text("\n".join(rows) + "\n" * ends)
    check(file, size)


def test_pieces_have_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    chance = random.Random(0)
    texts = ["word " * chance.randint(1, 100) for _ in range(2000)]
    for file, content in (
        (tmp_path / "a.txt", "\n\n".join(texts)),
        (tmp_path / "b.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts)),
        (tmp_path / "c.txt", "\n\n".join(f"= Title {text}=\n\n{text}" for text in texts)),
    ):
        file.write_text(content)
        assert check(file, 10_000) == pytest.approx(len(content) / 10_500, rel=0.1)


def test_what_cannot_be_entered_in_its_middle_is_one_piece(tmp_path: Path) -> None:
    text = "one\n\ntwo\n\n" * 100
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "one.txt").write_text("word\n" * 100)
    (tmp_path / "wiki.jsonl").write_text('{"text": "= Title ="}\n{"text": "part"}\n' * 100)
    for name in ("a.txt.gz", "one.txt", "wiki.jsonl"):
        assert check(tmp_path / name, 10) == 1
    (tmp_path / "b.txt").write_text(text)
    assert len(cut_source(tmp_path / "b.txt", 10, file_is_document=True)) == 1


def test_small_files_share_a_shard_and_large_ones_have_several(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 1), ("c", 100), ("d", 1)):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n\n" * count)
    sources = corpus_sources([tmp_path])
    shards = cut_shards(sources, 100, text_field="text", file_is_document=False)
    assert [[piece.file.stem for piece in shard] for shard in shards] == [
        ["a", "b"],
        ["c"],
        ["c"],
        ["c", "d"],
    ]
    assert read(*(piece for shard in shards for piece in shard)) == read(*sources)


def test_data_set_is_cut_into_its_files(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"train-{number}.jsonl").write_text(f'{{"text": "{number}"}}\n' * 2)
    source = HubSource.parse(f"hf://{tmp_path}")
    (tmp_path / "notes.txt").write_text("a\n")
    shards = cut_shards([source], 100, text_field="text", file_is_document=False)
    assert [read(*shard) for shard in shards] == [["0", "0"], ["1", "1"], ["2", "2"]]
    for number in range(3):
        row = f'{{"text": " = {number} = "}}\n{{"text": "part"}}\n'
        (tmp_path / f"train-{number}.jsonl").write_text(row)
    assert len(cut_source(source, 100)) == 1
