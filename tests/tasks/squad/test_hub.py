from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.heads.span import SpanConfig
from finetune.task.interface import Example, GoldAnswer
from finetune.text.features.windows import WindowConfig
from tasks.sources import hub
from tasks.squad.task import SquadTask, squad_task

CONTEXT = "The cat sat on the mat."


def make(name: str) -> SquadTask:
    return squad_task(name, windows=WindowConfig(), spans=SpanConfig())


class TestHub:
    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """A hub that answers from a local folder and notes what it was asked."""
        import datasets

        asked = []
        golds = {
            "rajpurkar/squad": [{"text": ["cat"], "answer_start": [4]}],
            "rajpurkar/squad_v2": [
                {"text": ["cat", "cat"], "answer_start": [4, 5]},
                {"text": [], "answer_start": []},
            ],
        }

        def load_dataset(path: str, *, split: str) -> Any:
            asked.append((path, split))
            rows = [
                {"id": f"q{n}", "title": "T", "context": CONTEXT, "question": "?", "answers": gold}
                for n, gold in enumerate(golds[path])
            ]
            text = datasets.Value("string")
            sides = {"text": [text], "answer_start": [datasets.Value("int32")]}
            features = datasets.Features(
                {"id": text, "title": text, "context": text, "question": text, "answers": sides}
            )
            made = datasets.Dataset.from_list(rows, features=features)
            made.save_to_disk(tmp_path / path / split)
            return datasets.load_from_disk(tmp_path / path / split)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        hub.hub_split.cache_clear()
        yield asked
        hub.hub_split.cache_clear()

    def test_is_asked_once_where_no_folder_is_given(self, asked: list[Any]) -> None:
        task = make("1.1")
        gold = (GoldAnswer("cat", 4),)
        assert task.examples("train") == [Example("q0", ("?", CONTEXT), gold)]
        assert [path.suffix for path in task.data_files("train")] == [".arrow"]
        assert asked == [("rajpurkar/squad", "train")]

    def test_question_without_answers_is_unanswerable_there(self, asked: list[Any]) -> None:
        task = make("2.0")
        first, second = task.examples("validation")
        assert (len(first.label), second.label) == (2, ())
        assert task.describe([first, second]) == {"answers_moved": 1, "unanswerable": 1}
        assert asked == [("rajpurkar/squad_v2", "validation")]

    def test_has_no_test_set(self, asked: list[Any]) -> None:
        with pytest.raises(DataError, match="expected a test file, got none named; give --test"):
            make("1.1").examples("test")
        assert asked == []

    def test_out_of_reach_is_an_error_that_says_how_to_do_without(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        hub.hub_split.cache_clear()
        with pytest.raises(
            DataError, match=r"could not load rajpurkar/squad train \(.*\); give --data DIR or"
        ):
            make("1.1").examples("train")

    def test_without_the_library_is_an_error_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FINETUNE_DATA", raising=False)
        monkeypatch.setitem(sys.modules, "datasets", None)
        hub.hub_split.cache_clear()
        with pytest.raises(DataError, match=r"without a data folder squad/2\.0 needs `datasets`"):
            make("2.0").examples("train")
