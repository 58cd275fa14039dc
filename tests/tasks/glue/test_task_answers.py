from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.errors import DataError
from finetune.heads import HeadConfig
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.glue.task import GLUE, GlueRow, GlueTask, glue_task
from tests.made.nets import tiny_config

EVERY_ROW = pytest.mark.parametrize("row", GLUE.values(), ids=list(GLUE))
SCORED = [row for row in GLUE.values() if row.name != "ax"]
EVERY_SCORED_ROW = pytest.mark.parametrize("row", SCORED, ids=[row.name for row in SCORED])


class TestFeatures:
    @EVERY_SCORED_ROW
    def test_labels_are_numbered_in_the_order_of_the_logits(
        self, row: GlueRow, data: Path, tokenizer: Tokenizer
    ) -> None:
        task = GlueTask(row, data)
        examples = task.examples("train")
        for example, feature in zip(
            examples, task.features(examples, tokenizer, 64, training=True), strict=True
        ):
            if row.labels:
                assert isinstance(feature.label, int)
                assert row.labels[feature.label] == example.label
            else:
                assert feature.label == example.label

    @EVERY_ROW
    def test_pair_has_two_segments_and_a_single_text_one(
        self, row: GlueRow, data: Path, tokenizer: Tokenizer
    ) -> None:
        task = GlueTask(row, data)
        examples = task.examples(task.test_splits[0])
        (feature, *_) = task.features(examples, tokenizer, max_length=64, training=False)
        assert feature.label is None
        assert set(feature.token_type_ids) == set(range(len(row.texts)))

    @EVERY_ROW
    def test_head_has_a_logit_for_each_label(self, row: GlueRow) -> None:
        config = tiny_config(
            vocab_size=10, hidden_size=8, num_hidden_layers=1, intermediate_size=16
        )
        head = GlueTask(row).head(config, HeadConfig())
        logits = head(torch.zeros(3, 5, 8))
        assert logits.shape == ((3, len(row.labels)) if row.labels else (3,))


class TestAnswers:
    def test_class_comes_with_its_probabilities_and_the_label_where_known(self) -> None:
        task = glue_task("rte")
        logits = np.array([[0.0, np.log(3.0)], [1000.0, -1000.0]])
        examples = [Example(7, ("a", "b"), "entailment"), Example("x", ("c", "d"))]
        assert task.answers(logits, examples, []) == [
            {
                "id": 7,
                "prediction": "not_entailment",
                "probabilities": {"entailment": 0.25, "not_entailment": 0.75},
                "label": "entailment",
            },
            {
                "id": "x",
                "prediction": "entailment",
                "probabilities": {"entailment": 1.0, "not_entailment": 0.0},
            },
        ]

    def test_similarity_is_clipped_to_its_range(self) -> None:
        task = glue_task("stsb")
        logits = np.array([-0.5, 2.5, 5.5], dtype=np.float32)
        answers = task.answers(logits, [Example(n, ("a", "b")) for n in range(3)], [])
        assert answers == [
            {"id": 0, "prediction": 0.0},
            {"id": 1, "prediction": 2.5},
            {"id": 2, "prediction": 5.0},
        ]

    @EVERY_SCORED_ROW
    def test_perfect_answers_score_one_under_the_official_names(self, row: GlueRow) -> None:
        task = GlueTask(row)
        labels: list[Any] = [*row.labels, row.labels[-1]] if row.labels else [0.0, 2.0, 5.0]
        scores = task.score([{"id": 0, "prediction": label, "label": label} for label in labels])
        assert tuple(scores) == row.metrics
        assert list(scores.values()) == pytest.approx([1.0] * len(row.metrics))

    def test_f1_takes_the_paraphrase_for_the_positive_class(self) -> None:
        predictions = ["equivalent", "equivalent", "not_equivalent", "not_equivalent"]
        labels = ["equivalent", "not_equivalent", "not_equivalent", "not_equivalent"]
        answers = [
            {"prediction": prediction, "label": label}
            for prediction, label in zip(predictions, labels, strict=True)
        ]
        assert glue_task("mrpc").score(answers) == pytest.approx({"accuracy": 3 / 4, "f1": 2 / 3})

    @EVERY_SCORED_ROW
    def test_answers_of_one_class_score_a_number(self, row: GlueRow) -> None:
        task = GlueTask(row)
        labels: list[Any] = list(row.labels) or [0.0, 2.0, 5.0]
        scores = task.score([{"prediction": labels[0], "label": label} for label in labels])
        assert all(np.isfinite(score) for score in scores.values())

    @EVERY_ROW
    def test_unlabelled_answers_cannot_be_scored(self, row: GlueRow, data: Path) -> None:
        task = GlueTask(row, data)
        examples = task.examples(task.test_splits[0])
        logits = np.zeros((len(examples), len(row.labels)) if row.labels else len(examples))
        with pytest.raises(DataError, match=f"glue/{row.name}: expected answers with labels"):
            task.score(task.answers(logits, examples, []))

    def test_no_answers_cannot_be_scored(self) -> None:
        with pytest.raises(DataError, match="expected answers with labels"):
            glue_task("rte").score([])


def majority_scores(task: GlueTask) -> dict[str, float]:
    train, validation = task.examples("train"), task.examples("validation")
    return task.score(task.baseline_answers(train, validation))


class TestMajority:
    def test_predicts_the_most_frequent_training_label(self, tmp_path: Path) -> None:
        train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
        train.write_text("sentence\tlabel\na\t0\nb\t1\nc\t1\n")
        dev.write_text("sentence\tlabel\na\t1\nb\t0\nc\t0\nd\t0\n")
        task = glue_task("sst2", files={"train": train, "validation": dev})
        assert majority_scores(task) == {"accuracy": 1 / 4}

    def test_predicts_the_mean_of_numbers(self, data: Path) -> None:
        assert majority_scores(glue_task("stsb", data)) == {"pearson": 0, "spearman": 0}


class TestSubmission:
    @EVERY_ROW
    def test_file_has_the_leaderboards_name_header_and_labels(self, row: GlueRow) -> None:
        task = GlueTask(row)
        answers: list[dict[str, Any]] = [
            {"id": index, "prediction": label}
            for index, label in enumerate(row.labels or (0.0, 10 / 3, 5.0))
        ]
        written = row.written or row.labels or ("0.000", "3.333", "5.000")
        expected = ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(written)), ""]
        for split in task.test_splits:
            assert task.submission(split, answers) == {
                row.splits[split].submission: "\n".join(expected)
            }

    def test_names_are_those_of_the_eleven_files(self) -> None:
        names = {split.submission for row in GLUE.values() for split in row.splits.values()}
        tasks = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
        assert names - {None} == {f"{task}.tsv" for task in tasks}

    def test_validation_split_is_not_submitted(self) -> None:
        answers = [{"id": 0, "prediction": "entailment"}]
        assert glue_task("rte").submission("validation", answers) == {}
        mine = glue_task("mnli", files={"validation": Path("mine.tsv")})
        assert mine.submission("validation", answers) == {}
