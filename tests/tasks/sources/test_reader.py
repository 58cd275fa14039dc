from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from finetune.errors import ConfigError, DataError
from finetune.task.interface import Example
from tasks.sources import reader


class TestDataFolder:
    def test_variable_names_it_where_nobody_else_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATA", "there")
        assert reader.data_folder(None) == Path("there")
        assert reader.data_folder(Path("here")) == Path("here")
        monkeypatch.setenv("FINETUNE_DATA", "")
        assert reader.data_folder(None) is None


class TestFiles:
    def test_plain_file_goes_before_the_gzipped_one_and_the_first_place_before_the_second(
        self, tmp_path: Path
    ) -> None:
        files = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
        with pytest.raises(DataError, match=r"expected the dev file of t at .*a.tsv \(or .gz\), "):
            reader.official_file("t", "dev", files, "go")
        (tmp_path / "b.tsv").touch()
        assert reader.official_file("t", "dev", files, "go").name == "b.tsv"
        (tmp_path / "a.tsv.gz").touch()
        assert reader.official_file("t", "dev", files, "go").name == "a.tsv.gz"

    def test_gzipped_content_is_unpacked(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json.gz"
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf\xc3\xa9"))
        assert reader.decode(reader.read_bytes(path), path) == "é"
        path.write_bytes(b"plain")
        with pytest.raises(DataError, match=r"a.json.gz: expected a readable file, got: Not a gz"):
            reader.read_bytes(path)
        with pytest.raises(DataError, match="expected a readable file, got: .*No such file"):
            reader.read_bytes(tmp_path / "missing")

    def test_gzipped_pointer_is_called_that(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tsv.gz"
        path.write_bytes(gzip.compress(b"version https://git-lfs.github.com/spec/v1\nsize 3\n"))
        with pytest.raises(DataError, match="got a git-lfs pointer"):
            reader.read_bytes(path)

    def test_other_encoding_is_told_with_line_and_offset(self) -> None:
        with pytest.raises(DataError, match=r"f:2: expected UTF-8, got .* 0xe9 at offset 3; save"):
            reader.decode(b"ab\n\xe9", "f")


class TestSplits:
    def test_unknown_split_is_an_error_that_lists_the_known_ones(self) -> None:
        reader.check_split("t", "train", ["train"])
        with pytest.raises(DataError, match="t has no split 'tran'; did you mean 'train'?"):
            reader.check_split("t", "tran", ["train"])

    def test_file_for_an_unknown_split_is_an_error(self) -> None:
        reader.check_files("t", {"train": Path("x")}, ["train"])
        with pytest.raises(ConfigError, match="t has no dev split, got the file x for it; "):
            reader.check_files("t", {"dev": Path("x")}, ["train"])


class TestUniqueIds:
    def test_second_row_with_an_id_is_an_error_that_names_the_first(self) -> None:
        ids = reader.UniqueIds()
        ids.add(1, "f:1")
        ids.add(2, "f:2")
        with pytest.raises(
            DataError, match="^f:3: .* own, got '1' a second time, first at f:1; rename it$"
        ):
            ids.add("1", "f:3", "; rename it")


class TestTexts:
    def test_examples_without_any_text_are_an_error(self) -> None:
        reader.check_texts([Example(0, ("", "a"))], Path("f"))
        with pytest.raises(
            DataError, match=r"f: expected texts to train on, got all of them empty \(1 example\)"
        ):
            reader.check_texts([Example(0, ("", "\u200b"))], Path("f"))
