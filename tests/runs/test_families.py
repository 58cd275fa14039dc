"""A task by its name, and the settings that a family adds to those of every run."""

from __future__ import annotations

from pathlib import Path

import pytest

import finetune
from finetune.errors import ConfigError
from finetune.runs.fits import complete
from tasks.run_settings import GlueRun, SpanRun
from tests.made.texts import write_texts


def test_a_task_is_found_by_family_and_name(tmp_path: Path) -> None:
    folder = tmp_path / "glue_data" / "CoLA"
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text("gj04\t1\t\tthe cat sees a dog\ngj04\t0\t*\ta a sees\n")
    task = finetune.find_task("glue/cola", data=tmp_path)
    assert task.name == "glue/cola"
    assert task.monitor == "matthews_correlation"
    assert [example.label for example in task.examples("validation")] == [
        "acceptable",
        "unacceptable",
    ]


def test_a_family_of_ones_own_files_needs_no_name(tmp_path: Path) -> None:
    write_texts(tmp_path)
    train, validation = tmp_path / "train.csv", tmp_path / "validation.csv"
    task = finetune.find_task("classify", train=train, validation=str(validation))
    assert task.labels == ("bad", "good")
    assert len(task.examples("validation")) == 16


def test_a_family_of_several_tasks_needs_a_name() -> None:
    with pytest.raises(
        ConfigError, match="task 'squad': expected FAMILY/NAME; choose one of squad/1.1, squad/2.0"
    ):
        finetune.find_task("squad")


def test_an_unknown_name_is_told_with_its_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown family 'glu'; did you mean 'glue'"):
        finetune.find_task("glu/cola")
    with pytest.raises(ConfigError, match="cola"):
        finetune.find_task("glue/colla")


def test_a_plain_run_gets_the_settings_of_its_family() -> None:
    run = finetune.FitRun("none", "squad/2.0", seed=7, max_length=64)
    completed = complete(run)
    assert completed == SpanRun("none", "squad/2.0", seed=7, max_length=64)


def test_settings_of_a_family_stay_as_they_are() -> None:
    run = GlueRun("none", "glue/wnli", train_wnli=True)
    assert complete(run) is run
