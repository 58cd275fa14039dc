"""The real files, where FINETUNE_DATA names a folder with them (marker `data`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.glue import GLUE, GlueRow, glue_task

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
