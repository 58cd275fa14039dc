from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import HeadConfig
from finetune.heads.config import SpanConfig
from finetune.metrics import span_scores
from finetune.metrics.semantics import headline
from finetune.task.interface import Answer, Example, GoldAnswer
from finetune.text.features.windows import WindowConfig
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.squad.files import MovedAnswer
from tasks.squad.task import OFFICIAL, SquadTask, answer_task, squad_task
from tests.made.nets import tiny_config

CAT = {"text": "cat", "answer_start": 4}
CONTEXT = "The cat sat on the mat. A dog ran home."
WINDOWS = WindowConfig(stride=2, max_question_length=6)
SPANS = SpanConfig(n_best=3, max_answer_length=5)
EVERY_VERSION = pytest.mark.parametrize("version", OFFICIAL)


def question(known: str, *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": known, "question": "Who sat?", "answers": list(answers), **more}


def document(version: str, *questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": version, "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}


ONE = document("1.1", question("q1", CAT, {"text": "The cat", "answer_start": 0}))
TWO = document("v2.0", question("q1", CAT, is_impossible=False), question("q2", is_impossible=True))
WITHHELD = document("v2.0", question("q1"), question("q2"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The official layout."""
    (tmp_path / "squad").mkdir()
    for version, content in (("1.1", ONE), ("2.0", TWO)):
        for name in OFFICIAL[version].files.values():
            (tmp_path / "squad" / name).write_text(json.dumps(content))
    return tmp_path


def make(name: str, data: Path | None = None, **files: Path) -> SquadTask:
    return squad_task(name, data, files, windows=WINDOWS, spans=SPANS)


def own(tmp_path: Path, **documents: Any) -> SquadTask:
    files = {}
    for split, content in documents.items():
        files[split] = tmp_path / f"{split}.json"
        files[split].write_text(json.dumps(content))
    return answer_task(files, WINDOWS, SPANS)


def perfect_outputs(features: Any, places: dict[int, tuple[int, int]]) -> Any:
    """What a head gives that finds each answer's characters where a window holds them."""
    outputs = np.full((len(features), SPANS.n_best + 1, 3), (-1.0, -1.0, -np.inf))
    for window, feature in zip(outputs, features, strict=True):
        window[0] = (0, 0, 0.0)
        start, end = places.get(feature.example, (-1, -1))
        first = np.flatnonzero(feature.offsets[:, 0] == start)
        last = np.flatnonzero(feature.offsets[:, 1] == end)
        if len(first) and len(last):
            begin = feature.context[0]
            window[1] = (begin + first[0], begin + last[0], 5.0)
        elif len(feature.offsets):
            window[1] = (feature.context[0], feature.context[0], -5.0)
    return outputs


class TestNames:
    @pytest.mark.parametrize("name", ["2.0", "v2.0", "2", "squad/2.0", "SQuAD/V2.0"])
    def test_every_usual_spelling_finds_the_version(self, name: str) -> None:
        assert make(name).name == "squad/2.0"

    def test_unknown_version_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown version of SQuAD '3'; choose one of 1\.1"):
            make("3")

    def test_file_for_another_split_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match=r"squad/1\.1 has no dev split, .* for it; choose on"):
            make("1.1", dev=Path("x"))

    def test_head_with_classes_is_an_error(self) -> None:
        with pytest.raises(CheckpointError, match="that finds passages, got one for the labels a"):
            squad_task("1.1", windows=WINDOWS, spans=SPANS, labels=("a", "b"))
        assert squad_task("1.1", windows=WINDOWS, spans=SPANS, labels=()).labels == ()

    def test_data_folder_comes_from_the_environment_if_none_is_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATA", "/one")
        assert make("1.1").data == Path("/one")
        assert make("1.1", Path("/two")).data == Path("/two")

    @EVERY_VERSION
    def test_monitor_is_the_headline_of_the_scores(self, version: str, folder: Path) -> None:
        task = make(version, folder)
        examples = task.examples("validation")
        assert headline(task.score(task.baseline_answers(examples, examples))) == task.monitor


class TestFiles:
    @EVERY_VERSION
    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_official_names_are_found_plain_or_compressed(
        self, version: str, split: str, folder: Path
    ) -> None:
        task = make(version, folder)
        expected = task.examples(split)
        (path,) = task.data_files(split)
        assert path.name == OFFICIAL[version].files[split]
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert task.data_files(split) == [packed]
        assert task.examples(split) == expected
        assert make(version, folder / "squad").examples(split) == expected

    def test_named_files_go_first(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "part.json"
        path.write_text(json.dumps(document("1.1", question("mine", CAT))))
        task = make("1.1", folder, validation=path)
        assert [example.id for example in task.examples("validation")] == ["mine"]
        assert [example.id for example in task.examples("train")] == ["q1"]

    def test_missing_file_is_an_error_that_says_what_to_name(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"train file of squad/1\.1 at .*squad/train-v1\.1\.json \(or .*--train"
        ):
            make("1.1", tmp_path).examples("train")
        with pytest.raises(DataError, match=r"none\.json \(or \.gz\), got none; name a file that"):
            make("1.1", tmp_path, train=tmp_path / "none.json").examples("train")

    def test_test_set_is_hidden_unless_a_file_is_named(self, folder: Path) -> None:
        assert make("2.0", folder).test_splits == ()
        with pytest.raises(DataError, match=r"squad/2\.0: expected a test file, got none named;"):
            make("2.0", folder).examples("test")
        with pytest.raises(DataError, match=r"squad/2\.0 has no split 'dev'; choose one of test"):
            make("2.0", folder).examples("dev")

    def test_file_of_the_other_version_is_an_error(self, folder: Path) -> None:
        two = folder / "squad" / "dev-v2.0.json"
        with pytest.raises(DataError, match=r"dev-v2\.0\.json: expected SQuAD 1\.1, got 2\.0"):
            make("1.1", folder, validation=two).examples("validation")

    def test_training_texts_that_are_all_empty_are_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "train.json"
        empty = question("q1", is_impossible=True) | {"question": ""}
        path.write_text(json.dumps(document("v2.0", empty, context="")))
        with pytest.raises(DataError, match=r"train\.json: expected texts to train on, got all"):
            make("2.0", train=path).examples("train")
        assert make("2.0", validation=path).examples("validation")


class TestWithheld:
    @pytest.fixture
    def task(self, tmp_path: Path) -> SquadTask:
        path = tmp_path / "test-v2.0.json"
        path.write_text(json.dumps(WITHHELD))
        return make("2.0", test=path, train=path, validation=path)

    def test_test_file_gives_files_and_no_score(self, task: SquadTask, pets: Tokenizer) -> None:
        assert task.test_splits == ("test",)
        examples = task.examples("test")
        assert [example.label for example in examples] == [None, None]
        features = task.features(examples, pets, 20, training=False)
        assert all(feature.label is None for feature in features)
        answers = task.answers(perfect_outputs(features, {0: (4, 7)}), examples, features)
        assert task.score(answers) == {}
        assert task.tune(answers) == {}
        assert task.describe(examples) == {}
        assert json.loads(task.submission("test", answers)["test/predictions.json"]) == {
            "q1": "cat",
            "q2": "",
        }

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_it_cannot_be_learnt_from_or_scored(self, task: SquadTask, split: str) -> None:
        with pytest.raises(DataError, match=r"test-v2\.0\.json: expected answers, got none and"):
            task.examples(split)

    def test_some_answers_without_gold_are_an_error(self, task: SquadTask) -> None:
        rows = [{"id": "q1", "answers": []}, {"id": "q2"}]
        with pytest.raises(DataError, match="right answers to all questions, got none for 'q2'"):
            task.score(rows)


class TestFeatures:
    def test_label_is_the_first_answer_in_tokens(self, folder: Path, pets: Tokenizer) -> None:
        task = make("1.1", folder)
        examples = task.examples("validation")
        (feature,) = task.features(examples, pets, 64, training=False)
        assert isinstance(feature.label, tuple)
        first, last = feature.label
        start, end = feature.offsets[[first - feature.context[0], last - feature.context[0]]]
        assert CONTEXT[start[0] : end[1]] == "cat"

    def test_windows_without_the_answer_are_left_out_in_1_and_teach_none_in_2(
        self, folder: Path, pets: Tokenizer
    ) -> None:
        made = {}
        for version in OFFICIAL:
            task = make(version, folder)
            examples = task.examples("train")[:1]
            made[version] = [
                feature.label for feature in task.features(examples, pets, 12, training=True)
            ]
        assert (0, 0) not in made["1.1"]
        assert (0, 0) in made["2.0"]
        assert len(made["1.1"]) < len(made["2.0"])

    def test_what_decides_features_is_in_their_key(self, folder: Path) -> None:
        keys = {
            squad_task(version, folder, windows=windows, spans=SPANS).feature_settings
            for version in OFFICIAL
            for windows in (WINDOWS, WindowConfig(stride=3))
        }
        assert len(keys) == 4

    def test_head_is_that_of_spans(self, folder: Path) -> None:
        config = tiny_config(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
        head = make("1.1", folder).head(config, HeadConfig())
        assert head.kind == "span"

    def test_no_examples_are_no_features(self, folder: Path, pets: Tokenizer) -> None:
        assert make("1.1", folder).features([], pets, 64, training=False) == []


class TestAnswers:
    @pytest.mark.parametrize("max_length", [12, 64])
    @EVERY_VERSION
    def test_passages_found_are_right(
        self, version: str, max_length: int, folder: Path, pets: Tokenizer
    ) -> None:
        task = make(version, folder)
        examples = task.examples("validation")
        features = task.features(examples, pets, max_length, training=False)
        answers = task.answers(perfect_outputs(features, {0: (4, 7)}), examples, features)
        assert (answers[0]["prediction"], answers[0]["start"], answers[0]["end"]) == ("cat", 4, 7)
        scores = task.score(answers)
        assert (scores["exact_match"], scores["f1"]) == (1.0, 1.0)
        assert list(scores)[:2] == ["exact_match", "f1"]

    @pytest.mark.parametrize(
        "context", ["", " ", "😺" * 50, "e\u0301 שלום عربي cat\u200f", "cat\n\ncat " * 3000]
    )
    def test_any_context_gives_an_answer(self, context: str, folder: Path, pets: Tokenizer) -> None:
        for version in OFFICIAL:
            task = make(version, folder)
            examples = [Example("q1", ("", context))]
            features = task.features(examples, pets, 64, training=False)
            (answer,) = task.answers(perfect_outputs(features, {}), examples, features)
            assert answer["prediction"] in context
            task.submission("test", [answer])

    def test_threshold_is_tuned_and_decides(self, folder: Path) -> None:
        task = make("2.0", folder)
        cat, dog = ({"text": t, "start": 0, "end": 3, "probability": 0.5} for t in ("cat", "dog"))
        null = {"text": "", "start": None, "end": None, "probability": 0.5}
        rows: list[Answer] = [
            {"id": "q1", "null_odds": 3.0, "nbest": [null, cat], "answers": [CAT]},
            {"id": "q2", "null_odds": 4.0, "nbest": [null, dog], "answers": []},
        ]
        rows = [{"prediction": "", "start": None, "end": None, "score": 1.0} | row for row in rows]
        numbers = task.tune(rows)
        assert numbers == {"null_threshold": 3.5}  # the middle between the two
        decided = task.decide(rows, numbers)
        assert [row["prediction"] for row in decided] == ["cat", ""]
        assert task.score(decided)["f1"] == task.score(rows)["best_f1"] == 1.0
        assert [row["prediction"] for row in task.decide(decided, {})] == ["", ""]

    def test_1_1_has_no_threshold(self, folder: Path) -> None:
        task = make("1.1", folder)
        rows = [{"id": "q1", "prediction": "cat", "answers": [CAT]}]
        assert task.tune(rows) == {}
        assert task.decide(rows, {}) == rows

    @EVERY_VERSION
    def test_baseline_answers_are_empty(self, version: str, folder: Path) -> None:
        task = make(version, folder)
        examples = task.examples("validation")
        rows = task.baseline_answers(task.examples("train"), examples)
        assert [row["prediction"] for row in rows] == [""] * len(examples)
        expected = {"1.1": 0.0, "2.0": 0.5}[version]
        assert task.score(rows)["f1"] == expected
        assert task.score(task.decide(rows, task.tune(rows))) == span_scores(rows, version)

    def test_examples_are_described(self) -> None:
        two = make("2.0")
        moved = (GoldAnswer("cat", 4), MovedAnswer("dog", 26))
        examples = [Example("q1", ("?", CONTEXT), moved), Example("q2", ("?", CONTEXT), ())]
        assert two.describe(examples) == {"answers_moved": 1, "unanswerable": 1}
        assert make("1.1").describe(examples[:1]) == {"answers_moved": 1}

    def test_answers_that_stand_elsewhere_are_counted_through_the_file(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "train.json"
        path.write_text(json.dumps(document("1.1", question("q1", CAT | {"answer_start": 5}))))
        task = make("1.1", train=path)
        assert task.describe(task.examples("train")) == {"answers_moved": 1}


class TestSubmission:
    def test_files_are_what_the_official_script_reads(self, folder: Path, pets: Tokenizer) -> None:
        task = make("2.0", folder)
        examples = task.examples("validation")
        features = task.features(examples, pets, 64, training=False)
        answers = task.answers(perfect_outputs(features, {0: (4, 7)}), examples, features)
        files = {name: json.loads(text) for name, text in task.submission("test", answers).items()}
        assert files["test/predictions.json"] == {"q1": "cat", "q2": ""}
        assert files["test/null_odds.json"] == {
            answer["id"]: pytest.approx(answer["null_odds"]) for answer in answers
        }
        lists = files["test/nbest_predictions.json"]
        assert lists["q1"][0]["text"] == "cat"
        assert all(set(entry) >= {"text", "probability"} for row in lists.values() for entry in row)

    def test_1_1_has_no_null_odds(self, folder: Path) -> None:
        rows = [{"id": 7, "prediction": "cat", "nbest": [], "null_odds": -1.0}]
        files = make("1.1", folder).submission("validation", rows)
        assert set(files) == {"validation/predictions.json", "validation/nbest_predictions.json"}
        assert json.loads(files["validation/predictions.json"]) == {"7": "cat"}


class TestPredict:
    def test_row_needs_question_and_context(self) -> None:
        task = make("2.0")
        row = {"question": " Who? ", "context": CONTEXT, "answers": "not looked for"}
        assert task.example(row, "in.jsonl:1", 5) == Example(5, (" Who? ", CONTEXT))
        assert task.example(row | {"id": "x"}, "in.jsonl:1", 5).id == "x"
        assert task.example(row | {"id": 0}, "in.jsonl:1", 5).id == 0
        assert task.example(row | {"id": ""}, "in.csv:2", 5).id == 5

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"text": "a"}, r"in\.jsonl:3: expected the text 'question', got the fields text"),
            ({"question": "Who?"}, "expected the text 'context', got the fields question"),
            ({"question": 3, "context": "x"}, "expected the text 'question', got a number"),
            ({}, r"expected the text 'question', got the fields \(none\)"),
        ],
    )
    def test_fault_names_the_line(self, row: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            make("1.1").example(row, "in.jsonl:3", 2)


class TestOwn:
    def test_name_and_splits(self, tmp_path: Path) -> None:
        task = own(tmp_path, train=ONE, validation=ONE, test=WITHHELD)
        assert task.name == "answer/own"
        assert (task.train_split, task.validation_splits) == ("train", ("validation",))
        assert task.test_splits == ("test",)
        assert [example.label for example in task.examples("test")] == [None, None]

    @pytest.mark.parametrize(
        ("train", "validation", "version"),
        [(ONE, ONE, "1.1"), (TWO, ONE, "2.0"), (ONE, TWO, "2.0")],
    )
    def test_version_is_whether_any_question_is_unanswerable(
        self, tmp_path: Path, train: Any, validation: Any, version: str
    ) -> None:
        assert own(tmp_path, train=train, validation=validation).version == version

    def test_unanswerable_test_question_where_all_others_are_answered_is_an_error(
        self, tmp_path: Path
    ) -> None:
        task = own(tmp_path, train=ONE, validation=ONE, test=TWO)
        with pytest.raises(DataError, match=r"test\.json: expected an answer to each .*for 'q2'"):
            task.examples("test")

    def test_missing_split_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="answer/own: expected a test file, got none named"):
            own(tmp_path, train=ONE).examples("test")

    @pytest.mark.parametrize("numbers", [{}, {"null_threshold": 1.0}])
    def test_run_outlives_its_files(
        self, tmp_path: Path, pets: Tokenizer, numbers: dict[str, float]
    ) -> None:
        task = own(tmp_path, train=ONE if not numbers else TWO, validation=ONE)
        for path in task.files.values():
            path.unlink()
        task = dataclasses.replace(task)
        examples = [Example(0, ("Who sat?", CONTEXT)), Example(1, ("Who?", CONTEXT))]
        features = task.features(examples, pets, 64, training=False)
        outputs = perfect_outputs(features, {0: (4, 7)})  # odds of -5 and 5
        answers = task.decide(task.answers(outputs, examples, features), numbers)
        assert answers[0]["prediction"] == "cat"
        assert (answers[1]["prediction"] == "") == bool(numbers)
        assert all(math.isfinite(answer["null_odds"]) for answer in answers)


@pytest.fixture(scope="session")
def pets() -> Tokenizer:
    """A tokenizer that has a token for each word of the context."""
    from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

    words = [f"{CONTEXT} Who sat? 😺 é שלום عربي"] * 3
    return train_tokenizer(words, TokenizerConfig(vocab_size=65, min_frequency=1))


def test_answers_longer_than_may_be_given_are_told(tmp_path: Path, pets: Tokenizer) -> None:
    long = {"text": "cat sat on the mat. A dog", "answer_start": 4}
    task = own(tmp_path, train=document("1.1", question("q1", CAT), question("q2", long)))
    examples = task.examples("train")
    for training in (True, False):
        features = task.features(examples, pets, 32, training=training)
        (message,) = task.warnings(examples, features)
        assert message.startswith("1 of 2 answers (50%) has more than 5 tokens, the longest 8, and")
        assert message.endswith("raise --max-answer-length (to 8 for all of them)")
        assert not task.warnings(examples[:1], features[:1])
