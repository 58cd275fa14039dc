from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from finetune.errors import DataError
from tasks.sources.tsv import read_table


def rows(
    path: Path,
    content: str | bytes,
    required: tuple[str, ...] = ("text", "label"),
    headerless: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> list[dict[str, str]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    table = read_table(path, required=required, headerless=headerless, optional=optional)
    return [cells for _, cells in table]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dev.tsv"


def test_cells_come_by_the_names_of_the_header(path: Path) -> None:
    assert rows(path, "label\ttext\n1\tone\n0\ttwo\n") == [
        {"label": "1", "text": "one"},
        {"label": "0", "text": "two"},
    ]


def test_place_names_file_and_line(path: Path) -> None:
    path.write_text("text\none\ntwo\n")
    places = [place for place, _ in read_table(path, required=("text",))]
    assert places == [f"{path}:2", f"{path}:3"]


def test_quotes_are_characters_like_any_other_also_when_unbalanced(path: Path) -> None:
    content = 'text\tlabel\n"open\t1\nclose"\t0\n""twice""\t1\n'
    assert [row["text"] for row in rows(path, content)] == ['"open', 'close"', '""twice""']


def test_byte_order_mark_is_no_part_of_the_first_column(path: Path) -> None:
    assert rows(path, b"\xef\xbb\xbftext\tlabel\none\t1\n") == [{"text": "one", "label": "1"}]


def test_last_line_may_lack_its_end(path: Path) -> None:
    assert len(rows(path, "text\tlabel\none\t1\ntwo\t0")) == 2


def test_empty_cells_stay_cells_at_every_place(path: Path) -> None:
    found = rows(path, "text\tlabel\tnote\n\t1\t\n\t\t\n")
    assert found == [
        {"text": "", "label": "1", "note": ""},
        {"text": "", "label": "", "note": ""},
    ]


def test_spaces_are_kept(path: Path) -> None:
    assert rows(path, "text\tlabel\n a  film \t1\n")[0]["text"] == " a  film "


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_the_line_feed_ends_a_line(path: Path, separator: str) -> None:
    text = f"one{separator}two"
    assert rows(path, f"text\tlabel\n{text}\t1\n") == [{"text": text, "label": "1"}]


def test_windows_line_ends_are_line_ends(path: Path) -> None:
    assert rows(path, "text\tlabel\r\none\t1\r\n") == [{"text": "one", "label": "1"}]


def test_compressed_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    content = gzip.compress(b"text\tlabel\none\t1\n")
    assert rows(tmp_path / "dev.tsv.gz", content) == [{"text": "one", "label": "1"}]


def test_file_without_header_has_the_columns_it_is_known_for(path: Path) -> None:
    found = rows(path, "1\t\tone\n", headerless=("label", "mark", "text"))
    assert found == [{"label": "1", "mark": "", "text": "one"}]


def test_header_is_recognised_in_a_file_that_might_lack_one(path: Path) -> None:
    found = rows(path, "index\ttext\n7\tone\n", ("text",), headerless=("label", "mark", "text"))
    assert found == [{"index": "7", "text": "one"}]


def test_optional_columns_come_all_or_none(path: Path) -> None:
    content = "one\t1\ntwo\t0\tx\ty\n"
    layout = {"headerless": ("text", "label"), "optional": ("more", "most")}
    assert rows(path, content, **layout) == [
        {"text": "one", "label": "1"},
        {"text": "two", "label": "0", "more": "x", "most": "y"},
    ]
    with pytest.raises(DataError, match=r"dev.tsv:2: expected 2 or 4 tab-separated .* got 3"):
        rows(path, "one\t1\ntwo\t0\tx\n", **layout)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tlabel\none\n", r":2: expected 2 tab-separated columns \(text, label\), got 1"),
        ("text\tlabel\none\t1\ntwo\t0\t\n", ":3: expected 2 tab-separated columns .* got 3"),
        ("text\tlabel\none\t1\n\ntwo\t0\n", ":3: expected 2 tab-separated columns .* got 1"),
        ("text\tlable\none\t1\n", ":1: expected a header that names text, label; got .* lable"),
        ("text\ttext\tlabel\na\tb\t1\n", ":1: expected one column 'text', got several"),
        ("text\tlabel\none\t1\ntext\tlabel\n", ":3: expected a row of values, got the header"),
        (b"PK\x03\x04\0\0", r":1: expected text, got a ZIP archive, as Excel"),
        ("", ": expected a header and rows, got an empty file"),
        ("\n\n", ": expected a header and rows, got an empty file"),
        (
            b"text\tlabel\none\t1\ncaf\xe9\t0\n",
            r":3: expected UTF-8, got the byte 0xe9 at offset",
        ),
        (
            "text\tlabel\n".encode("utf-16"),
            ":1: expected UTF-8, got the byte 0xff at offset 0; .* UTF-16",
        ),
    ],
)
def test_bad_file_is_an_error_with_file_and_line(
    path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=f"dev.tsv{message}"):
        rows(path, content)


@pytest.mark.parametrize("keep", [5, 30])
def test_truncated_archive_is_an_error(tmp_path: Path, keep: int) -> None:
    content = gzip.compress(b"text\tlabel\none\t1\n")[:keep]
    with pytest.raises(DataError, match=r"dev.tsv.gz: expected a readable file, got: "):
        rows(tmp_path / "dev.tsv.gz", content)


def test_plain_file_that_calls_itself_gz_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Not a gzipped file"):
        rows(tmp_path / "dev.tsv.gz", "text\tlabel\n")
