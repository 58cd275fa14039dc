from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from finetune.errors import ConfigError, DataError
from finetune.metrics import METRICS
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.task_data import TaskData
from tasks.glue.task import GLUE, GlueRow, GlueTask, glue_task

EVERY_ROW = pytest.mark.parametrize("row", GLUE.values(), ids=list(GLUE))
SCORED = [row for row in GLUE.values() if row.name != "ax"]
EVERY_SCORED_ROW = pytest.mark.parametrize("row", SCORED, ids=[row.name for row in SCORED])


def official_file(data: Path, row: GlueRow, split: str) -> Path:
    return data / "glue_data" / row.folder / row.splits[split].file


class TestNames:
    @pytest.mark.parametrize("name", ["stsb", "STS-B", "sts_b", "glue/stsb", "GLUE/STS-B"])
    def test_every_usual_spelling_finds_the_task(self, name: str) -> None:
        assert glue_task(name).name == "glue/stsb"

    @EVERY_ROW
    def test_name_of_the_paper_finds_the_task(self, row: GlueRow) -> None:
        if row.name != "ax":  # whose folder goes by another name
            assert glue_task(row.folder).row is row

    def test_unknown_task_is_an_error_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="unknown GLUE task 'STT-2'; did you mean 'sst2'?"):
            glue_task("STT-2")
        with pytest.raises(ConfigError, match="unknown GLUE task 'boolq'; choose one of ax, cola"):
            glue_task("boolq")

    def test_data_folder_comes_from_the_environment_if_none_is_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATA", "/one")
        assert glue_task("rte").data == Path("/one")
        assert glue_task("rte", Path("/two")).data == Path("/two")
        monkeypatch.setenv("FINETUNE_DATA", "")
        assert glue_task("rte").data is None


class TestTable:
    @EVERY_ROW
    def test_row_is_whole(self, row: GlueRow) -> None:
        assert 1 <= len(row.texts) <= 2
        assert set(row.metrics) <= set(METRICS)
        assert bool(row.labels) == (not {"pearson", "spearman"} & set(row.metrics))
        assert len(row.written) in (0, len(row.labels))
        assert any(split.submission for split in row.splits.values())

    @EVERY_ROW
    def test_task_monitors_its_first_official_metric(self, row: GlueRow) -> None:
        assert GlueTask(row).monitor == row.metrics[0]

    @EVERY_SCORED_ROW
    def test_task_names_its_splits(self, row: GlueRow) -> None:
        task = GlueTask(row)
        named = (task.train_split, *task.validation_splits, *task.test_splits)
        assert named == tuple(row.splits)

    def test_mnli_has_two_of_each(self) -> None:
        task = glue_task("mnli")
        assert task.validation_splits == ("validation_matched", "validation_mismatched")
        assert task.test_splits == ("test_matched", "test_mismatched")

    def test_ax_has_one_file_and_no_more(self) -> None:
        task = glue_task("ax", Path())
        assert (task.validation_splits, task.test_splits) == ((), ("ax",))
        with pytest.raises(DataError, match="glue/ax has no split 'train'; choose one of ax"):
            task.examples("train")


class TestOfficialFiles:
    @EVERY_ROW
    def test_every_split_is_read_with_the_labels_it_has(self, row: GlueRow, data: Path) -> None:
        task = GlueTask(row, data)
        for split in row.splits:
            examples = task.examples(split)
            assert examples
            for example in examples:
                assert len(example.texts) == len(row.texts)
                assert (example.label is None) == (split in task.test_splits)

    @pytest.mark.parametrize(
        ("name", "split", "expected"),
        [
            ("cola", "train", Example(1, ("Cat the sat.",), "unacceptable")),
            ("cola", "validation", Example(1, ('He "sat.',), "acceptable")),
            ("cola", "test", Example(0, ("The dog ran.",))),
            ("sst2", "train", Example(1, ("no wit , only gags ",), "negative")),
            ("sst2", "test", Example(0, ("uneasy mishmash of styles .",))),
            ("mrpc", "train", Example(1, ("She sold it .", "He bought it ."), "not_equivalent")),
            ("mrpc", "test", Example(0, ("A .", "B ."))),
            ("stsb", "train", Example(7, ("A man.", "A woman."), 4 / 3)),
            ("stsb", "validation", Example(0, ("A hat.", "A cap."), 4.0)),
            ("stsb", "test", Example(0, ("Her hair.", "A comb."))),
            ("qqp", "train", Example(1000003, ("Why?", "Why so?"), "duplicate")),
            ("qqp", "validation", Example(1008990, ("Who?", ""), "not_duplicate")),
            ("mnli", "train", Example(1000001, ("It rains.", "It is dry."), "contradiction")),
            ("mnli", "validation_matched", Example(0, ("In a bar .", "A bar ."), "entailment")),
            ("qnli", "train", Example(1666, ("Who?", "In June."), "not_entailment")),
            ("rte", "train", Example(1, ("She won.", "She took part."), "entailment")),
            ("rte", "test", Example(0, ("It rose.", "entailment"))),
            ("wnli", "train", Example(1, ("He saw him.", "He is blind."), "not_entailment")),
            ("ax", "ax", Example(0, ("The cat sat.", "It did not."))),
        ],
    )
    def test_last_row_reads_as_it_stands(
        self, name: str, split: str, expected: Example, data: Path
    ) -> None:
        assert glue_task(name, data).examples(split)[-1] == expected

    @EVERY_ROW
    def test_compressed_files_read_alike(self, row: GlueRow, data: Path) -> None:
        task = GlueTask(row, data)
        for split in row.splits:
            plain, path = task.examples(split), official_file(data, row, split)
            packed = path.with_name(f"{path.name}.gz")
            packed.write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
            assert task.examples(split) == plain
            assert task.data_files(split) == [packed]

    def test_the_folder_glue_data_may_itself_be_named(self, data: Path) -> None:
        inner = glue_task("rte", data / "glue_data")
        assert inner.examples("train") == glue_task("rte", data).examples("train")

    def test_original_sts_files_are_read_with_seven_or_nine_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "sts-test.tsv"
        path.write_text(
            "main-captions\tMSRvid\t2012test\t0024\t2.500\tHer hair.\tA comb.\n"
            "main-forums\tforums\t2016\t1\t4\tYes.\tYep.\thttp://one\thttp://two\n"
        )
        task = glue_task("stsb", files={"validation": path})
        assert task.examples("validation") == [
            Example(0, ("Her hair.", "A comb."), 2.5),
            Example(1, ("Yes.", "Yep."), 4.0),
        ]


class TestNamedFiles:
    def test_named_files_come_before_the_data_folder(self, data: Path, tmp_path: Path) -> None:
        mine = tmp_path / "mine.tsv"
        mine.write_text("label\tsentence\n1\tgood\n")
        task = glue_task("sst2", data, {"train": mine})
        assert task.data_files("train") == [mine]
        assert task.examples("train") == [Example(0, ("good",), "positive")]
        assert task.examples("validation") == glue_task("sst2", data).examples("validation")

    def test_one_validation_file_takes_the_place_of_two(self, data: Path, tmp_path: Path) -> None:
        mine = tmp_path / "mine.tsv"
        mine.write_text("sentence1\tsentence2\tgold_label\nOne.\tTwo.\tneutral\n")
        task = glue_task("mnli", data, {"validation": mine})
        assert task.validation_splits == ("validation",)
        assert task.examples("validation") == [Example(0, ("One.", "Two."), "neutral")]

    def test_id_that_is_no_number_is_kept(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.tsv"
        mine.write_text("index\tsentence\tlabel\nq-7\tgood\t1\n\tbad\t0\n")
        examples = glue_task("sst2", files={"train": mine}).examples("train")
        assert [example.id for example in examples] == ["q-7", 1]


class TestBadFiles:
    @EVERY_ROW
    def test_missing_file_is_an_error_that_names_its_place(
        self, row: GlueRow, tmp_path: Path
    ) -> None:
        for split in row.splits:
            path = official_file(tmp_path, row, split)
            with pytest.raises(
                DataError,
                match=rf"expected the {split} file of glue/{row.name} at {path} \(or .gz\), got "
                r"none; --data DIR \(or FINETUNE_DATA\) names the folder with glue_data/",
            ):
                GlueTask(row, tmp_path).examples(split)

    def test_missing_named_file_is_an_error(self, tmp_path: Path) -> None:
        task = glue_task("rte", tmp_path, {"train": tmp_path / "mine.tsv"})
        with pytest.raises(DataError, match="at .*mine.tsv .* got none; name a file that is"):
            task.data_files("train")

    @EVERY_SCORED_ROW
    def test_unknown_label_is_an_error_with_the_legal_ones(self, row: GlueRow, data: Path) -> None:
        texts = "\t".join(row.texts)
        cells = "\t".join("text" for _ in row.texts)
        path = official_file(data, row, "train")
        path.write_text(f"{texts}\t{row.label}\n{cells}\tmaybe\n")
        legal = f"of {', '.join(row.written or row.labels)}" if row.labels else "from 0 to 5"
        with pytest.raises(
            DataError, match=f"train.tsv:2: expected a {row.label} {legal}, got 'maybe'"
        ):
            GlueTask(row, data).examples("train")

    @pytest.mark.parametrize("score", ["5.5", "-1", "nan", "inf", "", "4,5"])
    def test_score_out_of_range_is_an_error(self, score: str, data: Path) -> None:
        path = data / "glue_data" / "STS-B" / "train.tsv"
        path.write_text(f"sentence1\tsentence2\tscore\nA.\tB.\t4\nA.\tB.\t{score}\n")
        with pytest.raises(
            DataError, match=f"train.tsv:3: expected a score from 0 to 5, got '{score}'"
        ):
            glue_task("stsb", data).examples("train")

    @EVERY_ROW
    def test_row_with_a_column_too_many_is_an_error_with_its_line(
        self, row: GlueRow, data: Path
    ) -> None:
        for split in row.splits:
            path = official_file(data, row, split)
            line = path.read_text(encoding="utf-8").rstrip("\n").count("\n") + 1
            path.write_text(path.read_text(encoding="utf-8").rstrip("\n") + "\textra\n")
            with pytest.raises(
                DataError, match=rf"{path.name}:{line}: expected .* tab-separated columns"
            ):
                GlueTask(row, data).examples(split)

    @EVERY_SCORED_ROW
    def test_training_file_without_labels_is_an_error(self, row: GlueRow, data: Path) -> None:
        texts = "\t".join(row.texts)
        official_file(data, row, "train").write_text(f"{texts}\nmore\tthan\tthat\n")
        with pytest.raises(DataError, match=f"train.tsv:1: expected a header .*{row.label}; got"):
            GlueTask(row, data).examples("train")

    def test_header_without_rows_is_an_error(self, data: Path) -> None:
        (data / "glue_data" / "RTE" / "dev.tsv").write_text("sentence1\tsentence2\tlabel\n")
        with pytest.raises(DataError, match="dev.tsv: expected rows of examples, got none"):
            glue_task("rte", data).examples("validation")

    def test_training_texts_must_not_all_be_empty(self, data: Path) -> None:
        content = "sentence\tlabel\n\t1\n\t0\n"
        for name in ("train.tsv", "dev.tsv"):
            (data / "glue_data" / "SST-2" / name).write_text(content)
        task = glue_task("sst2", data)
        assert len(task.examples("validation")) == 2
        with pytest.raises(
            DataError, match="train.tsv: expected texts to train on, got all of them empty"
        ):
            task.examples("train")

    def test_training_labels_must_not_all_be_the_same(self, data: Path) -> None:
        content = "sentence\tlabel\na\t1\nb\t1\n"
        for name in ("train.tsv", "dev.tsv"):
            (data / "glue_data" / "SST-2" / name).write_text(content)
        task = glue_task("sst2", data)
        assert len(task.examples("validation")) == 2
        with pytest.raises(
            DataError, match="train.tsv: expected rows of .* got 'positive' in all 2"
        ):
            task.examples("train")

    def test_id_that_comes_twice_is_an_error_with_its_line(self, data: Path) -> None:
        path = data / "glue_data" / "RTE" / "test.tsv"
        path.write_text("index\tsentence1\tsentence2\n0\ta\tb\n7\ta\tb\n0\ta\tb\n")
        with pytest.raises(
            DataError, match="test.tsv:4: expected an id of its own, got 0 a second time"
        ):
            glue_task("rte", data).examples("test")


class TestShortRows:
    HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"

    def made(self, folder: Path, *, short: int) -> Path:
        path = folder / "glue_data" / "QQP" / "train.tsv"
        path.parent.mkdir(parents=True)
        rows = [f"{number}\t0\t1\tWhy {number}?\tHow?\t{number % 2}\n" for number in range(30)]
        cut = ['"\tA second question?\t0\n', "99\t0\t1\tOnly one?\n"] * 9
        path.write_text(self.HEADER + "".join([rows[0], *cut[:short], *rows[1:]]))
        return path

    def test_those_of_the_official_file_are_skipped_and_counted(
        self, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        self.made(tmp_path, short=2)
        data = TaskData(glue_task("qqp", tmp_path), tokenizer)
        assert [example.id for example in data.examples("train")] == list(range(30))
        about = data.describe("train", training=True)
        assert (about["examples"], about["skipped"]) == (30, {"short_rows": 2})

    def test_file_of_ones_own_and_another_task_stay_strict(self, tmp_path: Path) -> None:
        path = self.made(tmp_path, short=2)
        with pytest.raises(DataError, match=r"train.tsv:3: expected 6 tab-separated .* got 3"):
            glue_task("qqp", files={"train": path}).examples("train")

    def test_file_that_is_mostly_damaged_is_refused(self, tmp_path: Path) -> None:
        self.made(tmp_path, short=9)
        with pytest.raises(DataError, match=r"got 9 of 39 rows with too few cells, .*tsv:3; dow"):
            glue_task("qqp", tmp_path).examples("train")
