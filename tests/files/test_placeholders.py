"""A git-lfs pointer or a web page in the place of any file that a user may name."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.checkpoints.hf.files import read_tensors
from finetune.errors import CheckpointError, DataError, FinetuneError
from finetune.files.placeholders import refuse_placeholder
from finetune.text.corpus.documents import read_documents
from finetune.text.features.rows import read_rows
from finetune.text.tokenizer.stated import read_json
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.own.text_set_files import _lines
from tasks.sources.archives import read_members
from tasks.sources.tsv import read_table
from tasks.squad.files import read_own

POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 440449768
"""
PAGE = b"""\xef\xbb\xbf
<!-- saved -->
<!DOCTYPE HTML>
<html><head><title> Sign in </title></head><body>Password</body></html>
"""
Read = Callable[[Path], object]

READ: dict[str, tuple[Read, type[FinetuneError]]] = {
    **dict.fromkeys(
        ("a.csv", "a.tsv", "a.jsonl", "a.txt", "a.csv.gz"),
        (lambda path: list(read_rows(path)), DataError),
    ),
    **dict.fromkeys(
        ("b.txt", "b.tokens", "b.jsonl", "b.txt.gz", "b.parquet"),
        (lambda path: list(read_documents([path])), DataError),
    ),
    **dict.fromkeys(
        ("c.json", "c.json.gz"), (lambda path: read_own(path, labelled=True), DataError)
    ),
    "d.tsv": (lambda path: list(read_table(path, required=["text"])), DataError),
    "e.tar.gz": (lambda path: list(read_members(path, lambda name: True)), DataError),
    "f.label": (_lines, DataError),
    **dict.fromkeys(
        ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model"),
        (lambda path: Tokenizer.load(path.parent), CheckpointError),
    ),
    "config.json": (read_json, CheckpointError),
    **dict.fromkeys(
        ("model.safetensors", "pytorch_model.bin"),
        (lambda path: read_tensors(path.parent), CheckpointError),
    ),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("content", [POINTER, PAGE], ids=["pointer", "page"])
def test_placeholder_is_called_what_it_is(name: str, content: bytes, tmp_path: Path) -> None:
    read, error = READ[name]
    (tmp_path / name).write_bytes(content)
    what = r"git-lfs pointer to a file of 440,449,768 bytes" if content is POINTER else "web page"
    with pytest.raises(error, match=rf"{name}: expected the file itself, got a {what}"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv.gz", "b.txt.gz", "c.json.gz"])
@pytest.mark.parametrize("content", [POINTER, PAGE], ids=["pointer", "page"])
def test_placeholder_is_known_when_it_was_packed(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=rf"{name}.*got a (git-lfs pointer|web page)"):
        READ[name][0](tmp_path / name)


@pytest.mark.parametrize(
    "start",
    [b"", b"version,text\n1,a\n", b"<s> a text </s>", b"<htmlish>", b"a <html> in a text", b"\xff"],
)
def test_other_files_are_left_alone(start: bytes) -> None:
    refuse_placeholder(start, "a.txt", DataError)
