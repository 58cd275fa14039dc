"""What a column of labels is read as: by all its rows, in every spelling, and never in silence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from tasks.own.label_kinds import as_number, list_in_text, read_number, whole_name
from tasks.own.text import ClassifyConfig, ClassifyTask, classify_task


def own(
    folder: Path,
    train: Sequence[Any],
    validation: Sequence[Any] | None = None,
    test: Sequence[Any] | None = None,
    *,
    labels: Sequence[str] | None = None,
    separator: str | None = None,
    delimiter: str | None = None,
    **config: Any,
) -> ClassifyTask:
    """A task over files with these labels: JSON lines, or CSV with a delimiter."""
    files = {}
    for split, column in (("train", train), ("validation", validation), ("test", test)):
        if column is None:
            continue
        if delimiter is None:
            path = folder / f"{split}.jsonl"
            rows = [json.dumps({"text": f"t{n}", "label": one}) for n, one in enumerate(column)]
        else:
            path = folder / f"{split}.csv"
            rows = [f"text{delimiter}label"]
            rows += [f't{number}{delimiter}"{label}"' for number, label in enumerate(column)]
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        files[split] = path
    return classify_task(files, ClassifyConfig(separator=separator, **config), labels)


def read(task: ClassifyTask, split: str = "train") -> list[Any]:
    return [example.label for example in task.examples(split)]


class TestNumbers:
    @pytest.mark.parametrize("column", [["0.0", "1.0"], [0.0, 1.0], ["0", "1."], ["0.00", 1]])
    def test_whole_numbers_are_the_same_classes_in_any_spelling(
        self, tmp_path: Path, column: list[Any]
    ) -> None:
        for other in (["1", "0"], ["1.0", "0.0"], [1, 0]):
            task = own(tmp_path, column * 2, other)
            assert (task.kind, task.labels) == ("classes", ("0", "1"))
            assert (read(task), read(task, "validation")) == (["0", "1"] * 2, ["1", "0"])
        told = own(tmp_path, column * 2, column).notes()
        assert told[:3] == [
            "columns: text = text, label = label",
            "labels: 2 classes: 0 2, 1 2",
            "labels of validation: 2 classes: 0 1, 1 1",
        ]
        assert any("--kind regression reads them as amounts" in line for line in told)

    def test_trained_head_and_named_kind_read_the_same(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["0.0", "1.0"], [1, 0], labels=("0", "1"), kind="classes")
        assert (read(task), read(task, "validation")) == (["0", "1"], ["1", "0"])
        task = own(tmp_path, ["1.0", "2.5", "2.5"], [1], kind="classes")
        assert (task.labels, read(task, "validation")) == (("1.0", "2.5"), ["1.0"])
        assert own(tmp_path, ["0.0", "1.0"], kind="regression").labels == ()

    def test_leading_zeros_and_other_classes_stay_names(self, tmp_path: Path) -> None:
        assert own(tmp_path, ["01", "1", "2.0"] * 2).labels == ("01", "1", "2.0")
        assert own(tmp_path, ["1.0", "1.1", "beta", "beta", "beta"]).labels == (
            "1.0",
            "1.1",
            "beta",
        )

    def test_kind_is_told_by_all_files_together(self, tmp_path: Path) -> None:
        assert own(tmp_path, [1, 2, 3]).kind == "classes"
        assert own(tmp_path, [1, 2, 3], [2.5]).kind == "regression"
        assert own(tmp_path, [1, 2, 3], [2], [2.5]).kind == "regression"
        assert own(tmp_path, [1, 2, 3], [2], [None, None]).kind == "classes"

    def test_code_with_an_e_is_a_name(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["10e1", "20e1", "3e5"] * 2)
        assert (task.kind, task.labels) == ("classes", ("10e1", "20e1", "3e5"))
        assert "warning: labels such as '10e1' are read as names of classes" in task.notes()[-1]
        assert own(tmp_path, ["1e-05", "1.5e+16"]).kind == "regression"
        assert read(own(tmp_path, ["10e1", "2e1"], kind="regression")) == [100, 20]

    @pytest.mark.parametrize(
        ("text", "number"),
        [("-1.5", -1.5), (".5", 0.5), ("2.", 2), ("1e-3", 1e-3), ("10e1", None), ("1_0", None)],
    )
    def test_number_beyond_doubt(self, text: str, number: float | None) -> None:
        assert as_number(text) == number

    def test_whole_name(self) -> None:
        assert [whole_name(name) for name in ("1.0", "+7", "-0.0", "01", "1.5", "1,0", "")] == [
            *("1", "7", "0"),
            *[None] * 4,
        ]
        assert whole_name("1,0", commas=True) == "1"


class TestDecimalCommas:
    def test_table_with_semicolons_has_them(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["1,5", "2", "3,25"], ["2,5"], delimiter=";")
        assert (task.kind, read(task), read(task, "validation")) == (
            *("regression", [1.5, 2, 3.25]),
            [2.5],
        )
        assert "with the comma as decimal sign" in task.notes()[1]
        assert own(tmp_path, ["1,0", "0,0"], ["1"], delimiter=";").labels == ("0", "1")

    def test_elsewhere_they_are_asked_about(self, tmp_path: Path) -> None:
        way_out = r"train.csv:3: .*'1,5'; say --kind regression .*, --separator , .*--kind classes"
        with pytest.raises(DataError, match=way_out):
            own(tmp_path, ["2", "1,5"], delimiter=",").examples("train")
        assert read(own(tmp_path, ["2", "1,5"], delimiter=",", kind="regression")) == [2, 1.5]
        assert own(tmp_path, ["2", "1,5"], delimiter=",", separator=",").labels == ("1", "2", "5")
        assert own(tmp_path, ["2", "1,5"], delimiter=",", kind="classes").labels == ("2", "1,5")

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (
                ["1,5", "2.5"],
                r"csv:2: expected one decimal sign, got '1,5' here and '2.5' in .*:3",
            ),
            (
                ["1,500", "20,000"],
                r"csv:2: expected a number, got '1,500', of which the comma may",
            ),
            (["1,5", "1 000,5"], r"csv:3: expected a finite number .* got '1 000,5'"),
            (["1.000,5", "2"], r"csv:2: expected a finite number .* got '1.000,5'"),
        ],
    )
    def test_unclear_commas_are_refused(
        self, tmp_path: Path, column: list[str], message: str
    ) -> None:
        with pytest.raises(DataError, match=message):
            own(tmp_path, column, delimiter=";", kind="regression").examples("train")

    def test_three_decimals_are_decimals_beside_others(self, tmp_path: Path) -> None:
        assert read(own(tmp_path, ["1,5", "1,250"], delimiter=";")) == [1.5, 1.25]
        assert read_number("0,125", "f:1") == 0.125


class TestLists:
    @pytest.mark.parametrize(
        ("text", "items"),
        [
            ("['a', \"it's\"]", ["a", "it's"]),
            ('["a", "b"]', ["a", "b"]),
            ("[]", []),
            (" [ 'a', ] ", ["a"]),
            (r"['it\'s']", ["it's"]),
            ("[1, 2]", [1, 2]),
            ("[True, False]", ["True", "False"]),
            ("['a' 'b']", None),  # numpy's, where a Python reader would join the names
            ("[0. 1.]", None),
            ("[a]", None),
            ("[['a']]", None),
            ("'a', 'b'", None),
            ("[" * 5000, None),
        ],
    )
    def test_list_in_a_text(self, text: str, items: list[Any] | None) -> None:
        assert list_in_text(text) == items

    @pytest.mark.parametrize("separator", [None, ",", ";"])
    def test_lists_in_text_are_several_classes(self, tmp_path: Path, separator: str | None) -> None:
        column = ["['news', 'sport']", "['news']", "[]"]
        task = own(tmp_path, column, column, delimiter=",", separator=separator)
        assert (task.kind, task.labels) == ("multi_label", ("news", "sport"))
        assert read(task) == read(task, "validation") == [("news", "sport"), ("news",), ()]
        assert task.notes()[1] == ("labels: 2 classes, several a row: news 2, sport 1")

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (["['a']", "b"], r"jsonl:2: expected a list of classes .* as 1 of 2 labels are, .*'b'"),
            (["a", "['a', 'b']", "b"], r"jsonl:1: expected a list .* got 'a'; .*--separator"),
            (["['a' 'b']", "['a']"], r"jsonl:1: expected a list .* got \"?'\['a' 'b'\]'"),
            (["[0, 1, 1]", "[1, 0, 0]"], r"jsonl:1: expected the names .* got 0 or 1 for each"),
            ([[0, 1, 1], [1, 0, 0]], r"jsonl:1: expected the names .* got 0 or 1 for each class"),
            ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], r"jsonl:1: expected the names of the classes"),
        ],
    )
    def test_misreading_is_refused(self, tmp_path: Path, column: list[Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            own(tmp_path, column).examples("train")

    def test_named_kind_makes_a_list_a_name_and_a_bracket_is_one(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["['a', 'b']", "c"], kind="classes")
        assert task.labels == ("['a', 'b']", "c")
        assert own(tmp_path, ["[x]", "y", "z", "y"]).labels == ("[x]", "y", "z")


class TestRowsWithoutALabel:
    @pytest.mark.parametrize(
        ("column", "found"),
        [
            (["a", "b", ""], "an empty cell"),
            (["a", "b", None], "none"),
            (["a", "b", "-"], "'-'"),
            (["0", "1", "2", "-1"], "'-1'"),
            ([0, 1, 2, -1.0], "-1.0"),
            ([0.5, 1.5, float("nan")], "nan"),
            (["1.5", "0.5", "-"], "'-'"),
            (["1.0", "0.0", ""], "an empty cell"),
            ([["a"], ["a", "b"], None], "none"),
        ],
    )
    def test_they_are_an_error_or_left_out_and_counted(
        self, tmp_path: Path, column: list[Any], found: str
    ) -> None:
        last = len(column)
        for rows in (column, column[-1:] + column[:-1]):  # wherever they stand
            message = rf"jsonl:[1{last}]: expected a label, got {found}.* \(in 1 of {last} rows\)"
            with pytest.raises(DataError, match=f"{message}; --missing drop leaves"):
                own(tmp_path, rows).examples("train")
            task = own(tmp_path, rows, rows, missing="drop")
            for split in ("train", "validation"):
                assert len(read(task, split)) == last - 1
                assert task.skipped(split) == {"unlabeled_rows": 1}
            assert not any(mark in task.labels for mark in ("-", "-1", "nan"))
            trained = own(tmp_path, rows, rows, missing="drop", kind=task.kind, labels=task.labels)
            if task.labels:
                assert read(trained, "validation") == read(task, "validation")

    @pytest.mark.parametrize(
        ("column", "labels"),
        [
            (["a", "b", "-"] * 2, ("-", "a", "b")),
            ([0, 1, 2, -1] * 2, ("-1", "0", "1", "2")),
            (["nan", "pos"] * 2, ("nan", "pos")),
        ],
    )
    def test_they_are_a_class_on_request(
        self, tmp_path: Path, column: list[Any], labels: tuple[str, ...]
    ) -> None:
        task = own(tmp_path, column, missing="class")
        assert task.labels == labels
        assert not any("warning" in line for line in task.notes())

    @pytest.mark.parametrize("column", [["+", "-"], [-1, 1], ["-1.5", "-1"], [-1, -2, 0]])
    def test_signs_and_amounts_are_labels(self, tmp_path: Path, column: list[Any]) -> None:
        task = own(tmp_path, column * 2, missing="drop")
        assert (len(read(task)), task.skipped("train")) == (2 * len(column), {})

    def test_minus_one_beside_zero_and_one_is_a_class_with_a_warning(self, tmp_path: Path) -> None:
        task = own(tmp_path, [-1, 0, 1] * 2)
        assert task.labels == ("-1", "0", "1")
        assert task.notes()[-1].startswith("warning: '-1' is read as a class; if it marks rows")
        task = own(tmp_path, [-1, 0, 1] * 2, missing="drop")
        assert (task.labels, task.skipped("train")) == (("0", "1"), {"unlabeled_rows": 2})

    @pytest.mark.parametrize("mark", [-1, "-", "", None])
    def test_test_file_may_withhold_all_labels(self, tmp_path: Path, mark: Any) -> None:
        task = own(tmp_path, [0, 1], [0], [mark, mark])
        assert (read(task, "test"), task.skipped("test")) == ([None, None], {})
        assert [line for line in task.notes() if "of test" in line] == []
        task = own(tmp_path, [0, 1], [0], [mark, 1], missing="drop")
        assert (read(task, "test"), task.skipped("test")) == (["1"], {"unlabeled_rows": 1})

    def test_file_without_any_label_is_refused(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["a", "b"], ["", ""], missing="drop")
        with pytest.raises(DataError, match="expected rows with a label, got none in 2 rows"):
            task.examples("validation")

    def test_empty_cell_with_a_separator_is_no_class(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["a;b", ""], separator=";", delimiter=",", missing="drop")
        assert read(task) == [("a", "b"), ()]


class TestMisreadings:
    @pytest.mark.parametrize(
        ("column", "warning"),
        [
            (["a", "a", "b"], "class 'b' has one example"),
            (["a", "b", "c"], "3 classes have one example each: 'a', 'b', 'c'"),
            (["Label", "a"] * 2, "class 'Label' is named as the column 'label' is"),
            (["Pos", "pos", "neg"] * 2, "classes 'Pos' and 'pos' differ in spelling only"),
            (
                ["a", "b", "a, b"] * 2,
                "class 'a, b' looks like 2 classes; --separator ',' reads it so",
            ),
        ],
    )
    def test_is_a_warning(self, tmp_path: Path, column: list[str], warning: str) -> None:
        for rows in (column, column[::-1]):
            assert f"warning: {warning}" in own(tmp_path, rows).notes()

    def test_ordinary_column_has_none(self, tmp_path: Path) -> None:
        task = own(tmp_path, ["neg", "pos"] * 2, ["pos"])
        assert task.notes() == [
            "columns: text = text, label = label",
            "labels: 2 classes: neg 2, pos 2",
            "labels of validation: 2 classes: neg 0, pos 1",
        ]

    def test_names_of_the_columns_in_other_capitals_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text("text,label\na,x\nb,y\nText,Label\n")
        with pytest.raises(DataError, match=r"train.csv:4: .* got the names of the columns"):
            classify_task({"train": path}, ClassifyConfig()).examples("train")

    def test_column_of_texts_is_refused(self, tmp_path: Path) -> None:
        column = [f"name {number}" for number in range(25)]
        message = r"got 25 different labels in 25 rows, 25 of them once; .*--label-column"
        with pytest.raises(DataError, match=message):
            own(tmp_path, column).examples("train")
        assert len(own(tmp_path, column, kind="classes").labels) == 25

    def test_many_classes_are_told_in_part(self, tmp_path: Path) -> None:
        told = own(tmp_path, [f"c{number:02}" for number in range(30)] * 2).notes()[1]
        assert told.startswith("labels: 30 classes: c00 2, c01 2")
        assert told.endswith("c19 2, … (10 more)")
