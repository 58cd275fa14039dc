"""Labels go by name: their order in a trained head, WNLI's fixed answer, the unlabelled set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import HeadConfig
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.glue.task import GLUE, GlueRow, GlueTask, glue_task
from tests.made.nets import tiny_config

CLASSES = [row for row in GLUE.values() if row.labels]
EVERY_CLASS_ROW = pytest.mark.parametrize("row", CLASSES, ids=[row.name for row in CLASSES])


class TestOrderOfAnotherHead:
    @EVERY_CLASS_ROW
    def test_permuted_head_gives_the_same_answers_and_scores(self, row: GlueRow) -> None:
        generator = np.random.default_rng(1)
        order = np.roll(np.arange(len(row.labels)), 1)
        labels = tuple(row.labels[place] for place in order)
        examples = [
            Example(n, ("a", "b"), row.labels[n % len(row.labels)] if row.name != "ax" else None)
            for n in range(40)
        ]
        logits = generator.normal(size=(len(examples), len(labels))).astype(np.float32)
        own, other = GlueTask(row), glue_task(row.name, labels=labels)
        assert other.labels == labels
        answers = own.answers(logits, examples, [])
        permuted = other.answers(logits[:, order], examples, [])
        assert permuted == answers
        assert len({answer["prediction"] for answer in answers}) == len(labels)
        split = own.test_splits[0]
        assert other.submission(split, permuted) == own.submission(split, answers)
        if row.name != "ax":
            assert other.score(permuted) == own.score(answers)
            assert all(score != 0 for score in own.score(answers).values())

    def test_weights_of_a_permuted_head_answer_alike(self) -> None:
        config = tiny_config(
            vocab_size=10, hidden_size=8, num_hidden_layers=1, intermediate_size=16
        )
        hidden = torch.randn(20, 3, 8, generator=torch.Generator().manual_seed(1))
        own = glue_task("mnli")
        other = glue_task("ax", labels=("contradiction", "entailment", "neutral"))
        heads = [task.head(config, HeadConfig()).eval() for task in (own, other)]
        state = heads[0].state_dict()
        places = [own.labels.index(label) for label in other.labels]
        last = max(name for name in state if name.startswith("layers."))[: len("layers.0")]
        heads[1].load_state_dict(
            {k: v[places] if k.startswith(last) else v for k, v in state.items()}
        )
        examples = [Example(n, ("a", "b")) for n in range(20)]
        with torch.no_grad():
            first, second = (head(hidden).numpy() for head in heads)
        assert np.array_equal(second, first[:, places])
        same = own.answers(first, examples, []), other.answers(second, examples, [])
        assert same[0] == same[1]

    @EVERY_CLASS_ROW
    def test_training_numbers_the_classes_in_the_heads_order(
        self, row: GlueRow, data: Path, tokenizer: Tokenizer
    ) -> None:
        if row.name == "ax":
            return
        task = glue_task(row.name, data, labels=row.labels[::-1])
        examples = task.examples("train")
        features = task.features(examples, tokenizer, 32, training=True)
        named = [task.labels[int(str(feature.label))] for feature in features]
        assert named == [example.label for example in examples]
        assert examples == glue_task(row.name, data).examples("train")

    @pytest.mark.parametrize(
        ("name", "labels", "message"),
        [
            (
                "rte",
                ("yes", "no"),
                "glue/rte: expected a head for the labels entailment, not_entailment, got one "
                "for yes, no; name a run that has learnt them",
            ),
            ("ax", ("entailment", "not_entailment"), "labels entailment, neutral, contradiction"),
            ("stsb", ("a", "b"), r"labels no classes \(a number\), got one for a, b"),
            ("sst2", (), r"labels negative, positive, got one for no classes \(a number\)"),
            ("sst2", ("negative",) * 2, "got one for negative, negative"),
        ],
    )
    def test_another_set_of_labels_is_an_error_with_both(
        self, name: str, labels: tuple[str, ...], message: str
    ) -> None:
        with pytest.raises(CheckpointError, match=message):
            glue_task(name, labels=labels)

    def test_regression_has_no_order(self) -> None:
        assert glue_task("stsb", labels=()).labels == ()


class TestUnknownLabels:
    @pytest.mark.parametrize("field", ["prediction", "label"])
    @pytest.mark.parametrize(
        ("name", "found", "legal"),
        [
            ("rte", "perhaps", "one of entailment, not_entailment"),
            ("rte", None, "one of entailment, not_entailment"),
            ("cola", 1, "one of unacceptable, acceptable"),
            ("stsb", "3.5", "a number"),
        ],
    )
    def test_in_a_predictions_row_is_an_error_with_its_id(
        self, field: str, name: str, found: Any, legal: str
    ) -> None:
        good = (GLUE[name].labels or (1.0,))[0]
        rows = [{"id": "q3", "prediction": good, "label": good, field: found}]
        with pytest.raises(
            DataError, match=f"glue/{name}: expected {legal}, got {found!r} in the row of id 'q3'"
        ):
            glue_task(name).score(rows)

    def test_is_not_submitted(self) -> None:
        with pytest.raises(DataError, match="got 'perhaps' in the row of id 0"):
            glue_task("rte").submission("test", [{"id": 0, "prediction": "perhaps"}])

    @pytest.mark.parametrize(("name", "label"), [("rte", "perhaps"), ("rte", 1.0), ("stsb", "a")])
    def test_cannot_be_learnt(self, name: str, label: Any, tokenizer: Tokenizer) -> None:
        examples = [Example(5, ("a", "b"), label)]
        with pytest.raises(DataError, match=f"got {label!r} in the row of id 5"):
            glue_task(name).features(examples, tokenizer, 32, training=True)

    def test_no_examples_have_no_features(self, tokenizer: Tokenizer) -> None:
        assert glue_task("rte").features([], tokenizer, 32, training=False) == []


class TestDiagnosticSet:
    def test_has_one_split_to_answer_and_none_to_train_on(self) -> None:
        task = glue_task("ax")
        assert task.train_split is None
        assert task.validation_splits == ()
        assert task.test_splits == ("ax",)
        assert task.fixed_answer is None

    def test_scoring_is_an_error_that_says_that_it_is_unlabelled(self) -> None:
        answers = [{"id": 0, "prediction": "neutral", "label": "neutral"}]
        with pytest.raises(DataError, match="glue/ax: .* the diagnostic set, which is unlabelled"):
            glue_task("ax").score(answers)

    def test_a_test_file_of_the_users_is_its_one_split(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.tsv"
        mine.write_text("index\tsentence1\tsentence2\n4\tIt rains.\tIt is wet.\n")
        task = glue_task("ax", files={"test": mine})
        assert task.examples("ax") == [Example(4, ("It rains.", "It is wet."))]

    def test_file_for_a_split_that_a_task_lacks_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="glue/ax has no train split, got the file t.tsv"):
            glue_task("ax", files={"train": Path("t.tsv")})
        with pytest.raises(ConfigError, match="glue/rte has no tests split.* mean 'test'?"):
            glue_task("rte", files={"tests": Path("t.tsv")})


class TestFixedAnswer:
    @pytest.fixture
    def wnli(self, tmp_path: Path) -> dict[str, Path]:
        train, validation = tmp_path / "train.tsv", tmp_path / "dev.tsv"
        header = "sentence1\tsentence2\tlabel\n"
        train.write_text(header + "a\tb\t1\na\tc\t0\na\td\t1\n")
        validation.write_text(header + "a\tb\t1\na\tc\t0\n")
        return {"train": train, "validation": validation}

    def test_of_wnli_is_the_majority_class_of_its_training_labels(
        self, wnli: dict[str, Path]
    ) -> None:
        assert glue_task("wnli", files=wnli).fixed_answer == "entailment"

    def test_is_read_when_it_is_asked_for_and_once(self, wnli: dict[str, Path]) -> None:
        task = glue_task("wnli", files=wnli)
        content = wnli["train"].read_text()
        wnli["train"].unlink()
        assert len(task.examples("validation")) == 2
        with pytest.raises(DataError, match="expected the train file of glue/wnli"):
            _ = task.fixed_answer
        wnli["train"].write_text(content)
        assert task.fixed_answer == "entailment"
        wnli["train"].unlink()
        assert task.fixed_answer == "entailment"

    def test_gives_way_to_training_that_is_asked_for(self, wnli: dict[str, Path]) -> None:
        assert glue_task("wnli", files=wnli, train_wnli=True).fixed_answer is None

    @pytest.mark.parametrize("name", sorted(GLUE.keys() - {"wnli"}))
    def test_no_other_task_has_one(self, name: str) -> None:
        assert glue_task(name, Path("nowhere")).fixed_answer is None


class TestUsersRow:
    @pytest.mark.parametrize(
        ("name", "row", "expected"),
        [
            ("sst2", {"sentence": "good"}, Example(7, ("good",))),
            ("sst2", {"text": "good", "label": "positive"}, Example(7, ("good",))),
            ("sst2", {"text": "", "id": "x-1"}, Example("x-1", ("",))),
            ("mrpc", {"#1 String": "a", "#2 String": "b", "index": "12"}, Example(12, ("a", "b"))),
            ("mrpc", {"sentence1": "a", "sentence2": "b", "idx": 3}, Example(3, ("a", "b"))),
            ("mnli", {"premise": "a", "hypothesis": "b"}, Example(7, ("a", "b"))),
            ("qqp", {"id": 9, "question1": "a", "question2": "b"}, Example(9, ("a", "b"))),
            ("qnli", {"question": "a", "sentence": "b", "id": None}, Example(7, ("a", "b"))),
            ("rte", {"premise": "a", "hypothesis": "b", "id": 0}, Example(0, ("a", "b"))),
            ("wnli", {"Text 1": "a", "Text_2": "b", "GUID": "u"}, Example("u", ("a", "b"))),
            ("cola", {"phrase": "a"}, Example(7, ("a",))),
        ],
    )
    def test_is_read_by_official_hub_or_usual_names(
        self, name: str, row: dict[str, Any], expected: Example
    ) -> None:
        assert glue_task(name).example(row, "in.jsonl:8", 7) == expected

    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            ("qnli", ("question", "body")),
            ("rte", ("text",)),
            ("sst2", ("sentence1", "sentence2")),
            ("sst2", ("review", "comment")),
            ("sst2", ()),
        ],
    )
    def test_without_the_texts_is_an_error_that_names_them(
        self, name: str, fields: tuple[str, ...]
    ) -> None:
        texts, found = " and ".join(GLUE[name].texts), ", ".join(fields) or "none"
        with pytest.raises(
            DataError, match=f"in.jsonl:8: expected {texts}, got the fields {found}$"
        ):
            glue_task(name).example(dict.fromkeys(fields, "a"), "in.jsonl:8", 7)

    def test_text_of_another_type_is_an_error(self) -> None:
        with pytest.raises(DataError, match="in.jsonl:8: expected a text, got 3"):
            glue_task("sst2").example({"sentence": 3}, "in.jsonl:8", 7)

    @pytest.mark.parametrize("found", [1.5, True, [1]])
    def test_id_of_another_type_is_an_error(self, found: Any) -> None:
        with pytest.raises(DataError, match="in.jsonl:8: expected a text or a whole number as id"):
            glue_task("sst2").example({"sentence": "a", "id": found}, "in.jsonl:8", 7)
