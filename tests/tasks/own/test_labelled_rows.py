"""Which rows of the user's own tables are learnt from, held out, left out or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConfigError, DataError
from tasks.own.text import ClassifyConfig, ClassifyTask, classify_task


def own(tmp_path: Path, config: dict[str, Any], **rows: list[dict[str, Any]]) -> ClassifyTask:
    """A task of JSONL files, one a split."""
    files = {}
    for split, own_rows in rows.items():
        files[split] = tmp_path / f"{split}.jsonl"
        files[split].write_text("".join(json.dumps(row) + "\n" for row in own_rows))
    return classify_task(files, ClassifyConfig(**config))


def rows(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"t{number}", "label": label} for number, label in enumerate(labels)]


class TestHoldout:
    def test_fraction_of_each_class_is_validated_on(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"holdout": 0.2}, train=rows(*"aaaabbbbbb" * 5))
        train, validation = task.examples("train"), task.examples("validation")
        assert task.validation_splits == ("validation",)
        assert [len([e for e in validation if e.label == name]) for name in "ab"] == [4, 6]
        assert sorted(example.id for example in (*train, *validation)) == list(range(50))
        assert task.data_files("validation") == task.data_files("train")

    def test_choice_is_keyed_by_its_seed(self, tmp_path: Path) -> None:
        def ids(seed: int) -> list[Any]:
            config = {"holdout": 0.5, "holdout_seed": seed}
            return [e.id for e in own(tmp_path, config, train=rows(*"ab" * 20)).examples("train")]

        assert ids(1) == ids(1) != ids(2)

    def test_equal_texts_stay_on_one_side(self, tmp_path: Path) -> None:
        train = [{"text": f"t{n % 10}", "label": "ab"[n % 2]} for n in range(60)]
        task = own(tmp_path, {"holdout": 0.3}, train=train)
        sides = [{e.texts for e in task.examples(split)} for split in ("train", "validation")]
        assert not sides[0] & sides[1]
        assert all(sides)

    def test_mirrored_pairs_stay_on_one_side(self, tmp_path: Path) -> None:
        train = [
            {"text1": f"t{first}", "text2": f"t{second}", "label": "ab"[(first < second)]}
            for first in range(7)
            for second in range(7)
            if first != second
        ]
        task = own(tmp_path, {"holdout": 0.3}, train=train)
        sides = [
            {frozenset(e.texts) for e in task.examples(split)} for split in ("train", "validation")
        ]
        assert not sides[0] & sides[1]
        assert all(sides)

    def test_numbers_are_drawn_from_all_of_their_range(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"holdout": 0.2}, train=rows(*(n + 0.5 for n in range(100))))
        assert task.kind == "regression"
        labels = [float(str(example.label)) for example in task.examples("validation")]
        assert len(labels) == 20
        assert [sum(10 * n <= label < 10 * (n + 1) for label in labels) for n in range(10)] == (
            [2] * 10
        )

    def test_class_with_one_text_is_learnt(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"holdout": 0.5}, train=rows("a", "a", "b"))
        assert {example.label for example in task.examples("train")} == {"a", "b"}

    def test_file_and_fraction_contradict_each_other(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"holdout 0.2 takes rows .* --validation names"):
            own(tmp_path, {"holdout": 0.2}, train=rows("a"), validation=rows("a"))

    @pytest.mark.parametrize("fraction", [0, 1, -0.5])
    def test_fraction_is_between_none_and_all(self, fraction: float) -> None:
        with pytest.raises(ConfigError, match="holdout must be .* above 0 and below 1"):
            ClassifyConfig(holdout=fraction)


class TestMissing:
    NULL = [*rows("a", "b"), {"text": None, "label": "a"}, {"text": None, "label": "b"}]

    def test_rows_whose_text_is_null_are_reported_together(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError,
            match=r"train.jsonl: expected rows to learn from, got 2 of 4 that cannot be used; .* "
            r"--missing drop leaves out rows without a label, or whose text is null\n"
            r"  .*jsonl:3: expected text in 'text', got null\n"
            r"  .*jsonl:4: expected text in 'text', got null$",
        ):
            own(tmp_path, {}, train=self.NULL).examples("train")

    def test_rows_whose_text_is_null_are_left_out_and_counted(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"missing": "drop"}, train=self.NULL)
        assert len(task.examples("train")) == 2
        assert task.skipped("train") == {"rows_without_text": 2}

    def test_only_five_rows_are_listed(self, tmp_path: Path) -> None:
        bad = [{"text": number, "label": "a"} for number in range(7)]
        with pytest.raises(DataError, match=r"got 7 of 7 .*\n(  .*int\n){5}  and 2 more$"):
            own(tmp_path, {}, train=bad).examples("train")

    def test_rows_without_a_label_are_listed_by_line(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"\(in 2 of 4 rows: lines 2, 4\); --missing drop"):
            own(tmp_path, {}, train=rows("a", None, "b", "")).examples("train")

    def test_old_name_of_the_setting_is_still_read(self) -> None:
        from finetune.settings.renames import with_new_names

        with pytest.warns(FutureWarning, match="unlabeled is now missing"):
            new = with_new_names({"table": {"unlabeled": "drop"}}, warn=True)
        assert new == {"table": {"missing": "drop"}}


class TestUnknownLabels:
    SPLITS = {"train": rows("a", "b"), "validation": rows("c", "a", "d")}

    def test_they_are_reported_together_with_the_flag(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError,
            match=r"got 2 of 3 that .*\n.*jsonl:1: .*got 'c'; --unknown-label drop leaves .*"
            r"\n.*jsonl:3: ",
        ):
            own(tmp_path, {}, **self.SPLITS).examples("validation")

    def test_they_are_left_out_and_counted_on_request(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"unknown_label": "drop"}, **self.SPLITS)
        assert [example.label for example in task.examples("validation")] == ["a"]
        assert task.skipped("validation") == {"unknown_labels": 2}

    def test_all_of_them_unknown_is_an_error(self, tmp_path: Path) -> None:
        splits = {"train": rows("a", "b"), "validation": rows("c")}
        task = own(tmp_path, {"unknown_label": "drop"}, **splits)
        with pytest.raises(DataError, match="expected rows with a class that the training data"):
            task.examples("validation")


class TestColumns:
    HOT = [
        {"key": "k1", "comment_text": "x", "toxic": 1, "insult": 0, "threat": 0},
        {"key": "k2", "comment_text": "y", "toxic": "1", "insult": 1.0, "threat": "true"},
        {"key": "k3", "comment_text": "z", "toxic": False, "insult": 0, "threat": 0},
    ]

    def test_columns_of_0_and_1_are_asked_about(self, tmp_path: Path) -> None:
        task = own(tmp_path, {"text_column": "comment_text"}, train=self.HOT)
        with pytest.raises(
            DataError,
            match="say which by --label-column, or, if each of toxic, insult, threat says by 0 or "
            "1 .* by --label-column toxic,insult,threat",
        ):
            task.examples("train")

    def test_named_columns_of_0_and_1_are_classes_of_which_several_hold(
        self, tmp_path: Path
    ) -> None:
        config = {"text_column": "comment_text", "label_column": "toxic,insult,threat"}
        task = own(tmp_path, config, train=self.HOT)
        assert task.kind == "multi_label"
        assert [example.label for example in task.examples("train")] == [
            ("toxic",),
            ("insult", "threat", "toxic"),
            (),
        ]
        assert task.example({"comment_text": "w"}, "f:1", 0).texts == ("w",)

    def test_another_value_is_an_error(self, tmp_path: Path) -> None:
        config = {"text_column": "comment_text", "label_column": "toxic,insult"}
        bad = [*self.HOT, {**self.HOT[0], "insult": "yes"}]
        with pytest.raises(DataError, match="jsonl:4: expected 0 or 1 in 'insult', .*got 'yes'"):
            own(tmp_path, config, train=bad).examples("train")

    def test_test_file_may_lack_them(self, tmp_path: Path) -> None:
        config = {"text_column": "comment_text", "label_column": "toxic,insult,threat"}
        task = own(tmp_path, config, train=self.HOT, test=[{"comment_text": "w"}])
        assert [example.label for example in task.examples("test")] == [None]

    def test_id_may_have_any_name(self, tmp_path: Path) -> None:
        config = {"text_column": "comment_text", "label_column": "toxic", "id_column": "key"}
        task = own(tmp_path, config, train=self.HOT)
        assert [example.id for example in task.examples("train")] == ["k1", "k2", "k3"]
        assert task.example({"comment_text": "w", "key": "q"}, "f:1", 0).id == "q"
        with pytest.raises(DataError, match="expected a column 'kay', got .* did you mean 'key'"):
            own(tmp_path, {**config, "id_column": "kay"}, train=self.HOT).examples("train")

    def test_several_text_columns_are_joined(self, tmp_path: Path) -> None:
        train = [
            {"title": "A", "body": "b", "label": "x"},
            {"title": None, "body": "c", "label": "y"},
        ]
        task = own(tmp_path, {"text_column": "title,body"}, train=train)
        assert [example.texts for example in task.examples("train")] == [("A b",), ("c",)]
        assert task.example({"text": "d"}, "f:1", 0).texts == ("d",)
        with pytest.raises(DataError, match="expected a column 'bodi', .* did you mean 'body'"):
            own(tmp_path, {"text_column": "title,bodi"}, train=train).examples("train")


def test_rows_that_cannot_be_read_are_reported_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label,id\na,x,1\nb,y\nc,x,1\nd,x,y,z,4\ne,,5\n")
    with pytest.raises(
        DataError,
        match=r"got 4 of 5 that cannot(?s:.*)csv:3: (?s:.*)4: .*own(?s:.*)5: (?s:.*)6: .*label",
    ):
        classify_task({"train": path}, ClassifyConfig()).examples("train")
