"""The user's own tables: what is read, what it is taken for, how it is scored, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import HeadConfig
from finetune.text.features.pairs import collate
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.own.names import slug
from tasks.own.text import ClassifyConfig, ClassifyTask, classify_task
from tests.made.nets import tiny_config

CONFIG = tiny_config(vocab_size=100, max_position_embeddings=16)
STRANGE = "x\u0085y\u2028z 👩‍👩‍👧 שלום e\u0301"
LONG = "good film " * 10_000


def write(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def table(*rows: tuple[str, Any], header: str = "text,label") -> str:
    cells = (",".join('"' + str(c).replace('"', '""') + '"' for c in row) for row in rows)
    return "\n".join([header, *cells, ""])


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Write the files (a name and a content, or a content of a CSV) and make their task."""

    def make(
        train: Any, validation: Any = None, test: Any = None, labels: Any = None, **config: Any
    ) -> ClassifyTask:
        files = {}
        for split, given in (("train", train), ("validation", validation), ("test", test)):
            if given is not None:
                name, content = given if isinstance(given, tuple) else (".csv", given)
                files[split] = write(tmp_path / f"{split}{name}", content)
        return classify_task(files, ClassifyConfig(**config), labels)

    return make


TWO = table(("good", "pos"), ("bad", "neg"), ("fine", "pos"))


class TestClasses:
    def test_rows_become_examples_with_ids_and_names(self, make: Any, tmp_path: Path) -> None:
        task = make(table((9, "good", "pos"), ("k", "bad", "neg"), header="id,text,label"))
        read = [(row.id, row.texts, row.label) for row in task.examples("train")]
        assert read == [(9, ("good",), "pos"), ("k", ("bad",), "neg")]
        assert (task.kind, task.labels) == ("classes", ("neg", "pos"))
        assert task.name == f"classify/{slug(tmp_path.name)}"  # of train.csv in that folder
        assert task.monitor == "accuracy"

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            (".csv", TWO),
            (".csv.gz", TWO),
            (".csv", "\ufeff" + TWO.replace("\n", "\r\n")),
            (".tsv", "text\tlabel\ngood\tpos\nbad\tneg\nfine\tpos\n"),
            (
                ".jsonl",
                lines(
                    *(
                        {"text": t, "label": y}
                        for t, y in zip(("good", "bad", "fine"), ("pos", "neg", "pos"), strict=True)
                    )
                ),
            ),
        ],
        ids=["csv", "gzip", "CRLF and BOM", "tsv", "jsonl"],
    )
    def test_every_form_of_file_gives_the_same(self, make: Any, name: str, content: str) -> None:
        read = make((name, content)).examples("train")
        assert [row.texts[0] for row in read] == ["good", "bad", "fine"]
        assert [row.label for row in read] == ["pos", "neg", "pos"]

    def test_classes_are_sorted_and_numbers_by_value(self, make: Any) -> None:
        rows = [("t", name) for name in ("10", "9", "b", "a", "-1", "10")]
        assert make(table(*rows)).labels == ("-1", "9", "10", "a", "b")

    def test_pair_is_read_and_told(self, make: Any) -> None:
        task = make(table(("a", "b", "yes"), ("c", "d", "no"), header="premise,hypothesis,label"))
        examples = task.examples("train")
        assert examples[0].texts == ("a", "b")
        assert task.describe(examples) == {
            "kind": "classes",
            "columns": {"text": "premise", "pair": "hypothesis", "label": "label"},
            "classes": {"no": 1, "yes": 1},
        }

    def test_metrics_and_report(self, make: Any) -> None:
        task = make(TWO)
        train = task.examples("train")
        answers = task.baseline_answers(train, train)
        assert task.score(answers) == pytest.approx(
            {
                "accuracy": 2 / 3,
                "macro_f1": 0.4,
                "macro_precision": 1 / 3,
                "macro_recall": 0.5,
                "auc": 0.5,
            }
        )
        assert list(task.score(answers)) == [
            *("accuracy", "macro_f1", "macro_precision", "macro_recall", "auc")
        ]
        report = task.report(answers)
        assert report["confusion_matrix"] == {"classes": ["neg", "pos"], "counts": [[0, 1], [0, 2]]}
        assert report["per_class"]["pos"]["support"] == 2
        json.dumps(report)

    @pytest.mark.parametrize("order", [("neg", "pos"), ("pos", "neg")])
    def test_order_of_a_trained_head_does_not_permute_the_answers(
        self, make: Any, order: tuple[str, str], tokenizer: Tokenizer
    ) -> None:
        task = make(TWO, TWO, labels=order)
        examples = task.examples("validation")
        features = task.features(examples, tokenizer, 8, training=False)
        logits = np.eye(2)[[feature.label for feature in features]]
        assert task.score(task.answers(logits, examples, features))["accuracy"] == 1.0

    def test_balanced_weights_are_inverse_to_frequency(self, make: Any) -> None:
        head = make(TWO, class_weights="balanced").head(CONFIG, HeadConfig())
        assert head.class_weights.tolist() == pytest.approx([3 / 2, 3 / 4])
        assert make(TWO).head(CONFIG, HeadConfig()).class_weights is None

    def test_withheld_labels_of_the_test_file_are_no_error_until_scored(self, make: Any) -> None:
        task = make(TWO, TWO, "text\ngood\n")
        (example,) = task.examples("test")
        assert example.label is None
        assert task.test_splits == ("test",)
        with pytest.raises(DataError, match="expected answers with labels, got some without"):
            task.score([{"id": 0, "prediction": "pos"}])


class TestPositiveClass:
    def test_its_precision_recall_and_f1_are_metrics_too(self, make: Any) -> None:
        task = make(TWO, positive_class="neg")
        answers = [
            {"prediction": p, "label": y} for p, y in (("neg", "neg"), ("neg", "pos"), ("pos",) * 2)
        ]
        scores = task.score(answers)
        assert (scores["precision"], scores["recall"], scores["f1"]) == (
            0.5,
            1,
            pytest.approx(2 / 3),
        )
        assert list(scores)[0] == "accuracy"

    def test_unknown_class_is_an_error(self, make: Any) -> None:
        task = make(TWO, positive_class="good")
        with pytest.raises(ConfigError, match="positive_class: expected one of .* neg, pos, got"):
            task.score([{"prediction": "neg", "label": "pos"}])


class TestSeveralClasses:
    @pytest.mark.parametrize(
        ("given", "config"),
        [
            (table(("a", "x; y"), ("b", ""), ("c", "y;x;;x")), {"separator": ";"}),
            (
                (
                    ".jsonl",
                    lines(
                        {"text": "a", "label": ["y", "x"]},
                        {"text": "b", "label": []},
                        {"text": "c", "label": ["x", "y", "x"]},
                    ),
                ),
                {},
            ),
        ],
        ids=["separator", "lists"],
    )
    def test_joined_names_and_lists_give_the_same(
        self, make: Any, given: Any, config: Any, tokenizer: Tokenizer
    ) -> None:
        task = make(given, **config)
        examples = task.examples("train")
        assert [example.label for example in examples] == [("x", "y"), (), ("x", "y")]
        assert (task.kind, task.labels, task.monitor) == ("multi_label", ("x", "y"), "micro_f1")
        features = task.features(examples, tokenizer, 8, training=True)
        assert collate(features, [0, 1, 2], 0)["labels"].tolist() == [[1, 1], [0, 0], [1, 1]]
        assert task.describe(examples)["classes"] == {"x": 2, "y": 2}

    def test_metrics_report_and_loss(self, make: Any, tokenizer: Tokenizer) -> None:
        task = make(table(("a", "x"), ("b", "x,y"), ("c", "")), separator=",")
        examples = task.examples("train")
        features = task.features(examples, tokenizer, 8, training=False)
        answers = task.answers(np.array([[1, -1], [1, -1], [-1, -1]]), examples, features)
        assert [answer["prediction"] for answer in answers] == [["x"], ["x"], []]
        expected = {"micro_f1": 0.8, "macro_f1": 0.5, "subset_accuracy": 2 / 3}
        expected |= {"macro_precision": 0.5, "macro_recall": 0.5, "auc": 0.75}
        assert task.score(answers) == pytest.approx(expected)
        assert task.report(answers)["per_class"]["y"]["recall"] == 0
        head = task.head(CONFIG, HeadConfig())
        assert head.kind == "multi_label"
        batch = collate(features, [0, 1, 2], 0)
        assert head.loss(torch.zeros(3, 2), batch["labels"]) == pytest.approx(np.log(2))

    def test_trivial_answer_is_a_list_as_answers_are(self, make: Any) -> None:
        task = make(table(("a", "x"), ("b", "x"), ("c", "y")), separator=",")
        train = task.examples("train")
        assert task.baseline_answers(train, train[:1])[0]["prediction"] == ["x"]


class TestRegression:
    def test_numbers_are_kept_scored_and_reported(self, make: Any, tokenizer: Tokenizer) -> None:
        task = make(table(("a", "1.5"), ("b", "2"), ("c", "-3e-1")))
        examples = task.examples("train")
        assert [example.label for example in examples] == [1.5, 2.0, -0.3]
        assert (task.kind, task.labels, task.monitor) == ("regression", (), "pearson")
        features = task.features(examples, tokenizer, 8, training=False)
        answers = task.answers(np.array([2.5, 3.0, 0.7]), examples, features)
        errors = {"mean_absolute_error": 1, "root_mean_squared_error": 1}
        assert task.score(answers) == pytest.approx({"pearson": 1, "spearman": 1, **errors})
        report = task.report(answers)
        assert report == pytest.approx({"mean_squared_error": 1, "mean_absolute_error": 1})
        assert task.head(CONFIG, HeadConfig()).kind == "regression"


class TestKind:
    @pytest.mark.parametrize(
        ("labels", "kind"),
        [
            (["1", "2", "3"], "classes"),
            ([1, 2, 3], "classes"),
            ([1.0, 2.0], "classes"),
            ([1.0, 2.5], "regression"),
            (["1", "2.5"], "regression"),
            ([str(n) for n in range(30)], "regression"),  # more than 20, less than 10 rows each
            ([str(n) for n in range(20)], "classes"),
            ([str(n % 30) for n in range(300)], "classes"),  # class numbers come again and again
            (["pos", "neg"], "classes"),
            ([True, False], "classes"),
            ([["a"], ["b"]], "multi_label"),
        ],
    )
    def test_kind_is_told_by_the_training_labels(
        self, make: Any, labels: list[Any], kind: str
    ) -> None:
        task = make((".jsonl", lines(*({"text": "t", "label": label} for label in labels))))
        assert task.kind == kind
        assert task.describe(task.examples("train"))["kind"] == kind

    def test_named_kind_is_taken(self, make: Any) -> None:
        rows = table(("a", "1.5"), ("b", "2.5"))
        assert make(rows, kind="classes").labels == ("1.5", "2.5")
        assert make(table(("a", "1"), ("b", "2")), kind="regression").monitor == "pearson"

    def test_what_was_found_out_needs_no_training_file(self, make: Any, tmp_path: Path) -> None:
        task = make(TWO, TWO, class_weights="balanced")
        config, labels = task.resolved, task.labels
        assert config == ClassifyConfig("text", None, "label", "classes", None, "balanced")
        (tmp_path / "train.csv").unlink()
        files = {split: tmp_path / f"{split}.csv" for split in ("train", "validation")}
        later = classify_task(files, config, labels)
        assert later.example({"text": "good"}, "f:1", 0).texts == ("good",)
        assert len(later.examples("validation")) == 3
        assert later.head(CONFIG, HeadConfig()).kind == "classification"


class TestPredictedRows:
    def test_row_is_read_by_the_columns_of_the_training_file(self, make: Any) -> None:
        task = make(table(("a", "x"), ("b", "y"), header="review,label"))
        example = task.example({"id": 4, "review": "c", "more": 1}, "f:1", 0)
        assert (example.id, example.texts, example.label) == (4, ("c",), None)
        assert task.example({"text": "a bare line"}, "f:2", 1).texts == ("a bare line",)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"premise": "a"}, "f:1: expected a field 'hypothesis', got 'premise'"),
            (
                {"text": "a"},
                "f:1: expected 2 texts .the fields 'premise', 'hypothesis'; .*, got 1 text",
            ),
            ({"premise": "a", "hypothesis": 3}, "f:1: expected text in 'hypothesis', got int"),
            ({"premise": None, "hypothesis": ""}, "f:1: expected text in 'premise', got null"),
            ({"premise": "", "hypothesis": "", "id": ""}, "f:1: expected an id, text or a whole"),
        ],
    )
    def test_row_without_a_text_is_told(self, make: Any, row: Any, message: str) -> None:
        task = make(table(("a", "b", "x"), ("c", "d", "y"), header="premise,hypothesis,label"))
        with pytest.raises(DataError, match=message):
            task.example(row, "f:1", 0)


class TestStrangeTexts:
    def test_any_text_simply_works(self, make: Any, tokenizer: Tokenizer) -> None:
        texts = [STRANGE, LONG, "", "\u200b", "a\nb", "שלום", "👩‍👩‍👧", "e\u0301"]
        rows = [(text, "ab"[number % 2]) for number, text in enumerate(texts)]
        task = make(table(*rows), (".jsonl", lines(*({"text": t, "label": y} for t, y in rows))))
        for split in ("train", "validation"):
            examples = task.examples(split)
            assert [example.texts[0] for example in examples] == texts
            features = task.features(examples, tokenizer, 8, training=False)
            assert max(len(feature.input_ids) for feature in features) <= 8
        assert task.describe(examples)["empty_texts"] == 2

    def test_texts_all_empty_are_an_error_in_training_data_only(self, make: Any) -> None:
        empty = table(("\u200b\ufeff", "pos"), (" ", "neg"))
        assert len(make(TWO, empty).examples("validation")) == 2
        with pytest.raises(
            DataError, match=r"train.csv: expected texts to train on, got all of them empty"
        ):
            make(empty).examples("train")


BAD = {
    "missing column": (
        {"train": table(("a", "x"), header="text,verdict"), "label_column": "label"},
        "train.csv:1: expected a column 'label', got the columns 'text', 'verdict'",
    ),
    "doubled column": (
        {"train": "text,label,label\na,b,c\n"},
        "train.csv:1: expected each column once, got 'label' several times in the header text, "
        "label, label",
    ),
    "empty file": ({"train": ""}, "train.csv: expected a header line that names the columns"),
    "empty JSON lines": ({"train": (".jsonl", "\n")}, "train.jsonl: expected rows of examples"),
    "only a header": (
        {"train": "text,label\n"},
        "train.csv: expected rows of examples, got none after the header",
    ),
    "one class only": (
        {"train": table(("a", "x"), ("b", "x"))},
        "train.csv: expected at least two different labels, got 'x' in all 2 rows",
    ),
    "NaN among numbers": (
        {"train": table(("a", "1.5"), ("b", "nan"))},
        "train.csv:3: expected a label, got 'nan', which usually marks a row without a label",
    ),
    "NaN in JSON": (
        {"train": (".jsonl", '{"text": "a", "label": 1.5}\n{"text": "b", "label": NaN}\n')},
        "train.jsonl:2: expected a label, got nan, which usually marks a row without a label",
    ),
    "infinity": (
        {"train": table(("a", "1.5"), ("b", "-inf")), "kind": "regression"},
        "train.csv:3: expected a finite number as the label, got '-inf'",
    ),
    "a word among numbers": (
        {"train": table(("a", "1.5"), ("b", "n/a"))},
        "train.csv:3: expected a finite number as the other labels are, got 'n/a'; correct the "
        "row, or say --kind classes",
    ),
    "no label": (
        {"train": table(("a", "x"), ("b", " "))},
        r"train.csv:3: expected a label, got an empty cell \(in 1 of 2 rows\); --missing drop",
    ),
    "label null": (
        {"train": (".jsonl", lines({"text": "a", "label": "x"}, {"text": "b"}))},
        r"train.jsonl:2: expected a label, got none \(in 1 of 2 rows\); --missing drop leaves",
    ),
    "classes without a separator": (
        {"train": table(("a", "x;y"), ("b", "x")), "kind": "multi_label"},
        "train.csv:2: expected a list of classes as the label, got 'x;y'; --separator says",
    ),
    "a list and a text": (
        {"train": (".jsonl", lines({"text": "a", "label": ["x"]}, {"text": "b", "label": "x"}))},
        "train.jsonl:2: expected a list of classes as the label, got 'x'",
    ),
    "text is a number": (
        {"train": (".jsonl", lines({"text": 1, "label": "x"}))},
        "train.jsonl:1: expected text in 'text', got int",
    ),
    "field missing": (
        {"train": (".jsonl", lines({"text": "a", "label": "x"}, {"label": "x"}))},
        "train.jsonl:2: expected a field 'text', got 'label'",
    ),
    "doubled id": (
        {"train": table((1, "a", "x"), (2, "b", "y"), (1, "c", "x"), header="id,text,label")},
        "train.csv:4: expected an id of its own, got 1 a second time, first at .*train.csv:2",
    ),
    "cut JSON": (
        {"train": (".jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "la')},
        "train.jsonl:2: expected a JSON object on a line of its own, got a line that is cut",
    ),
    "plain text": ({"train": (".txt", "a\n")}, "train.txt: expected a table with labels"),
}


class TestBadInput:
    @pytest.mark.parametrize(("given", "message"), BAD.values(), ids=list(BAD))
    def test_error_is_one_line_that_names_the_place(
        self, make: Any, given: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(DataError, match=message) as raised:
            make(**given).examples("train")
        assert all("train" in line for line in str(raised.value).splitlines())

    def test_class_that_training_lacks_is_told(self, make: Any) -> None:
        task = make(TWO, table(("a", "pos"), ("b", "new")))
        with pytest.raises(
            DataError, match=r"validation.csv:3: expected a class that the training .*got 'new'"
        ):
            task.examples("validation")

    def test_validation_file_of_other_columns_is_told(self, make: Any) -> None:
        task = make(TWO, table(("a", "pos"), header="text,verdict"))
        with pytest.raises(DataError, match=r"validation.csv:1: expected a column 'label', got"):
            task.examples("validation")

    def test_test_file_is_labelled_throughout_or_not_at_all(self, make: Any) -> None:
        task = make(TWO, test=table(("a", "pos"), ("b", "")))
        with pytest.raises(DataError, match=r"test.csv:3: expected a label, .* --missing drop"):
            task.examples("test")

    def test_missing_file_and_missing_split_are_told(self, make: Any, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no\.csv: expected the train file, got none"):
            classify_task({"train": tmp_path / "no.csv"}, ClassifyConfig()).examples("train")
        with pytest.raises(DataError, match="classify/.* has no split 'test'"):
            make(TWO).examples("test")
        with pytest.raises(ConfigError, match="own tables need a file to train on: --train FILE"):
            classify_task({}, ClassifyConfig())
        with pytest.raises(ConfigError, match="classify/own has no dev split"):
            classify_task({"dev": tmp_path}, ClassifyConfig())

    def test_head_of_other_classes_is_refused(self, make: Any) -> None:
        task = make(TWO, labels=("neg", "neutral", "pos"))
        with pytest.raises(CheckpointError, match=r"classes neg, pos, got one for neg, neutral"):
            task.examples("train")

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (
                {"kind": "class"},
                "kind must be one of auto, classes, multi_label, regression, got 'class'; d",
            ),
            ({"class_weights": "yes"}, "class_weights must be one of none, balanced, got 'yes'"),
            ({"separator": ""}, "separator is empty"),
            ({"separator": ";", "kind": "classes"}, "separator ';' joins the classes"),
        ],
    )
    def test_bad_setting_is_told(self, config: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            ClassifyConfig(**config)
        assert str(raised.value).startswith(message)

    def test_class_weights_are_for_one_class_a_row(self, make: Any) -> None:
        task = make(table(("a", "1.5"), ("b", "2.5")), class_weights="balanced")
        with pytest.raises(ConfigError, match="class_weights balanced: expected one class a row"):
            task.head(CONFIG, HeadConfig())
