from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.task.interface import Example
from tasks.glue.task import glue_task
from tasks.sources import hub


class TestHub:
    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """A hub that answers from a local folder and notes what it was asked."""
        import datasets

        rows = {
            "sentence": ["one", "two"],
            "premise": ["one", "two"],
            "hypothesis": ["three", "four"],
            "idx": [4, 5],
        }
        kinds = {
            "sst2": datasets.ClassLabel(names=["negative", "positive"]),
            "ax": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
        }
        asked = []

        def load_dataset(path: str, name: str, *, split: str) -> Any:
            asked.append((path, name, split))
            label = [-1, -1] if split == "test" else [1, 0]
            features = {column: datasets.Value("string") for column in rows}
            features |= {"idx": datasets.Value("int32"), "label": kinds[name]}
            made = datasets.Dataset.from_dict(
                {**rows, "label": label}, features=datasets.Features(features)
            )
            made.save_to_disk(tmp_path / name / split)
            return datasets.load_from_disk(tmp_path / name / split)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        hub.hub_split.cache_clear()
        yield asked
        hub.hub_split.cache_clear()

    def test_is_asked_once_where_no_folder_is_given(self, asked: list[Any]) -> None:
        task = glue_task("sst2")
        assert task.examples("train") == [
            Example(4, ("one",), "positive"),
            Example(5, ("two",), "negative"),
        ]
        assert [path.suffix for path in task.data_files("train")] == [".arrow"]
        assert asked == [("nyu-mll/glue", "sst2", "train")]

    def test_minus_one_is_no_label(self, asked: list[Any]) -> None:
        assert glue_task("sst2").examples("test")[0] == Example(4, ("one",))

    def test_diagnostic_set_is_its_test_split(self, asked: list[Any]) -> None:
        assert glue_task("ax").examples("ax")[0] == Example(4, ("one", "three"))
        assert asked == [("nyu-mll/glue", "ax", "test")]

    def test_out_of_reach_is_an_error_that_says_how_to_do_without(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        with pytest.raises(
            DataError, match=r"could not load nyu-mll/glue rte train \(.*\); give --data DIR or"
        ):
            glue_task("rte").examples("train")

    def test_without_the_library_is_an_error_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataError, match="without a data folder glue/rte needs `datasets`"):
            glue_task("rte").examples("train")
