"""The real files, where FINETUNE_DATA names a folder with them (marker `data`)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tasks.race.task import FOLDERS, race_task

pytestmark = pytest.mark.data

# Questions of each split (Lai et al., 2017, table 2).
QUESTIONS = {
    ("train", "middle"): 25_421,
    ("train", "high"): 62_445,
    ("validation", "middle"): 1_436,
    ("validation", "high"): 3_451,
    ("test", "middle"): 1_436,
    ("test", "high"): 3_498,
}


@pytest.fixture(scope="module")
def data() -> Path:
    folder = Path(os.environ["FINETUNE_DATA"])
    if not (folder / "race").exists():
        pytest.skip(f"{folder} has no race/")
    return folder


@pytest.mark.parametrize("split", FOLDERS)
def test_every_official_question_is_read(split: str, data: Path) -> None:
    examples = race_task("all", data).examples(split)
    counts = {level: sum(e.group == level for e in examples) for level in ("middle", "high")}
    assert counts == {level: QUESTIONS[split, level] for level in counts}
    assert len({example.id for example in examples}) == len(examples)
    assert {example.label for example in examples} == {"A", "B", "C", "D"}
    alone = race_task("middle", data).examples(split)
    assert alone == [example for example in examples if example.group == "middle"]


def test_blanks_are_as_many_as_were_counted(data: Path) -> None:
    examples = [e for split in FOLDERS for e in race_task("all", data).examples(split)]
    blanks = [example.texts[1].count("_") for example in examples]
    assert (blanks.count(1), blanks.count(0)) == (51_158, 46_397)
    assert len(blanks) - blanks.count(0) - blanks.count(1) == 132


def test_the_archive_is_read_in_seconds(data: Path) -> None:
    task = race_task("all", data)
    if task.data_files("train")[0].is_dir():
        pytest.skip("the archive is unpacked")
    start = time.process_time()  # not the wall's: other work may be going on
    task.examples("train")
    assert time.process_time() - start < 10  # 3 s as measured
