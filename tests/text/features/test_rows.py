"""Rows of CSV, TSV, JSON lines and plain text: what is read, and what is refused where."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.errors import ConfigError, DataError
from finetune.files.unpacking import without_sheet
from finetune.text.features.rows import READERS, kind_of, read_records, read_rows, refuse

LONG = "a long text " * 20_000
STRANGE = "x\u0085y\u2028z\x0b 👩‍👩‍👧 שלום עולם e\u0301 日本"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def rows(path: Path | str, kind: str | None = None) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path, kind)]


class TestTables:
    @given(
        st.lists(
            st.tuples(
                *[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))] * 2
            ),
            min_size=1,
        )
    )
    def test_csv_gives_back_what_the_standard_writer_wrote(
        self, cells: list[tuple[str, str]]
    ) -> None:
        written = io.StringIO(newline="")
        csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("column 1", "column 2"), *cells])
        lines = written.getvalue().encode().split(b"\n")
        text = iter([*(f"{line.decode()}\n" for line in lines[:-1])])
        read = [(row["column 1"], row["column 2"]) for _, row in READERS["csv"]("f", text, refuse)]
        assert read == cells

    def test_cell_in_quotes_holds_commas_quotes_and_line_breaks(self, tmp_path: Path) -> None:
        path = write(tmp_path, "f.csv", 'text,label\n"a, ""b""\nc",1\nd "e",2\n')
        assert list(read_rows(path)) == [
            (f"{path}:2", {"text": 'a, "b"\nc', "label": "1"}),
            (f"{path}:4", {"text": 'd "e"', "label": "2"}),
        ]

    @pytest.mark.parametrize(
        ("content", "first_line"),
        [
            ('text;label\n"a, ""b""; c";1,5\nd, e;2\n', 2),
            ('\ufeffsep=;\r\ntext;label\r\n"a, ""b""; c";1,5\r\nd, e;2\r\n', 3),
            ('"sep=;"\n\n"text";"label"\n"a, ""b""; c";1,5\nd, e;2\n', 4),
            ('text\tlabel\n"a, ""b""; c"\t1,5\nd, e\t2\n', 2),
            ('sep=|\ntext|label\n"a, ""b""; c"|1,5\nd, e|2\n', 3),
            ('sep=;\n"text";"label, gold"\n"a, ""b""; c";"1,5"\nd, e;2\n', 3),
            ('text,"label; gold"\n"a, ""b""; c","1,5"\n"d, e",2\n', 2),
        ],
    )
    def test_separator_is_what_the_first_lines_say_or_show(
        self, tmp_path: Path, content: str, first_line: int
    ) -> None:
        path = write(tmp_path, "f.csv", content)
        (first, row), (second, other) = read_rows(path)
        assert (first, second) == (f"{path}:{first_line}", f"{path}:{first_line + 1}")
        assert list(row.values()) == ['a, "b"; c', "1,5"]
        assert list(other.values()) == ["d, e", "2"]

    def test_padding_without_a_name_is_left_out_and_an_index_without_one_is_read(
        self, tmp_path: Path
    ) -> None:
        path = write(tmp_path, "f.csv", ",text,label,,\n0,a,b,,\n")
        assert rows(path) == [{"": "0", "text": "a", "label": "b"}]

    def test_text_that_equals_the_name_of_the_only_column_is_a_text(self, tmp_path: Path) -> None:
        assert rows(write(tmp_path, "f.csv", "text\na\ntext\n")) == [
            {"text": "a"},
            {"text": "text"},
        ]

    def test_tsv_keeps_quotes_as_they_stand(self, tmp_path: Path) -> None:
        path = write(tmp_path, "f.tsv", 'text\tlabel\n"open\t1\n\t2\n')
        assert rows(path) == [{"text": '"open', "label": "1"}, {"text": "", "label": "2"}]

    @pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "F.CSV"])
    def test_byte_order_mark_and_windows_line_ends_are_no_part_of_a_cell(
        self, tmp_path: Path, name: str
    ) -> None:
        path = write(tmp_path, name, "\ufefftext,label\r\na,1\r\nb,2")
        assert rows(path) == [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]

    @pytest.mark.parametrize(("name", "cut"), [("f.csv", ","), ("f.tsv", "\t")])
    def test_only_the_line_feed_ends_a_row(self, tmp_path: Path, name: str, cut: str) -> None:
        path = write(tmp_path, name, f"text{cut}label\n{STRANGE}{cut}1\n")
        assert rows(path) == [{"text": STRANGE, "label": "1"}]

    def test_cell_may_be_longer_than_the_csv_module_allows(self, tmp_path: Path) -> None:
        limit = csv.field_size_limit()
        path = write(tmp_path, "f.csv", f'text,label\n"{LONG}",1\n{LONG},2\n')
        assert [len(row["text"]) for row in rows(path)] == [len(LONG)] * 2
        assert csv.field_size_limit() == limit

    def test_empty_lines_are_no_rows_but_an_empty_cell_is_a_cell(self, tmp_path: Path) -> None:
        assert len(rows(write(tmp_path, "f.csv", "a,b\n\n1,2\n\n"))) == 1
        assert len(rows(write(tmp_path, "g.tsv", "a\tb\n\n1\t2\n\n"))) == 1
        assert rows(write(tmp_path, "h.tsv", "a\n\nx\n")) == [{"a": ""}, {"a": "x"}]

    def test_records_need_no_header(self, tmp_path: Path) -> None:
        path = write(tmp_path, "f.csv", '"1","a"\n"2","b"\n')
        assert list(read_records(path)) == [(f"{path}:1", ["1", "a"]), (f"{path}:2", ["2", "b"])]


class TestJsonLines:
    @pytest.mark.parametrize("name", ["f.jsonl", "f.ndjson", "f.json", "f.jsonl.gz"])
    def test_row_is_the_object_of_a_line(self, tmp_path: Path, name: str) -> None:
        objects = [{"text": STRANGE, "label": ["a"]}, {"text": LONG, "label": None}]
        lines = [json.dumps(row, ensure_ascii=False) for row in objects]
        path = write(tmp_path, name, "\ufeff" + "\r\n\r\n".join(lines))
        assert list(read_rows(path)) == [(f"{path}:1", objects[0]), (f"{path}:3", objects[1])]


class TestPlainText:
    def test_every_line_is_a_row_also_an_empty_one(self, tmp_path: Path) -> None:
        path = write(tmp_path, "f.txt", f"{STRANGE}\r\n\n  b \n")
        assert [row["text"] for row in rows(path)] == [STRANGE, "", "  b "]


class TestStandardInput:
    @pytest.mark.parametrize(
        ("content", "kind", "expected"),
        [
            ('{"text": "a"}\n', None, [{"text": "a"}]),
            ("a,b\n", None, [{"text": "a,b"}]),
            ("a,b\n1,2\n", "csv", [{"a": "1", "b": "2"}]),
            ("", None, []),
        ],
    )
    def test_kind_is_told_or_read_off_the_first_line(
        self, monkeypatch: pytest.MonkeyPatch, content: str, kind: str | None, expected: list[Any]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        assert rows("-", kind) == expected

    def test_place_of_a_bad_row_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}\n[]\n")))
        with pytest.raises(DataError, match=r"^stdin:2: expected a JSON object .* got a list"):
            rows("-")


def test_rows_are_streamed(tmp_path: Path) -> None:
    path = write(tmp_path, "f.csv", "a,b\n1,2\n3\n")
    first = next(read_rows(path))
    assert first == (f"{path}:2", {"a": "1", "b": "2"})  # the bad third line is not read yet


BAD = {
    "empty table": (
        "f.csv",
        "",
        "f.csv: expected a header line that names the columns, got none",
    ),
    "doubled column": (
        "f.csv",
        "text, text,label\na,b,c\n",
        "f.csv:1: expected each column once, got 'text' several times in the header "
        "text, text, label",
    ),
    "ragged row": ("f.csv", "a,b\n1,2\n3\n", "f.csv:3: expected 2 comma-separated cells"),
    "ragged row of a TSV": ("f.tsv", "a\tb\n1\t2\t3\n", "f.tsv:2: expected 2 tab-separated cells"),
    "unclosed quote": (
        "f.csv",
        'a,b\n1,2\n"3,4\n5,6\n',
        "f.csv:3: expected a quote that closes the one opened in this row",
    ),
    "text behind a quote": ("f.csv", 'a,b\n"x"y,2\n', "f.csv:2: expected a comma or the row's end"),
    "old Macs' line ends": ("f.csv", "a,b\r1,2\r", "f.csv:1: expected lines that end in LF"),
    "two separators": (
        "f.csv",
        "text;label, gold\na;b\n",
        "f.csv:1: expected one separator between the names of the columns, got a comma and a "
        "semicolon; put a first line sep=, or sep=; above the header",
    ),
    "commas in a TSV": (
        "f.tsv",
        "text,label\na,b\n",
        "f.tsv:1: expected tab-separated names .* one name with ',' in it, .*; name the file .csv",
    ),
    "vertical bars": (
        "f.csv",
        "text|label\na|b\n",
        r"f.csv:1: expected comma-separated names .*; put a first line sep=\| above the header",
    ),
    "header once more": (
        "f.csv",
        "\ufefftext,label\r\na,b\r\n\ufefftext ,label\r\n",
        r"f.csv:3: expected a row of values, got the header once more \(text, label\); remove",
    ),
    "header once more in a TSV": ("f.tsv", "a\tb\n1\t2\na\tb\n", "f.tsv:3: .* once more"),
    "spilled cell": (
        "f.csv",
        "text,label,,\na,b,,\nc,d, and more,\n",
        "f.csv:3: expected nothing behind the last named column 'label', got 'and more'; put a "
        "text with a comma into quotes, or name the column",
    ),
    "a workbook": (
        "f.csv",
        b"PK\x03\x04\x14\0\0\0",
        r"f.csv:1: expected text, got a ZIP archive, as Excel workbooks \(.xlsx\) are; save the",
    ),
    "gzip without its ending": ("f.csv", gzip.compress(b"a,b\n1,2\n"), "f.csv:1: .* lacks .gz"),
    "UTF-16": (
        "f.csv",
        "text,label\na,1\n".encode("utf-16"),
        "f.csv:1: expected UTF-8, got the mark of UTF-16; save the file as UTF-8 "
        r"\(iconv -f UTF-16 -t UTF-8 FILE",
    ),
    "UTF-16 without a mark": ("f.tsv", "a\tb\n".encode("utf-16-le"), "f.tsv:1: .* a NUL byte"),
    "another encoding": (
        "f.jsonl",
        b'{"text": "a"}\n{"text": "caf\xe9"}\n',
        "f.jsonl:2: expected UTF-8, got the byte 0xe9 at place 14 of the line; save the file as "
        r"UTF-8 \(Excel's 'CSV UTF-8'; or iconv -f WINDOWS-1252 -t UTF-8 FILE",
    ),
    "cut JSON": ("f.jsonl", '{"text": "a"}\n{"text": "b', "f.jsonl:2: .* is cut or no JSON"),
    "a list": ("f.json", '[{"text": "a"}]\n', "f.json:1: expected a JSON object .* got a list"),
    "an object of many lines": ("f.json", '{\n"text": "a"}\n', "f.json:1: .* is cut or no JSON"),
    "a doubled field": (
        "f.jsonl",
        '{"text": "a", "text": "b"}\n',
        "f.jsonl:1: .* got the field 'text' several times",
    ),
    "half a character": ("f.jsonl", '{"text": "\\ud83d"}\n', "f.jsonl:1: .* surrogate pair"),
    "JSON too deep": ("f.jsonl", "[" * 100_000, "f.jsonl:1: expected a JSON object"),
    "not gzip": ("f.csv.gz", None, "f.csv.gz:1: expected a whole gzip file, got it damaged"),
    "an unknown ending": ("f.ods", "", "f.ods: expected a file ending in .csv"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=list(BAD))
def test_bad_file_is_one_line_that_names_file_and_line(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.write_text("no gzip")
    else:
        write(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as raised:
        rows(path)
    assert "\n" not in str(raised.value)


def test_cut_gzip_file_is_told_with_the_line_it_breaks_at(tmp_path: Path) -> None:
    path = write(tmp_path, "f.csv.gz", "a,b\n" + "".join(f"{n},{n * n}\n" for n in range(9999)))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"f.csv.gz:\d+: expected a whole gzip file"):
        rows(path)


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: expected a readable file, got: No such"):
        rows(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="unknown kind of rows 'cvs'; did you mean 'csv'"):
        rows("-", "cvs")


def test_kind_is_told_by_the_ending() -> None:
    names = ["a.CSV", "a.tsv.gz", "a.jsonl", "a.txt"]
    assert [kind_of(name) for name in names] == ["csv", "tsv", "jsonl", "text"]


class TestParquet:
    def test_rows_have_their_values_and_null_is_none(self, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        path = tmp_path / "t.parquet"
        columns = {"text": ["a\u2028b", None], "label": [1, 2], "tags": [["x"], []]}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        assert list(read_rows(path)) == [
            (f"{path}: row 1", {"text": "a\u2028b", "label": 1, "tags": ["x"]}),
            (f"{path}: row 2", {"text": None, "label": 2, "tags": []}),
        ]

    def test_damaged_file_and_missing_package_are_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "t.parquet"
        path.write_bytes(b"PAR1 and no more")
        with pytest.raises(DataError, match="t.parquet: expected a readable Parquet file, got: "):
            list(read_rows(path))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(DataError, match="pip install pyarrow, or save the table as CSV"):
            list(read_rows(path))


def workbook(path: Path, **sheets: list[list[Any]]) -> Path:
    """A file with these sheets, and the empty one that a new workbook has."""
    book = openpyxl.Workbook()
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


class TestExcel:
    def test_cells_are_the_texts_that_csv_would_have(self, tmp_path: Path) -> None:
        day = datetime.datetime(2026, 5, 1)
        values = [7, 0.5, 2.0, True, None, day, day.replace(hour=9), day.date(), "007"]
        rows = [["text ", "label"], *([f"t{n}", value] for n, value in enumerate(values))]
        path = workbook(tmp_path / "b.xlsx", Reviews=rows)
        read = list(read_rows(path))
        assert read[0] == (f"{path}: row 2", {"text": "t0", "label": "7"})
        expected = ["7", "0.5", "2", "TRUE", "", "2026-05-01", "2026-05-01 09:00:00", "2026-05-01"]
        assert [row["label"] for _, row in read] == [*expected, "007"]

    def test_rows_are_numbered_as_in_the_sheet_and_padding_is_no_cell(self, tmp_path: Path) -> None:
        rows = [[None], ["text", "label", None], ["a", 1, None, None], [], [None, None], ["b"]]
        path = workbook(tmp_path / "b.xlsx", S=rows)
        assert list(read_rows(path)) == [
            (f"{path}: row 3", {"text": "a", "label": "1"}),
            (f"{path}: row 6", {"text": "b", "label": ""}),
        ]
        bad: list[DataError] = []
        workbook(path, S=[["text", "label"], ["a", 1, None, "more"], ["text", "label"], ["b", 0]])
        assert [where for where, _ in read_rows(path, on_error=bad.append)] == [f"{path}: row 4"]
        assert [str(error).removeprefix(f"{path}: row ")[:62] for error in bad] == [
            "2: expected nothing behind the last named column 'label', got ",
            "3: expected a row of values, got the header once more (text, l",
        ]

    def test_one_of_several_sheets_is_named(self, tmp_path: Path) -> None:
        sheets = {"train": [["text"], ["a"]], "my test": [["text"], ["b"]]}
        path = workbook(tmp_path / "b.xlsx", **sheets)
        with pytest.raises(DataError, match=r"b.xlsx: expected one sheet with rows, got train, my"):
            list(read_rows(path))
        sheet = f"{path}#my test"
        assert list(read_rows(sheet)) == [(f"{sheet}: row 2", {"text": "b"})]
        assert kind_of(sheet) == "excel"
        with pytest.raises(DataError, match=r"b.xlsx: expected a sheet 'tran'; did you mean 'trai"):
            list(read_rows(f"{path}#tran"))
        odd = tmp_path / "a.xlsx#b.xlsx"
        path.rename(odd)
        assert without_sheet(odd) == str(odd)
        assert len(list(read_rows(f"{odd}#train"))) == 1

    def test_damaged_file_and_missing_package_are_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "b.xlsx"
        for content in (b"no workbook", b"PK\x03\x04 and no more"):
            path.write_bytes(content)
            with pytest.raises(DataError, match="b.xlsx: expected a readable Excel file, got: "):
                list(read_rows(path))
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a.txt", "no workbook")
        with pytest.raises(DataError, match="b.xlsx: expected a readable Excel file, got: "):
            list(read_rows(path))
        with pytest.raises(DataError, match="gone.xlsx: expected a readable Excel file, got: "):
            list(read_rows(tmp_path / "gone.xlsx"))
        with pytest.raises(DataError, match="b.xlsx: expected a header line that names the col"):
            list(read_rows(workbook(path)))
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(DataError, match=r"pip install 'finetune\[excel\]', or save the table"):
            list(read_rows(path))


def test_bad_rows_are_handed_over_and_the_others_read(tmp_path: Path) -> None:
    errors: list[str] = []
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n4,5,6\n7,8\n")
    rows = list(read_rows(path, on_error=lambda error: errors.append(str(error))))
    assert [row["a"] for _, row in rows] == ["1", "7"]
    assert [error.split(": expected")[0] for error in errors] == [f"{path}:3", f"{path}:4"]
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n[]\n{"a"\n{"a": 2}\n')
    rows = list(read_rows(path, on_error=lambda error: errors.append(str(error))))
    assert ([row["a"] for _, row in rows], len(errors)) == ([1, 2], 4)
