from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from finetune.errors import DataError
from finetune.files import unpacking


def test_a_file_is_unpacked_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_BYTES", 1 << 20)
    whole = bytes(1 << 20)
    assert unpacking.unpacked(gzip.compress(whole), Path("a.gz")) == whole
    with pytest.raises(DataError, match="a.gz: expected at most 1 MiB, got more when it is unp"):
        unpacking.unpacked(gzip.compress(whole + b"x"), Path("a.gz"))


def test_lines_are_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_LINE", 1 << 20)
    lines = [b"a\n", b"\n", b"b\r\n", b"x" * (1 << 20), b""]
    assert list(unpacking.lines_of(io.BytesIO(b"".join(lines[:4])), "f")) == lines[:4]
    with pytest.raises(DataError, match="f:2: expected a line of at most 1 MiB"):
        list(unpacking.lines_of(io.BytesIO(b"a\n" + b"x" * (1 << 21)), "f"))
