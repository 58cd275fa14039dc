from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from finetune.errors import DataError
from finetune.text.corpus.documents import READERS, read_documents
from finetune.text.corpus.sources import KINDS, HubSource, corpus_sources, digest


def read(*paths: Path | str, text_field: str = "text", file_is_document: bool = False) -> list[str]:
    sources = corpus_sources(paths)
    return list(read_documents(sources, text_field=text_field, file_is_document=file_is_document))


def write(file: Path, content: bytes | str) -> Path:
    data = content.encode() if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.tokens", "a.tokens.gz", "A.TXT"])
def test_blank_line_ends_a_document(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "\n\none\ntwo\n\n \t\nthree\n \nfour")
    assert read(file) == ["one two", "three", "four"]


def test_wikitext_lines_of_one_space_end_paragraphs(tmp_path: Path) -> None:
    text = " \n = Title = \n \n A paragraph of @-@ text . \n Its second line . \n"
    expected = ["= Title = A paragraph of @-@ text . Its second line ."]
    assert read(write(tmp_path / "wiki.train.tokens", text)) == expected


WIKI = [
    *["", "= One =", "", "first", "", "= = Section = =", "", "second", ""],
    *["= = = Deeper = = =", "", "x = y = z", "", "= Two =", "", "third", "", "fourth", ""],
]
ARTICLES = [
    "= One = first = = Section = = second = = = Deeper = = = x = y = z",
    "= Two = third fourth",
]


@pytest.mark.parametrize("name", ["wiki.tokens", "wiki.txt", "wiki.txt.gz", "wiki.jsonl"])
def test_titles_make_articles_of_paragraphs(tmp_path: Path, name: str) -> None:
    lines = [f" {line} \n" if line else " \n" for line in WIKI]
    content = jsonl({"text": line} for line in lines) if "jsonl" in name else "".join(lines)
    assert read(write(tmp_path / name, content)) == ARTICLES


def test_source_that_does_not_begin_with_a_title_has_paragraphs(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "text\n\n= One =\n\nmore\n\n= = no title = =\n")
    assert read(file) == ["text", "= One =", "more", "= = no title = ="]
    whole = write(tmp_path / "b.txt", "= One =\n\nmore\n")
    assert read(whole, file_is_document=True) == ["= One =\n\nmore"]


def test_byte_order_mark_and_windows_line_ends_are_no_text(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n")
    assert read(file) == ["one two", "three"]


def test_file_is_one_document_when_asked(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "one\r\n  two\r\n\r\nthree\r\n")
    write(tmp_path / "b.txt", "four")
    assert read(tmp_path, file_is_document=True) == ["one\n  two\n\nthree", "four"]


def test_folder_is_read_to_the_bottom_in_sorted_order(tmp_path: Path) -> None:
    for name in ("c.txt", "a/z.txt", "b.jsonl", ".hidden.txt", "README.md", "a/b/c.tokens"):
        write(tmp_path / name, jsonl([{"text": name}]) if name.endswith("jsonl") else name)
    assert read(tmp_path) == ["a/b/c.tokens", "a/z.txt", "b.jsonl", "c.txt"]


def test_file_that_is_named_twice_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.txt", "one")
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, file, str(file), "a.txt", tmp_path / ".." / tmp_path.name) == ["one"]


def test_order_of_the_paths_does_not_matter(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.txt", "two")
    assert read(second, first) == read(first, second) == ["one", "two"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_jsonl_row_is_a_document(tmp_path: Path, name: str) -> None:
    rows = [{"text": "one\n\ntwo", "id": 1}, {"text": " "}, {"text": "three"}]
    assert read(write(tmp_path / name, jsonl(rows) + "\n")) == ["one\n\ntwo", "three"]


def test_text_field_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", jsonl([{"body": "one", "text": "no"}]))
    assert read(file, text_field="body") == ["one"]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"text": ["one", "two"], "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path) == ["one", "two"]
    with pytest.raises(DataError, match=r"a.parquet: row 0: no field 'body'; .* text, label"):
        read(tmp_path, text_field="body")


def test_hub_address_reads_through_datasets(tmp_path: Path) -> None:
    write(tmp_path / "data/train.jsonl", jsonl([{"body": "one"}, {"body": "two"}]))
    write(tmp_path / "data/test.jsonl", jsonl([{"body": "three"}]))
    address = f"hf://{tmp_path}/data"
    assert read(f"{address}:test:body") == ["three"]
    assert read(address, text_field="body") == ["one", "two"]


def test_hub_digest_changes_with_the_data(tmp_path: Path) -> None:
    file = write(tmp_path / "data/train.jsonl", jsonl([{"text": "one"}]))
    source = HubSource.parse(f"hf://{tmp_path}/data")
    before = digest(source)
    assert digest(source) == before
    write(file, jsonl([{"text": "two"}]))
    assert digest(source) != before


def test_hub_address_has_named_parts() -> None:
    source = HubSource.parse("hf://Salesforce/wikitext@wikitext-2-v1:validation:body")
    assert source == HubSource("Salesforce/wikitext", "wikitext-2-v1", "validation", "body")
    assert HubSource.parse("hf://imdb") == HubSource("imdb", None, "train", None)


@pytest.mark.parametrize("address", ["hf://", "hf://:train", "hf://a:b:c:d"])
def test_malformed_hub_address_is_an_error(address: str) -> None:
    with pytest.raises(DataError, match=rf"{address}: expected hf://NAME"):
        HubSource.parse(address)


def test_hub_data_set_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hf://.*nothing: cannot be read as a data set") as error:
        read(f"hf://{tmp_path}/nothing")
    assert "\n" not in str(error.value)


def test_progress_counts_the_bytes_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "some words\n" * 20_000)
    write(tmp_path / "b.txt.gz", "other words\n" * 20_000)
    steps: list[int] = []
    for _ in read_documents(corpus_sources([tmp_path]), advance=steps.append):
        pass
    assert sum(steps) == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert len(steps) > 5


def test_digest_follows_the_bytes_not_the_name(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.txt", "one")
    other, rows = write(tmp_path / "c.txt", "two"), write(tmp_path / "d.jsonl", "one")
    assert digest(first) == digest(second)
    assert len({digest(file) for file in (first, other, rows)}) == 3


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_undecodable_byte_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    start = b'{"text": "fine"}\n' if name == "a.jsonl" else b"\xef\xbb\xbffine\r\n"
    file = write(tmp_path / name, start + b"bad \xff here\n")
    with pytest.raises(DataError, match=rf"{name}: byte {len(start) + 4} \(0xff\) is not UTF-8"):
        read(file)


def test_undecodable_byte_on_the_first_line_counts_the_mark(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfab\xe9")
    with pytest.raises(DataError, match=r"a.txt: byte 5 \(0xe9\)"):
        read(file)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": "cut', "expected a JSON object: Unterminated string"),
        ('["text"]', "expected a JSON object, got list"),
        ('{"body": "x", "id": 1}', "no field 'text'; its fields are body, id"),
        ('{"text": "\\ud83d"}', "field 'text' has half of a surrogate pair"),
        ('{"text": null}', "expected text in field 'text', got NoneType"),
    ],
)
def test_bad_jsonl_row_is_named_with_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n\n{row}\n')
    with pytest.raises(DataError, match=f"a.jsonl:3: {message}"):
        read(file)


def test_damaged_gzip_file_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(b"some text\n" * 1000)
    for content in (packed[: len(packed) // 2], b"no gzip at all"):
        (tmp_path / "a.txt.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"a.txt.gz: damaged gzip file"):
            read(tmp_path)


def test_damaged_parquet_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", b"not parquet")
    with pytest.raises(DataError, match=r"a.parquet: cannot be read as a data set"):
        read(tmp_path)


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such corpus file or folder"):
        read(tmp_path / "nowhere")


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (gone,) = corpus_sources([write(tmp_path / "a.txt", "text")])
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a.txt: cannot be read: No such file"):
        digest(gone)
    with pytest.raises(DataError, match=r"a.txt: cannot be read: No such file"):
        list(read_documents([gone]))


def test_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tar.gz", b"")
    with pytest.raises(DataError, match=r"a.tar.gz: cannot read this kind .* one of .txt, .txt.gz"):
        read(file)


def test_folder_without_a_corpus_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "text")
    with pytest.raises(DataError, match=r"expected files ending in .txt, .* got none"):
        read(tmp_path)


def test_each_kind_of_file_has_its_reader() -> None:
    assert tuple(READERS) == KINDS
