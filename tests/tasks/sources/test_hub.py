"""GLUE, SQuAD and RACE from the hub, for one who has no data folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.heads.config import SpanConfig
from finetune.task.interface import Example, GoldAnswer, Task
from finetune.text.features.windows import WindowConfig
from tasks.glue.task import glue_task
from tasks.race import files as race_files
from tasks.race.task import race_task
from tasks.sources import hub
from tasks.squad.task import squad_task

CONTEXT = "The cat sat on the mat."
GOLDS = {
    "rajpurkar/squad": [{"text": ["cat"], "answer_start": [4]}],
    "rajpurkar/squad_v2": [
        {"text": ["cat", "cat"], "answer_start": [4, 5]},
        {"text": [], "answer_start": []},
    ],
}


def make_task(name: str) -> Task:
    family, _, task = name.partition("/")
    if family == "squad":
        return squad_task(task, windows=WindowConfig(), spans=SpanConfig())
    return {"glue": glue_task, "race": race_task}[family](task)


def glue_rows(task: str, split: str) -> Any:
    import datasets

    names = ["negative", "positive"] if task == "sst2" else ["entailment", "neutral"]
    rows = {
        "sentence": ["one", "two"],
        "premise": ["one", "two"],
        "hypothesis": ["three", "four"],
        "idx": [4, 5],
        "label": [-1, -1] if split == "test" else [1, 0],
    }
    made = datasets.Dataset.from_dict(rows)
    return made.cast_column("label", datasets.ClassLabel(names=names))


def squad_rows(path: str) -> Any:
    import datasets

    rows = [
        {"id": f"q{n}", "title": "T", "context": CONTEXT, "question": "?", "answers": gold}
        for n, gold in enumerate(GOLDS[path])
    ]
    text = datasets.Value("string")
    sides = {"text": [text], "answer_start": [datasets.Value("int32")]}
    columns = dict.fromkeys(("id", "title", "context", "question"), text)
    features = datasets.Features({**columns, "answers": sides})
    return datasets.Dataset.from_list(rows, features=features)


def race_rows() -> Any:
    import datasets

    rows = {
        "example_id": ["high3.txt", "high3.txt", "middle9.txt", "high3.txt"],
        "article": ["p", "p", "r", "p"],
        "question": ["q", "q2", "q3", "q4"],
        "options": [list("wxyz")] * 4,
        "answer": ["A", "D", "B", "C"],
    }
    return datasets.Dataset.from_dict(rows)


MADE: dict[str, Callable[[str, str, str], Any]] = {
    "nyu-mll/glue": lambda path, name, split: glue_rows(name, split),
    "rajpurkar/squad": lambda path, name, split: squad_rows(path),
    "rajpurkar/squad_v2": lambda path, name, split: squad_rows(path),
    "ehovy/race": lambda path, name, split: race_rows(),
}


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FINETUNE_DATA", raising=False)
    hub.hub_split.cache_clear()
    yield
    hub.hub_split.cache_clear()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A hub that answers from a local folder and notes what it was asked."""
    import datasets

    asked = []

    def load_dataset(path: str, name: str = "", *, split: str) -> Any:
        asked.append((path, name, split))
        folder = tmp_path / path / name / split
        MADE[path](path, name, split).save_to_disk(folder)
        return datasets.load_from_disk(folder)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize(
    ("name", "question", "ids", "first"),
    [
        ("glue/sst2", ("nyu-mll/glue", "sst2", "train"), [4, 5], Example(4, ("one",), "positive")),
        (
            "squad/1.1",
            ("rajpurkar/squad", "", "train"),
            ["q0"],
            Example("q0", ("?", CONTEXT), (GoldAnswer("cat", 4),)),
        ),
        (
            "race/all",
            ("ehovy/race", "all", "train"),
            ["high3.txt/0", "high3.txt/1", "middle9.txt/0", "high3.txt/2"],
            Example("high3.txt/0", ("p", "q", *"wxyz"), "A", "high"),
        ),
    ],
)
def test_hub_is_asked_once_where_no_folder_is_given(
    name: str, question: Any, ids: list[Any], first: Example, asked: list[Any]
) -> None:
    task = make_task(name)
    examples = task.examples("train")
    assert [example.id for example in examples] == ids
    assert examples[0] == first
    assert [path.suffix for path in task.data_files("train")] == [".arrow"]
    assert asked == [question]


HUBS = {
    "glue/rte": "nyu-mll/glue rte",
    "squad/1.1": "rajpurkar/squad",
    "race/high": "ehovy/race high",
}


@pytest.mark.parametrize("name", HUBS)
def test_hub_out_of_reach_is_an_error_that_says_how_to_do_without(name: str) -> None:
    with pytest.raises(
        DataError, match=rf"could not load {HUBS[name]} train \(.*\); give --data DIR or set"
    ):
        make_task(name).examples("train")


@pytest.mark.parametrize("name", HUBS)
def test_without_the_library_is_an_error_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=f"without a data folder {name} needs `datasets`"):
        make_task(name).examples("train")


class TestGlue:
    def test_minus_one_is_no_label(self, asked: list[Any]) -> None:
        assert make_task("glue/sst2").examples("test")[0] == Example(4, ("one",))

    def test_diagnostic_set_is_its_test_split(self, asked: list[Any]) -> None:
        assert make_task("glue/ax").examples("ax")[0] == Example(4, ("one", "three"))
        assert asked == [("nyu-mll/glue", "ax", "test")]


class TestSquad:
    def test_question_without_answers_is_unanswerable_there(self, asked: list[Any]) -> None:
        task = make_task("squad/2.0")
        first, second = task.examples("validation")
        assert isinstance(first.label, tuple)
        assert (len(first.label), second.label) == (2, ())
        assert task.describe([first, second]) == {"answers_moved": 1, "unanswerable": 1}
        assert asked == [("rajpurkar/squad_v2", "", "validation")]

    def test_has_no_test_set(self, asked: list[Any]) -> None:
        with pytest.raises(DataError, match="expected a test file, got none named; give --test"):
            make_task("squad/1.1").examples("test")
        assert asked == []


class TestRace:
    def test_level_is_read_off_the_id(self, asked: list[Any]) -> None:
        examples = make_task("race/all").examples("validation")
        assert examples[2] == Example("middle9.txt/0", ("r", "q3", *"wxyz"), "B", "middle")

    def test_a_row_of_another_form_is_an_error(self) -> None:
        row = {"example_id": "high3.txt", "article": "p", "question": "q"}
        with pytest.raises(DataError, match="ehovy/race high3.txt/0: expected 4 options, got 3"):
            list(race_files.hub_examples([{**row, "options": list("xyz"), "answer": "A"}]))
        with pytest.raises(DataError, match="high3.txt/0: expected an answer of A, B, C, D, got"):
            list(race_files.hub_examples([{**row, "options": list("wxyz"), "answer": ""}]))
