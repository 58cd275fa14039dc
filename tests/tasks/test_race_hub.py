from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.task.interface import Example
from tasks.race import files as race_files
from tasks.race.task import race_task
from tasks.sources import hub


class TestHub:
    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """A hub that answers from a local folder and notes what it was asked."""
        import datasets

        asked = []
        rows = {
            "example_id": ["high3.txt", "high3.txt", "middle9.txt", "high3.txt"],
            "article": ["p", "p", "r", "p"],
            "question": ["q", "q2", "q3", "q4"],
            "options": [list("wxyz")] * 4,
            "answer": ["A", "D", "B", "C"],
        }

        def load_dataset(path: str, name: str, *, split: str) -> Any:
            asked.append((path, name, split))
            datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / name / split)
            return datasets.load_from_disk(tmp_path / name / split)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        hub.hub_split.cache_clear()
        yield asked
        hub.hub_split.cache_clear()

    def test_is_asked_once_where_no_folder_is_given(self, asked: list[Any]) -> None:
        task = race_task("all")
        examples = task.examples("validation")
        assert [example.id for example in examples] == [
            "high3.txt/0",
            "high3.txt/1",
            "middle9.txt/0",
            "high3.txt/2",
        ]
        assert examples[2] == Example("middle9.txt/0", ("r", "q3", *"wxyz"), "B", "middle")
        assert [path.suffix for path in task.data_files("validation")] == [".arrow"]
        assert asked == [("ehovy/race", "all", "validation")]

    def test_a_row_of_another_form_is_an_error(self) -> None:
        row = {"example_id": "high3.txt", "article": "p", "question": "q"}
        with pytest.raises(DataError, match="ehovy/race high3.txt/0: expected 4 options, got 3"):
            list(race_files.hub_examples([{**row, "options": list("xyz"), "answer": "A"}]))
        with pytest.raises(DataError, match="high3.txt/0: expected an answer of A, B, C, D, got"):
            list(race_files.hub_examples([{**row, "options": list("wxyz"), "answer": ""}]))

    def test_out_of_reach_is_an_error_that_says_how_to_do_without(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        with pytest.raises(
            DataError, match=r"could not load ehovy/race high train \(.*\); give --data DIR or set"
        ):
            race_task("high").examples("train")

    def test_without_the_library_is_an_error_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataError, match="without a data folder race/high needs `datasets`"):
            race_task("high").examples("train")
