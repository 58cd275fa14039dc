from __future__ import annotations

import random
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tasks.glue.table import GLUE, glue_table_text
from tasks.leaderboard import (
    FORMS,
    Form,
    average_metrics,
    file_problems,
    glue_average,
    missing_files,
    missing_metrics,
    write_zip,
    zip_problems,
)

EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))


def rows_of(form: Form, count: int) -> list[str]:
    rng = random.Random(1)
    labels = form.legal or ("0.000", "2.5", "5", "1e-3")
    return [f"{index}\t{rng.choice(labels)}" for index in range(count)]


def content_of(form: Form, count: int | None = None) -> bytes:
    rows = rows_of(form, form.rows if count is None else count)
    return ("\n".join(["index\tprediction", *rows]) + "\n").encode()


def small_files(count: int = 5) -> dict[str, bytes]:
    return {name: content_of(form, count) for name, form in FORMS.items()}


def zipped(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


class TestForms:
    def test_are_the_leaderboards_eleven_files(self) -> None:
        names = "CoLA SST-2 MRPC STS-B MNLI-m MNLI-mm QNLI QQP RTE WNLI AX".split()
        assert set(FORMS) == {f"{name}.tsv" for name in names}

    @pytest.mark.parametrize(
        ("name", "rows", "legal"),
        [
            ("CoLA.tsv", 1_063, ("0", "1")),
            ("SST-2.tsv", 1_821, ("0", "1")),
            ("MRPC.tsv", 1_725, ("0", "1")),
            ("STS-B.tsv", 1_379, ()),
            ("QQP.tsv", 390_965, ("0", "1")),
            ("MNLI-m.tsv", 9_796, ("entailment", "neutral", "contradiction")),
            ("MNLI-mm.tsv", 9_847, ("entailment", "neutral", "contradiction")),
            ("QNLI.tsv", 5_463, ("entailment", "not_entailment")),
            ("RTE.tsv", 3_000, ("entailment", "not_entailment")),
            ("WNLI.tsv", 146, ("0", "1")),
            ("AX.tsv", 1_104, ("entailment", "neutral", "contradiction")),
        ],
    )
    def test_have_official_labels_and_row_counts(
        self, name: str, rows: int, legal: tuple[str, ...]
    ) -> None:
        assert (FORMS[name].rows, FORMS[name].legal) == (rows, legal)

    def test_what_is_missing_is_named(self) -> None:
        assert missing_files(FORMS) == []
        assert missing_files(FORMS.keys() - {"AX.tsv", "MNLI-mm.tsv"}) == ["MNLI-mm.tsv", "AX.tsv"]


class TestFile:
    @EVERY_FORM
    def test_of_official_size_has_no_problem(self, form: Form) -> None:
        assert file_problems(form.name, content_of(form)) == []

    @EVERY_FORM
    def test_without_a_last_line_end_has_no_problem(self, form: Form) -> None:
        content = content_of(form, 3).rstrip(b"\n")
        assert file_problems(form.name, content, allow_subset=True) == []

    @EVERY_FORM
    def test_of_a_subset_is_let_through_only_where_that_is_allowed(self, form: Form) -> None:
        content = content_of(form, 3)
        assert file_problems(form.name, content, allow_subset=True) == []
        assert file_problems(form.name, content) == [
            f"{form.name}:4: expected {form.rows:,} rows, got 3; --allow-subset lets fewer through"
        ]

    @pytest.mark.parametrize("allow_subset", [False, True])
    @pytest.mark.parametrize("rows", [0, 147])
    def test_with_no_rows_or_too_many_never_is(self, rows: int, allow_subset: bool) -> None:
        content = content_of(FORMS["WNLI.tsv"], rows)
        problems = file_problems("WNLI.tsv", content, allow_subset=allow_subset)
        assert problems == [f"WNLI.tsv:{rows + 1}: expected 146 rows, got {rows}"]

    @pytest.mark.parametrize(
        ("name", "content", "expected"),
        [
            (
                "RTE.tsv",
                "id\tprediction\n0\tentailment\n",
                [r"RTE.tsv:1: expected the header index<TAB>prediction, got 'id\tprediction'"],
            ),
            (
                "RTE.tsv",
                "index,prediction\n0,entailment\n",
                [
                    "RTE.tsv:1: expected the header index<TAB>prediction, got 'index,prediction'",
                    "RTE.tsv:2: expected index<TAB>prediction, got '0,entailment'",
                ],
            ),
            (
                "RTE.tsv",
                "0\tentailment\n1\tentailment\n",
                [
                    r"RTE.tsv:1: expected the header index<TAB>prediction, got '0\tentailment'",
                    "RTE.tsv:2: expected the index 0, got '1'",
                ],
            ),
            (
                "RTE.tsv",
                "index\tprediction\n0\t1\n1\tEntailment\n",
                [
                    "RTE.tsv:2: expected one of entailment, not_entailment, got '1'",
                    "RTE.tsv:3: expected one of entailment, not_entailment, got 'Entailment'",
                ],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\tacceptable\n1\t1.0\n2\t 1\n3\t\n",
                [
                    "CoLA.tsv:2: expected one of 0, 1, got 'acceptable'",
                    "CoLA.tsv:3: expected one of 0, 1, got '1.0'",
                    "CoLA.tsv:4: expected one of 0, 1, got ' 1'",
                    "CoLA.tsv:5: expected one of 0, 1, got ''",
                ],
            ),
            (
                "STS-B.tsv",
                "index\tprediction\n0\t5.001\n1\t-0.1\n2\tnan\n3\tinf\n4\t4,5\n5\t1_0\n6\t\u0663\n",
                [
                    f"STS-B.tsv:{line}: expected a number from 0 to 5, got '{found}'"
                    for line, found in enumerate(
                        ("5.001", "-0.1", "nan", "inf", "4,5", "1_0", "\u0663"), start=2
                    )
                ],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n1\t1\n2\t0\n",  # from one: told once
                ["CoLA.tsv:2: expected the index 0, got '1'"],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\t1\n2\t0\n3\t1\n",  # one left out
                ["CoLA.tsv:3: expected the index 1, got '2'"],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\t1\n0\t0\n1\t1\n",  # one twice
                ["CoLA.tsv:3: expected the index 1, got '0'"],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\t1\n01\t0\n2\t1\n3.0\t1\n-4\t1\n",
                [
                    "CoLA.tsv:3: expected the index 1, got '01'",
                    "CoLA.tsv:5: expected the index 3, got '3.0'",
                    "CoLA.tsv:6: expected the index 4, got '-4'",
                ],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\t1\n\n2\t1\t\n",
                [
                    "CoLA.tsv:3: expected index<TAB>prediction, got ''",
                    r"CoLA.tsv:4: expected index<TAB>prediction, got '2\t1\t'",
                ],
            ),
            (
                "CoLA.tsv",
                "\ufeffindex\tprediction\n0\t1\n",
                ["CoLA.tsv:1: expected the header, got a byte order mark before it"],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\r\n0\t1\r\n",
                ["CoLA.tsv:1: expected line ends of one line feed, got a carriage return"],
            ),
            (
                "CoLA.tsv",
                "index\tprediction\n0\t1\r1\t1\n",
                ["CoLA.tsv:2: expected line ends of one line feed, got a carriage return"],
            ),
        ],
    )
    def test_each_problem_is_a_line_that_names_file_and_line(
        self, name: str, content: str, expected: list[str]
    ) -> None:
        assert file_problems(name, content.encode(), allow_subset=True) == expected

    def test_empty_file_has_neither_header_nor_rows(self) -> None:
        assert file_problems("CoLA.tsv", b"", allow_subset=True) == [
            "CoLA.tsv:1: expected the header index<TAB>prediction, got ''",
            "CoLA.tsv:1: expected 1,063 rows, got 0",
        ]

    def test_bytes_that_are_no_text_are_a_problem(self) -> None:
        utf_16 = "index\tprediction\n0\t1\n".encode("utf-16")
        assert "CoLA.tsv:1: expected UTF-8, got the byte 0xff" in file_problems("CoLA.tsv", utf_16)

    def test_of_many_problems_the_first_are_told_and_the_others_counted(self) -> None:
        content = content_of(FORMS["RTE.tsv"], 3_000).replace(b"entailment", b"yes")
        problems = file_problems("RTE.tsv", content)
        assert len(problems) == 21
        assert problems[-1] == "RTE.tsv: and 2,980 more problems like these"


class TestZip:
    def test_of_eleven_good_files_has_no_problem(self, tmp_path: Path) -> None:
        files = {name: content_of(form) for name, form in FORMS.items()}
        assert zip_problems(zipped(tmp_path / "glue.zip", files)) == []

    def test_what_is_allowed_lets_through_nothing_else(self, tmp_path: Path) -> None:
        files = small_files()
        del files["AX.tsv"]
        path = zipped(tmp_path / "glue.zip", files)
        assert zip_problems(path, allow_subset=True, allow_missing=True) == []
        assert zip_problems(path, allow_subset=True) == [
            f"{path}: AX.tsv: expected the answers of ax, got no such file"
        ]
        assert len(zip_problems(path, allow_missing=True)) == 10
        files["RTE.tsv"] = b"index\tprediction\n0\t1\n"
        zipped(path, files)
        assert zip_problems(path, allow_subset=True, allow_missing=True) == [
            f"{path}: RTE.tsv:2: expected one of entailment, not_entailment, got '1'"
        ]

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("glue/CoLA.tsv", "expected the file at the top of the zip, got it in a folder"),
            ("glue\\CoLA.tsv", "expected the file at the top of the zip, got it in a folder"),
            ("/CoLA.tsv", "expected a plain file name, got a path out of the archive"),
            ("../CoLA.tsv", "expected a plain file name, got a path out of the archive"),
            ("C:\\CoLA.tsv", "expected a plain file name, got a path out of the archive"),
        ],
    )
    def test_file_in_another_place_is_a_problem_and_not_missing(
        self, name: str, problem: str, tmp_path: Path
    ) -> None:
        files = small_files()
        files[name] = files.pop("CoLA.tsv")
        path = zipped(tmp_path / "glue.zip", files)
        assert zip_problems(path, allow_subset=True) == [f"{path}: {name}: {problem}"]

    def test_extra_file_is_a_problem_with_the_nearest_name(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "glue.zip", {**small_files(), "SST2.tsv": b"", "notes": b""})
        extra, notes = zip_problems(path, allow_subset=True)
        assert extra == (
            f"{path}: SST2.tsv: expected no file beside the leaderboard's eleven; "
            "did you mean 'SST-2.tsv'?"
        )
        assert "notes: expected no file beside the leaderboard's eleven; choose one of" in notes

    def test_folder_is_a_problem(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "glue.zip", {**small_files(), "glue/": b""})
        assert zip_problems(path, allow_subset=True) == [
            f"{path}: glue/: expected files alone, got a folder; zip the files in it"
        ]

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_name_that_comes_twice_is_a_problem(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "glue.zip", small_files())
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("RTE.tsv", content_of(FORMS["RTE.tsv"], 4))
        assert zip_problems(path, allow_subset=True) == [
            f"{path}: RTE.tsv: expected one file of that name, got 2"
        ]

    def test_link_is_a_problem(self, tmp_path: Path) -> None:
        files = small_files()
        del files["AX.tsv"]
        path = zipped(tmp_path / "glue.zip", files)
        link = zipfile.ZipInfo("AX.tsv")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(link, "/etc/passwd")
        assert f"{path}: AX.tsv: expected a file, got a link" in zip_problems(path)

    def test_damaged_member_is_a_problem(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "glue.zip", small_files())
        content = path.read_bytes()
        path.write_bytes(content.replace(b"index\tprediction", b"index\tpredictioN", 1))
        (problem,) = zip_problems(path, allow_subset=True)
        assert problem.startswith(f"{path}: CoLA.tsv: expected a readable file, got: Bad CRC-32")

    def test_member_that_unpacks_to_a_monster_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "glue.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("WNLI.tsv", bytes(65 * 2**20))
        assert zip_problems(path, allow_missing=True) == [
            f"{path}: WNLI.tsv: expected some 146 rows, got over 64 MiB"
        ]

    @pytest.mark.parametrize("content", [b"", b"index\tprediction\n", b"PK\x03\x04 and no more"])
    def test_what_is_no_zip_is_one_problem(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "glue.zip"
        path.write_bytes(content)
        (problem,) = zip_problems(path)
        assert problem.startswith(f"{path}: expected a zip, got none that can be read: ")

    def test_missing_zip_and_folder_are_one_problem(self, tmp_path: Path) -> None:
        missing = tmp_path / "none.zip"
        (problem,) = zip_problems(missing)
        assert problem.startswith(f"{missing}: expected a zip, got none that can be read: ")
        assert zip_problems(tmp_path) == [f"{tmp_path}: expected a zip, got no regular file"]


class TestWriting:
    def test_same_files_give_the_same_bytes_in_any_order(self, tmp_path: Path) -> None:
        files = {name: content.decode() for name, content in small_files().items()}
        write_zip(tmp_path / "a" / "one.zip", files)
        write_zip(tmp_path / "b" / "two.zip", dict(reversed(files.items())))
        one = (tmp_path / "a" / "one.zip").read_bytes()
        assert one == (tmp_path / "b" / "two.zip").read_bytes()

    def test_what_is_written_is_read_back_and_found_good(self, tmp_path: Path) -> None:
        files = {name: content.decode() for name, content in small_files().items()}
        path = tmp_path / "glue.zip"
        write_zip(path, files)
        assert zip_problems(path, allow_subset=True) == []
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist() == list(FORMS)
            assert {name: archive.read(name).decode() for name in archive.namelist()} == files

    def test_interrupted_writing_leaves_the_old_zip_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "glue.zip"
        path.write_bytes(b"old")

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(zipfile.ZipFile, "writestr", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_zip(path, {"AX.tsv": "index\tprediction\n"})
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


class TestAverage:
    SCORES = {
        "cola": {"matthews_correlation": 0.5},
        "sst2": {"accuracy": 0.9},
        "mrpc": {"accuracy": 0.8, "f1": 0.9},
        "stsb": {"pearson": 0.7, "spearman": 0.6},
        "qqp": {"accuracy": 0.9, "f1": 0.7},
        "mnli": {"accuracy": 0.8, "validation_mismatched/accuracy": 0.7},
        "qnli": {"accuracy": 0.85},
        "rte": {"accuracy": 0.65},
        "wnli": {"accuracy": 0.56},
    }

    def test_is_the_mean_over_nine_tasks_of_the_mean_over_metrics(self) -> None:
        tasks = [0.5, 0.9, 0.85, 0.65, 0.8, 0.75, 0.85, 0.65, 0.56]
        assert glue_average(self.SCORES) == pytest.approx(sum(tasks) / 9)
        assert missing_metrics(self.SCORES) == []

    def test_of_bert_large_is_that_of_the_leaderboard(self) -> None:
        """BERT 24x1024x16 as listed on gluebenchmark.com/leaderboard: 80.5, with AX beside it."""
        listed = {
            "cola": {"matthews_correlation": 60.5},
            "sst2": {"accuracy": 94.9},
            "mrpc": {"accuracy": 85.4, "f1": 89.3},
            "stsb": {"pearson": 87.6, "spearman": 86.5},
            "qqp": {"accuracy": 89.3, "f1": 72.1},
            "mnli": {"accuracy": 86.7, "validation_mismatched/accuracy": 85.9},
            "qnli": {"accuracy": 92.7},
            "rte": {"accuracy": 70.1},
            "wnli": {"accuracy": 65.1},
            "ax": {"matthews_correlation": 39.6},
        }
        average = glue_average(listed)
        assert average is not None
        assert round(average, 1) == 80.5

    def test_takes_no_notice_of_other_tasks_and_metrics(self) -> None:
        more = {**self.SCORES, "ax": {"matthews_correlation": 0.1}}
        more["rte"] = {"accuracy": 0.65, "loss": 3.0}
        assert glue_average(more) == glue_average(self.SCORES)

    @pytest.mark.parametrize("task", SCORES)
    def test_is_none_without_one_of_the_nine(self, task: str) -> None:
        scores = {name: metrics for name, metrics in self.SCORES.items() if name != task}
        assert glue_average(scores) is None
        assert missing_metrics(scores) == [task]

    def test_is_none_without_one_of_the_metrics(self) -> None:
        scores = {**self.SCORES, "mnli": {"accuracy": 0.8}, "stsb": {"pearson": 0.7}}
        assert glue_average(scores) is None
        assert missing_metrics(scores) == [
            "stsb spearman",
            "mnli validation_mismatched/accuracy",
        ]

    def test_takes_both_parts_of_mnli(self) -> None:
        assert average_metrics(GLUE["mnli"]) == ["accuracy", "validation_mismatched/accuracy"]


class TestTable:
    def test_lists_every_task_with_metrics_and_sizes_in_80_columns(self) -> None:
        lines = glue_table_text().splitlines()
        assert max(map(len, lines)) <= 80
        by_name = {line.split()[0]: line for line in lines if line}
        for row in GLUE.values():
            line = by_name[row.name]
            assert all(metric.replace("_", " ") in line for metric in row.metrics)
            assert all(f"{split.rows:,}" in line for split in row.splits.values())
