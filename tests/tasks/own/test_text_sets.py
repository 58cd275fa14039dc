"""IMDb, TREC and AG's News in small files of their official form, with every quirk of the real."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.errors import CheckpointError, ConfigError, DataError
from tasks.own.labelled_texts import LabelledText, held_out
from tasks.own.text import ClassifyConfig
from tasks.own.text_sets import TEXT_SETS, text_set_task

REVIEWS = {
    **{f"train/pos/{n}_9.txt": f"good {n}<br /><br />\x85 caf\u00e9\tend" for n in range(12)},
    **{f"train/neg/{n}_2.txt": f"bad {n}" for n in range(12)},
    **{f"train/unsup/{n}_0.txt": f"so<br />so {n}" for n in range(3)},
    "train/urls_pos.txt": "http://example.org\n",
    "test/pos/0_10.txt": "fine",
    "test/neg/0_1.txt": "poor",
    "test/urls_neg.txt": "http://example.org\n",
    "README": "a file of no class",
}
QUESTIONS = [
    *(f"DESC:manner How did number {n} come ?" for n in range(10)),
    *(f"ENTY:other What is {n} ?" for n in range(10)),
    "NUM:other What is 10 ?",
]
ARTICLES = [
    '"1","A ""first"" title","second\\team of \\$10, #39;quoted#39; &lt;b&gt;"',
    *(f'"{n % 4 + 1}","Title {n}","Text {n}, with a comma"' for n in range(40)),
]


def unpack(folder: Path) -> None:
    for name, text in REVIEWS.items():
        path = folder / "imdb" / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def one_archive(folder: Path) -> None:
    pack(folder / "aclImdb_v1.tar.gz", list(REVIEWS))


def archive_a_part(folder: Path) -> None:
    (folder / "imdb").mkdir(parents=True)
    unsup = [name for name in REVIEWS if "unsup" in name]
    train = [name for name in REVIEWS if name.startswith("train/") and name not in unsup]
    test = [name for name in REVIEWS if name.startswith("test/")]
    for part, names in (("train", train), ("test", test), ("unsup", unsup)):
        pack(folder / "imdb" / f"aclImdb_{part}.tar.gz", names)


def pack(path: Path, names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in reversed(names):
            content = REVIEWS[name].encode()
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


LAYOUTS = pytest.mark.parametrize("layout", [unpack, one_archive, archive_a_part])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    archive_a_part(folder)
    (folder / "trec").mkdir()
    (folder / "trec" / "train_5500.label").write_text("\n".join([*QUESTIONS, ""]))
    (folder / "trec" / "TREC_10.label").write_text("DESC:manner Why ?")
    (folder / "ag_news_csv").mkdir()
    (folder / "ag_news_csv" / "train.csv").write_text("\n".join(ARTICLES))
    (folder / "ag_news_csv" / "test.csv").write_text(ARTICLES[0] + "\n")
    return folder


class TestEverySet:
    @pytest.mark.parametrize("name", TEXT_SETS)
    def test_validation_is_held_out_of_training_and_test_is_the_official_one(
        self, data: Path, name: str
    ) -> None:
        task = text_set_task(name, data)
        train, validation, test = (
            {example.id: example for example in task.examples(split)}
            for split in ("train", "validation", "test")
        )
        assert not train.keys() & validation.keys()
        assert not {e.texts for e in train.values()} & {e.texts for e in validation.values()}
        assert len(validation) == pytest.approx((len(train) + len(validation)) / 10, abs=2)
        assert all(example.label in task.labels for example in test.values())
        assert (task.train_split, task.validation_splits) == ("train", ("validation",))
        assert (task.name, task.monitor) == (f"classify/{name}", "accuracy")

    @pytest.mark.parametrize("name", TEXT_SETS)
    def test_same_rows_are_held_out_every_time(self, data: Path, name: str) -> None:
        first, second = (text_set_task(name, data).examples("validation") for _ in range(2))
        assert first == second

    @pytest.mark.parametrize("name", ["trec6", "agnews"])
    def test_packed_file_is_the_same(self, data: Path, name: str) -> None:
        before = text_set_task(name, data).examples("train")
        for path in [*data.glob("trec/*"), *data.glob("ag_news_csv/*")]:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        assert text_set_task(name, data).examples("train") == before

    @pytest.mark.parametrize("name", TEXT_SETS)
    def test_missing_data_are_told(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=r"expected the train part of .* got none; --data DIR"):
            text_set_task(name, tmp_path).examples("train")

    @pytest.mark.parametrize("name", TEXT_SETS)
    def test_bare_text_can_be_answered(self, data: Path, name: str) -> None:
        example = text_set_task(name, data).example({"text": "a line"}, "f:1", 3)
        assert (example.id, example.texts) == (3, ("a line",))


def split(rows: list[LabelledText]) -> list[bool]:
    return held_out(rows, [row.label for row in rows], fraction=0.1, seed=1)


class TestHoldingOut:
    def rows(self, *pairs: tuple[str, str]) -> list[LabelledText]:
        return [LabelledText("f:1", number, (text,), y) for number, (text, y) in enumerate(pairs)]

    def test_a_tenth_of_each_class_is_held_out(self) -> None:
        rows = self.rows(
            *((f"a{n}", "a") for n in range(200)), *((f"b{n}", "b") for n in range(50))
        )
        out = split(rows)
        counts = {y: sum(o for o, r in zip(out, rows, strict=True) if r.label == y) for y in "ab"}
        assert counts == {"a": 20, "b": 5}

    def test_rare_class_stays_in_training(self) -> None:
        assert split(self.rows(("x", "a"), ("y", "b"), ("z", "b"))).count(True) == 1
        assert split(self.rows(("x", "a"))) == [False]

    def test_equal_texts_stay_together(self) -> None:
        rows = self.rows(*((f"t{n % 30}", "a") for n in range(90)), ("t0", "b"), ("u", "b"))
        out = {True: set(), False: set()}
        for row, is_out in zip(rows, split(rows), strict=True):
            out[is_out].add(row.texts)
        assert not out[True] & out[False]


class TestImdb:
    @LAYOUTS
    def test_folders_and_archives_give_the_same(
        self, tmp_path: Path, layout: Callable[[Path], None]
    ) -> None:
        layout(tmp_path / "data")
        task = text_set_task("imdb", tmp_path / "data")
        ids = [example.id for example in task.examples("train")]
        assert {str(name).partition("/")[0] for name in ids} == {"pos", "neg"}
        assert len(ids) + len(task.examples("validation")) == 24
        test = [(row.id, row.texts, row.label) for row in task.examples("test")]
        assert test == [("neg/0_1", ("poor",), "neg"), ("pos/0_10", ("fine",), "pos")]
        assert list(task.unlabelled_texts()) == [f"so\nso {n}" for n in range(3)]

    def test_mark_up_becomes_a_line_break_and_nothing_else_changes(self, data: Path) -> None:
        task = text_set_task("imdb", data)
        texts = {row.id: row.texts[0] for row in task.examples("train")}
        texts |= {row.id: row.texts[0] for row in task.examples("validation")}
        assert texts["pos/7_9"] == "good 7\n\n\x85 caf\u00e9\tend"

    def test_folder_itself_may_be_named(self, tmp_path: Path) -> None:
        unpack(tmp_path)
        task = text_set_task("imdb", tmp_path / "imdb" / "aclImdb")
        assert len(task.examples("test")) == 2

    def test_archive_without_reviews_is_told(self, tmp_path: Path) -> None:
        pack(tmp_path / "aclImdb_v1.tar.gz", ["README"])
        with pytest.raises(DataError, match=r"expected reviews in train/pos and train/neg"):
            text_set_task("imdb", tmp_path).examples("train")

    def test_missing_unlabelled_reviews_are_told(self, data: Path) -> None:
        (data / "imdb" / "aclImdb_unsup.tar.gz").unlink()
        with pytest.raises(DataError, match="expected unlabelled reviews at"):
            text_set_task("imdb", data).unlabelled_texts()

    def test_review_in_another_encoding_is_told(self, tmp_path: Path) -> None:
        unpack(tmp_path)
        (tmp_path / "imdb/aclImdb/test/pos/0_10.txt").write_bytes(b"caf\xe9")
        with pytest.raises(DataError, match=r"0_10.txt:1: expected UTF-8, got the byte 0xe9"):
            text_set_task("imdb", tmp_path).examples("test")


class TestTrec:
    def test_coarse_and_fine_classes(self, data: Path) -> None:
        coarse, fine = text_set_task("trec6", data), text_set_task("trec50", data)
        assert coarse.labels == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
        assert fine.labels == ("DESC:manner", "ENTY:other", "NUM:other")
        assert coarse.examples("test")[0].texts == fine.examples("test")[0].texts == ("Why ?",)
        assert fine.examples("test")[0].label == "DESC:manner"

    def test_byte_of_the_upstream_file_is_iso_8859_1(self, data: Path) -> None:
        path = data / "trec" / "TREC_10.label"
        path.write_bytes(b"DESC:manner Is \xc3\xa9 a letter ?\r\nDESC:manner What is D\xf1 ?\n")
        texts = [example.texts[0] for example in text_set_task("trec6", data).examples("test")]
        assert texts == ["Is \u00e9 a letter ?", "What is D\u00f1 ?"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("DESC How ?", "TREC_10.label:2: expected 'COARSE:fine text', got 'DESC How .'"),
            ("", "TREC_10.label:2: expected 'COARSE:fine text', got ''"),
            ("FOO:bar How ?", "TREC_10.label:2: expected a class of ABBR, DESC, .* got 'FOO'"),
        ],
    )
    def test_bad_line_is_told(self, data: Path, line: str, message: str) -> None:
        (data / "trec" / "TREC_10.label").write_text(f"DESC:def A ?\n{line}\nDESC:def B ?\n")
        with pytest.raises(DataError, match=message):
            text_set_task("trec6", data).examples("test")


class TestAgNews:
    def test_title_and_description_are_one_text_and_a_backslash_a_space(self, data: Path) -> None:
        task = text_set_task("AG-News", data)
        assert task.labels == ("World", "Sports", "Business", "Sci/Tech")
        (example,) = task.examples("test")
        expected = 'A "first" title second team of  $10, #39;quoted#39; &lt;b&gt;'
        assert (example.texts, example.label) == ((expected,), "World")

    def test_part_of_the_training_file_is_told_by_its_name(self, data: Path) -> None:
        folder = data / "ag_news_csv"
        (folder / "train.csv").rename(folder / "train.part41.csv")
        task = text_set_task("agnews", data)
        assert len(task.examples("train")) > 30
        assert [path.name for path in task.data_files("train")] == ["train.part41.csv"]

    def test_title_and_description_of_a_row_are_joined_as_in_the_file(self, data: Path) -> None:
        task = text_set_task("agnews", data)
        example = task.example({"id": 3, "title": "A", "description": "b\\c"}, "f:1", 0)
        assert (example.id, example.texts) == (3, ("A b c",))
        with pytest.raises(DataError, match="f:1: expected a field 'text' with text, got"):
            task.example({"title": "A"}, "f:1", 0)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ('"5","a","b"', "test.csv:1: expected a class from 1 to 4, got '5'"),
            ('"1","a"', "test.csv:1: expected class, title and description, got 2 cells"),
        ],
    )
    def test_bad_row_is_told(self, data: Path, row: str, message: str) -> None:
        (data / "ag_news_csv" / "test.csv").write_text(row)
        with pytest.raises(DataError, match=message):
            text_set_task("agnews", data).examples("test")


class TestSettings:
    def test_unknown_names_are_told(self) -> None:
        with pytest.raises(ConfigError, match="--dataset must .*, got 'imbd'; did you mean 'imdb'"):
            text_set_task("imbd")
        with pytest.raises(ConfigError, match="its validation split is a part of train, no file"):
            text_set_task("imdb", files={"validation": Path("x")})

    @pytest.mark.parametrize(
        "config",
        [
            {"text_column": "text"},
            {"label_column": "y"},
            {"kind": "regression"},
            {"separator": ";"},
        ],
    )
    def test_settings_of_own_tables_are_refused(self, config: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match="dataset imdb: its columns and classes are known"):
            text_set_task("imdb", config=ClassifyConfig(**config))

    def test_class_weights_may_be_named(self, data: Path) -> None:
        task = text_set_task("trec50", data, config=ClassifyConfig(class_weights="balanced"))
        assert task.resolved.class_weights == "balanced"

    def test_order_of_a_trained_head_is_kept_and_another_head_refused(self, data: Path) -> None:
        assert text_set_task("imdb", data, labels=("pos", "neg")).labels == ("pos", "neg")
        with pytest.raises(CheckpointError, match="classes neg, pos, got one for no, yes"):
            text_set_task("imdb", data, labels=("no", "yes"))

    def test_data_folder_is_taken_from_the_environment(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATA", str(data))
        assert len(text_set_task("trec6").examples("test")) == 1

    def test_file_of_another_name_is_read(self, data: Path) -> None:
        other = data / "other.label"
        other.write_text("LOC:city Where ?\n")
        task = text_set_task("trec6", data, {"test": other})
        assert task.examples("test")[0].label == "LOC"
        assert task.data_files("test") == [other]
