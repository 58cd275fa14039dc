from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import HeadConfig, MultipleChoice
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.race.task import FOLDERS, race_task
from tests.made.nets import tiny_config

ARTICLE = "Tom has a red cat.\nIt sat on a mat.\nHe saw the dog run."


def passage(name: str, *answers: str, **changes: Any) -> dict[str, Any]:
    """A passage with a question an answer: the second is joined, the others have blanks."""
    forms = ["Tom has a  _  cat .", "What did Tom see?", "The _ sat on the _ .", "_"]
    options = ["red", "dog", "cat;mat", "the cat"]
    questions = [forms[number % 4] for number in range(len(answers))]
    return {
        "answers": list(answers),
        "options": [options] * len(answers),
        "questions": questions,
        "article": ARTICLE,
        "id": name,
        **changes,
    }


OFFICIAL = {
    "train/middle/1.txt": passage("middle1.txt", "A", "B", "B"),
    "train/middle/10.txt": passage("middle10.txt"),  # two of the real ones have no questions
    "train/high/7.txt": passage("high7.txt", *"DBABCDB"),
    "train/high/21.txt": passage("high21.txt", "C", article=ARTICLE.replace("\n", " ")),
    "dev/middle/3.txt": passage("middle3.txt", "A", "C"),
    "dev/high/4.txt": passage("high4.txt", "B"),
    "test/middle/5.txt": passage("middle5.txt", "D"),
    "test/high/6.txt": passage("high6.txt", "B"),
}


@pytest.fixture
def race(tmp_path: Path) -> Path:
    """A data folder with the official folders."""
    for name, content in OFFICIAL.items():
        path = tmp_path / "data" / "race" / "RACE" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return tmp_path / "data"


@pytest.fixture
def packed(race: Path) -> Path:
    """A data folder with the official archive alone."""
    folder = race / "race"
    with tarfile.open(folder / "RACE.tar.gz", "w:gz") as archive:
        archive.add(folder / "RACE", "RACE")
        note = tarfile.TarInfo("RACE/train/middle/._1.txt")  # as macOS packs beside a file
        note.size = 4
        archive.addfile(note, io.BytesIO(b"\x00\x05\x16\x07"))
    shutil.rmtree(folder / "RACE")
    return race


def ids(examples: list[Example]) -> list[Any]:
    return [example.id for example in examples]


class TestNames:
    @pytest.mark.parametrize("name", ["middle", "race/middle", "RACE/Middle"])
    def test_every_usual_spelling_finds_the_task(self, name: str) -> None:
        assert race_task(name).name == "race/middle"

    def test_unknown_task_is_an_error_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="unknown RACE task 'hihg'; did you mean 'high'?"):
            race_task("hihg")
        with pytest.raises(ConfigError, match="'college'; choose one of all, high, middle"):
            race_task("college")

    def test_a_file_for_an_unknown_split_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="no dev split, got the file x for it; choose one of"):
            race_task("all", files={"dev": Path("x")})

    def test_data_folder_comes_from_the_environment_if_none_is_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATA", "/one")
        assert race_task("all").data == Path("/one")
        assert race_task("all", Path("/two")).data == Path("/two")

    def test_splits_rows_and_labels(self) -> None:
        task = race_task("all", Path())
        assert (task.train_split, task.validation_splits, task.test_splits) == (
            "train", ("validation",), ("test",),
        )  # fmt: skip
        assert (task.labels, task.sequences_per_example, task.monitor) == (
            ("A", "B", "C", "D"),
            4,
            "accuracy",
        )

    def test_unknown_split_is_an_error(self) -> None:
        with pytest.raises(
            DataError, match="race/all has no split 'dev'; choose one of test, train"
        ):
            race_task("all", Path()).examples("dev")


class TestOfficialFiles:
    def test_a_level_is_read_in_the_order_of_file_names(self, race: Path) -> None:
        assert ids(race_task("middle", race).examples("train")) == [
            "middle1.txt/0", "middle1.txt/1", "middle1.txt/2",
        ]  # fmt: skip
        high = ids(race_task("high", race).examples("train"))
        assert high == ["high21.txt/0", *(f"high7.txt/{number}" for number in range(7))]

    def test_all_are_both_levels(self, race: Path) -> None:
        examples = race_task("all", race).examples("train")
        assert [example.group for example in examples] == ["high"] * 8 + ["middle"] * 3

    def test_an_example_holds_passage_question_options_and_answer_as_they_stand(
        self, race: Path
    ) -> None:
        assert race_task("middle", race).examples("validation")[1] == Example(
            id="middle3.txt/1",
            texts=(ARTICLE, "What did Tom see?", "red", "dog", "cat;mat", "the cat"),
            label="C",
            group="middle",
        )

    def test_the_test_split_has_its_answers(self, race: Path) -> None:
        labels = [example.label for example in race_task("all", race).examples("test")]
        assert labels == ["B", "D"]

    @pytest.mark.parametrize("level", ["all", "middle", "high"])
    @pytest.mark.parametrize("split", FOLDERS)
    def test_the_archive_gives_what_the_folders_give(
        self, level: str, split: str, race: Path, request: pytest.FixtureRequest
    ) -> None:
        expected = race_task(level, race).examples(split)
        packed = request.getfixturevalue("packed")
        assert not (packed / "race" / "RACE").exists()
        task = race_task(level, packed)
        assert task.examples(split) == expected
        assert task.data_files(split) == [packed / "race" / "RACE.tar.gz"]
        assert [path.name for path in (packed / "race").iterdir()] == ["RACE.tar.gz"]

    @pytest.mark.parametrize("place", ["race/RACE", "race", "RACE", "."])
    def test_the_folder_may_be_named_itself(self, place: str, race: Path, tmp_path: Path) -> None:
        expected = race_task("all", race).examples("train")
        moved = tmp_path / "moved" / place
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(race / "race" / "RACE", moved)
        task = race_task("all", tmp_path / "moved")
        assert task.examples("train") == expected
        assert task.data_files("train") == [moved / "train"]

    @pytest.mark.parametrize("place", ["RACE.tar.gz", "race/RACE.tgz", "x.tar.gz"])
    def test_the_archive_may_be_named_itself(
        self, place: str, packed: Path, tmp_path: Path
    ) -> None:
        expected = race_task("all", packed).examples("train")
        moved = tmp_path / "moved" / place
        moved.parent.mkdir(parents=True)
        shutil.move(packed / "race" / "RACE.tar.gz", moved)
        data = moved if place.startswith("x") else tmp_path / "moved"
        assert race_task("all", data).examples("train") == expected

    def test_other_places_are_named_by_split(self, race: Path, packed: Path) -> None:
        archive = packed / "race" / "RACE.tar.gz"
        task = race_task("all", files={"train": archive, "validation": archive})
        assert ids(task.examples("validation")) == [
            "high4.txt/0", "middle3.txt/0", "middle3.txt/1",
        ]  # fmt: skip
        assert task.data_files("train") == [archive]

    def test_a_named_folder_holds_the_levels(self, race: Path) -> None:
        folder = race / "race" / "RACE" / "dev"
        task = race_task("middle", files={"validation": folder})
        assert ids(task.examples("validation")) == ["middle3.txt/0", "middle3.txt/1"]

    def test_no_place_is_an_error_that_says_where_it_was_looked_for(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError,
            match="expected the validation passages of race/all at .*race/RACE/dev or in "
            "RACE.tar.gz, got neither; --data DIR",
        ):
            race_task("all", tmp_path).examples("validation")
        with pytest.raises(DataError, match="at .*gone or in .*; name a folder or an archive that"):
            race_task("all", files={"train": tmp_path / "gone"}).examples("train")

    def test_a_level_without_questions_is_an_error(self, race: Path) -> None:
        shutil.rmtree(race / "race" / "RACE" / "dev" / "middle")
        with pytest.raises(
            DataError,
            match="RACE/dev: expected questions in files such as middle/1.txt, got none",
        ):
            race_task("all", race).examples("validation")
        assert len(race_task("high", race).examples("validation")) == 1

    def test_empty_texts_are_an_error_in_training_data_alone(self, race: Path) -> None:
        for folder, number in (("train", 1), ("train", 10), ("dev", 3)):
            empty = passage(f"middle{number}.txt", "A", article="", questions=[""])
            empty["options"] = [[""] * 4]
            path = race / "race" / "RACE" / folder / "middle" / f"{number}.txt"
            path.write_text(json.dumps(empty))
        task = race_task("middle", race)
        with pytest.raises(
            DataError, match="train: expected texts to train on, got all of them empty"
        ):
            task.examples("train")
        assert task.examples("validation")[0].texts == ("",) * 6


class TestBadFiles:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"options": [["a", "b", "c"]]}, "question 0: expected 4 options, got 3"),
            ({"options": [[]]}, "question 0: expected 4 options, got 0"),
            ({"options": []}, "expected options for each of 1 question, got 0"),
            ({"options": ["abcd"]}, "expected 'options' to be a list of lists of texts, got"),
            ({"options": [[1, 2, 3, 4]]}, "expected 'options' to be a list of lists of texts"),
            ({"answers": ["E"]}, "question 0: expected an answer of A, B, C, D, got \"E\""),
            ({"answers": ["a"]}, "question 0: expected an answer of A, B, C, D, got \"a\""),
            ({"answers": [""]}, "question 0: expected an answer of A, B, C, D, got \"\""),
            ({"answers": [0]}, "expected 'answers' to be a list of texts, got \\[0\\]"),
            ({"answers": ["A", "B"]}, "expected answers for each of 1 question, got 2"),
            ({"questions": "Who?"}, "expected 'questions' to be a list of texts, got \"Who"),
            ({"article": None}, "expected 'article' to be a text, got null"),
            ({"id": 3}, "expected 'id' to be a text, got 3"),
            ({"id": "high3.txt"}, "expected an id that starts with 'middle', the level, got"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("archived", [False, True])
    def test_a_bad_value_is_one_line_that_names_the_file(
        self, changes: dict[str, Any], message: str, archived: bool, race: Path
    ) -> None:
        broken = {**passage("middle3.txt", "A"), **changes}
        path = race / "race" / "RACE" / "dev" / "middle" / "3.txt"
        path.write_text(json.dumps(broken))
        place = str(path)
        if archived:
            place = f"{race / 'race'}/RACE.tar:RACE/dev/middle/3.txt"
            with tarfile.open(race / "race" / "RACE.tar", "w") as archive:
                archive.add(race / "race" / "RACE", "RACE")
            shutil.rmtree(race / "race" / "RACE")
        with pytest.raises(DataError, match=message) as error:
            race_task("all", race).examples("validation")
        assert str(error.value).startswith(f"{place}: ")
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["id", "article", "questions", "options", "answers"])
    def test_a_missing_field_is_named(self, name: str, race: Path) -> None:
        content = passage("middle3.txt", "A")
        del content[name]
        path = race / "race" / "RACE" / "dev" / "middle" / "3.txt"
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=rf"3.txt: expected a field {name}, got the fields \w"):
            race_task("middle", race).examples("validation")

    def test_a_test_file_may_withhold_its_answers(self, race: Path) -> None:
        content = passage("middle5.txt", "A", "B")
        del content["answers"]
        (race / "race" / "RACE" / "test" / "middle" / "5.txt").write_text(json.dumps(content))
        assert [e.label for e in race_task("middle", race).examples("test")] == [None, None]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (
                json.dumps(OFFICIAL["dev/middle/3.txt"])[:-20].encode(),
                "expected JSON, got: .*line 1",
            ),
            (b"", "expected JSON, got: Expecting value"),
            (b"[" * 100_000, "expected JSON, got: .*recursion"),
            (b"[1, 2]", r"expected a JSON object, got \[1, 2\]"),
            (
                "{}".encode("utf-16"),
                ": expected UTF-8, got the byte 0xff at offset 0; save the file as",
            ),
        ],
    )
    def test_what_is_no_json_of_this_form_is_one_line(
        self, content: bytes, message: str, race: Path
    ) -> None:
        path = race / "race" / "RACE" / "dev" / "middle" / "3.txt"
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"3.txt:[ 1]{message}") as error:
            race_task("middle", race).examples("validation")
        assert "\n" not in str(error.value)

    def test_a_byte_order_mark_and_windows_line_ends_are_borne(self, race: Path) -> None:
        path = race / "race" / "RACE" / "dev" / "middle" / "3.txt"
        content = json.dumps(OFFICIAL["dev/middle/3.txt"], indent=1).replace("\n", "\r\n")
        expected = race_task("middle", race).examples("validation")
        path.write_bytes(b"\xef\xbb\xbf" + content.encode())
        assert race_task("middle", race).examples("validation") == expected

    def test_an_id_that_comes_twice_names_both_files(self, race: Path) -> None:
        path = race / "race" / "RACE" / "dev" / "middle" / "9.txt"
        path.write_text(json.dumps(passage("middle3.txt", "A")))
        with pytest.raises(
            DataError,
            match="9.txt: expected an id of its own, got 'middle3.txt' a second .*3.txt",
        ):
            race_task("middle", race).examples("validation")

    def test_an_archive_with_a_link_is_refused(self, packed: Path) -> None:
        link = tarfile.TarInfo("RACE/train/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        with tarfile.open(packed / "race" / "RACE.tar.gz", "w:gz") as archive:
            archive.addfile(link)
        with pytest.raises(DataError, match="RACE.tar.gz:RACE/train/link: .* got a link; unpack"):
            race_task("all", packed).examples("train")


class TestQuestionsAndOptions:
    def test_features_are_those_of_the_options_with_the_label_on_each(
        self, race: Path, tokenizer: Tokenizer
    ) -> None:
        task = race_task("middle", race)
        examples = task.examples("train")
        features = task.features(examples, tokenizer, 60, training=True)
        assert [feature.label for feature in features] == [0] * 4 + [1] * 8
        seconds = ["Tom has a  red  cat .", "Tom has a  dog  cat ."]
        for feature, second in zip(features, seconds, strict=False):
            first_ids, second_ids = tokenizer.encode_ids([ARTICLE, second])
            kept = min(len(first_ids), 57 - len(second_ids))
            assert feature.input_ids[1 : kept + 1] == first_ids[:kept]
            assert feature.input_ids[kept + 2 : -1] == second_ids
            assert feature.trimmed == len(first_ids) - kept

    def test_withheld_answers_give_features_without_labels(
        self, race: Path, tokenizer: Tokenizer
    ) -> None:
        task = race_task("middle", race)
        known = task.examples("validation")
        withheld = [Example(e.id, e.texts) for e in known]
        features = task.features(withheld, tokenizer, 60, training=False)
        assert [feature.label for feature in features] == [None] * 8
        features = task.features([known[0], withheld[1]], tokenizer, 60, training=False)
        assert [feature.label for feature in features] == [0] * 4 + [-100] * 4

    def test_no_examples_give_no_features(self, tokenizer: Tokenizer) -> None:
        assert race_task("all", Path()).features([], tokenizer, 60, training=False) == []

    def test_it_is_described_by_levels_and_by_blanks(self, race: Path) -> None:
        task = race_task("all", race)
        assert task.describe(task.examples("train")) == {
            "questions_high": 8,
            "questions_middle": 3,
            "questions_filled": round(8 / 11, 4),
            "questions_joined": round(3 / 11, 4),
        }

    def test_the_head_scores_four_options(self) -> None:
        config = tiny_config(vocab_size=9, hidden_size=8)
        head = race_task("all").head(config, HeadConfig())
        assert isinstance(head, MultipleChoice)
        assert head.num_choices == 4


class TestAnswers:
    def test_an_answer_is_a_letter_with_all_probabilities(self, race: Path) -> None:
        task = race_task("middle", race)
        examples = task.examples("validation")
        logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], np.float32))
        assert task.answers(logits, examples, []) == [
            {
                "id": "middle3.txt/0",
                "prediction": "D",
                "probabilities": pytest.approx({"A": 0.1, "B": 0.2, "C": 0.3, "D": 0.4}),
                "label": "A",
            },
            {
                "id": "middle3.txt/1",
                "prediction": "A",
                "probabilities": pytest.approx({"A": 0.7, "B": 0.1, "C": 0.1, "D": 0.1}),
                "label": "C",
            },
        ]
        assert (task.tune([]), task.decide([{"id": 1}], {})) == ({}, [{"id": 1}])
        assert task.submission("test", []) == {}

    def test_the_order_of_a_trained_head_changes_no_answer(
        self, race: Path, tokenizer: Tokenizer
    ) -> None:
        usual, order = race_task("all", race), ("C", "A", "D", "B")
        moved = race_task("all", race, labels=order)
        examples = usual.examples("train")
        places = [usual.labels.index(label) for label in order]
        logits = np.random.default_rng(0).normal(size=(len(examples), 4))
        expected = usual.answers(logits, examples, [])
        assert moved.answers(logits[:, places], examples, []) == expected

        features = usual.features(examples, tokenizer, 60, training=False)
        others = moved.features(examples, tokenizer, 60, training=False)
        for number, feature in enumerate(others):
            unit, place = divmod(number, 4)
            assert feature.input_ids == features[4 * unit + places[place]].input_ids
            assert order[int(str(feature.label))] == examples[unit].label
        assert moved.feature_settings != usual.feature_settings

    @pytest.mark.parametrize("labels", [("A", "B", "C"), ("no", "yes"), ()])
    def test_the_head_of_another_task_is_refused(self, labels: tuple[str, ...]) -> None:
        with pytest.raises(
            CheckpointError,
            match="race/all: expected a head for the options A, B, C, D, got one for "
            + (", ".join(labels) or "no options"),
        ):
            race_task("all", labels=labels)

    def test_accuracy_is_told_for_both_levels_and_for_each(self) -> None:
        answers = [
            {"id": "middle1.txt/0", "prediction": "A", "label": "A"},
            {"id": "high1.txt/0", "prediction": "A", "label": "B"},
            {"id": "high1.txt/1", "prediction": "A", "label": "A"},
            {"id": "high2.txt/0", "prediction": "C", "label": "A"},
        ]
        task = race_task("all")
        scores = task.score(answers)
        assert scores == {"accuracy": 0.5, "accuracy_middle": 1.0, "accuracy_high": 1 / 3}
        assert list(scores)[0] == task.monitor
        assert task.score(answers[1:]) == {"accuracy": 1 / 3}

    @pytest.mark.parametrize("answers", [[], [{"id": "high1.txt/0", "prediction": "A"}]])
    def test_answers_without_labels_cannot_be_scored(self, answers: list[Any]) -> None:
        with pytest.raises(DataError, match="race/all: expected answers with labels, got some wi"):
            race_task("all").score(answers)

    def test_the_trivial_answer_is_the_most_frequent_letter(self, race: Path) -> None:
        task = race_task("all", race)
        train, validation = task.examples("train"), task.examples("validation")
        assert {a["prediction"] for a in task.baseline_answers(train, validation)} == {"B"}
        assert task.score(task.baseline_answers(train, validation)) == {
            "accuracy": 1 / 3, "accuracy_middle": 0.0, "accuracy_high": 1.0,
        }  # fmt: skip
        assert task.baseline_answers([], validation)[0]["prediction"] == "A"


class TestRowsOfTheUser:
    def test_a_question_is_read_without_looking_for_its_answer(self) -> None:
        row = {"article": "p", "question": "q", "options": list("wxyz"), "answer": "?"}
        expected = ("p", "q", "w", "x", "y", "z")
        task = race_task("high")
        assert task.example(row, "f:1", 5) == Example(5, expected)
        assert task.example({"id": "7", **row}, "f:1", 5) == Example("7", expected)

    def test_it_must_have_four_options(self) -> None:
        row = {"article": "p", "question": "q", "options": list("xyz")}
        with pytest.raises(DataError, match="f:1: expected 4 options .A, B, C, D. for every ques"):
            race_task("high").example(row, "f:1", 0)
