"""The real files, where FINETUNE_DATA names a folder with them (marker `data`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finetune.task.answers.classes import constant_answers
from tasks.glue.task import GLUE, GlueRow, glue_task
from tasks.leaderboard import FORMS, Form, file_problems

pytestmark = pytest.mark.data

EVERY_ROW = pytest.mark.parametrize("row", GLUE.values(), ids=list(GLUE))
SCORED = [row for row in GLUE.values() if row.name != "ax"]
EVERY_SCORED_ROW = pytest.mark.parametrize("row", SCORED, ids=[row.name for row in SCORED])

# Splits of which a smaller part is at hand, or none, as the data's README says.
SUBSETS = {"QNLI/train", "MNLI/train", "QQP/train", "MNLI/dev_matched", "MNLI/dev_mismatched"}
SUBSETS |= {"QQP/dev", "QQP/test", "MNLI/test_matched", "MNLI/test_mismatched"}


class TestRealFiles:
    @EVERY_ROW
    def test_every_official_row_is_read(self, row: GlueRow) -> None:
        task = glue_task(row.name, Path(os.environ["FINETUNE_DATA"]))
        for split, form in row.splits.items():
            if f"{row.folder}/{form.file.removesuffix('.tsv')}" in SUBSETS:
                continue
            assert len(task.examples(split)) == form.rows

    @pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
    def test_official_test_file_is_answered_as_the_leaderboard_wants(self, form: Form) -> None:
        task = glue_task(form.task, Path(os.environ["FINETUNE_DATA"]))
        if f"{task.row.folder}/{task.row.splits[form.split].file.removesuffix('.tsv')}" in SUBSETS:
            return
        label = task.labels[0] if task.labels else 2.5
        answers = constant_answers(label, task.examples(form.split))
        (content,) = task.submission(form.split, answers).values()
        assert file_problems(form.name, content.encode()) == []

    def test_majority_of_wnli_is_its_training_files(self) -> None:
        task = glue_task("wnli", Path(os.environ["FINETUNE_DATA"]))
        labels = [example.label for example in task.examples("train")]
        assert task.fixed_answer == "not_entailment"
        assert labels.count("not_entailment") > labels.count("entailment")

    @EVERY_SCORED_ROW
    def test_ids_tell_the_rows_apart(self, row: GlueRow) -> None:
        task = glue_task(row.name, Path(os.environ["FINETUNE_DATA"]))
        for split in (task.train_split, *task.validation_splits):
            examples = task.examples(split)
            assert len({example.id for example in examples}) == len(examples)

    def test_original_sts_files_hold_the_gold_of_the_test_set(self) -> None:
        folder = Path(os.environ["FINETUNE_DATA"]) / "glue_data" / "STS-B" / "original"
        task = glue_task("stsb", files={"validation": folder / "sts-test.tsv"})
        examples = task.examples("validation")
        assert len(examples) == 1379
        assert all(isinstance(example.label, float) for example in examples)
