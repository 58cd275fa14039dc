"""The real files of the public sets, where FINETUNE_DATA names a folder with them."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path

import pytest

from tasks.own.text import ClassifyConfig, ClassifyTask, classify_task
from tasks.own.text_sets import TextSetTask, text_set_task

pytestmark = pytest.mark.data

TRAIN_COUNTS = {"DESC": 1162, "ENTY": 1250, "ABBR": 86, "HUM": 1223, "NUM": 896, "LOC": 835}


def real(name: str) -> TextSetTask:
    task = text_set_task(name, Path(os.environ["FINETUNE_DATA"]))
    if not any(place.exists() for place in task.source.places("train")):
        pytest.skip(f"{name} is not in the data folder")
    return task


def training_counts(task: ClassifyTask) -> Counter[object]:
    """Rows of each class in the official training file: those kept and those held out."""
    splits = (task.examples(split) for split in ("train", "validation"))
    return Counter(example.label for examples in splits for example in examples)


def test_trec_has_its_official_counts() -> None:
    task = real("trec6")
    assert training_counts(task) == TRAIN_COUNTS
    assert len(task.examples("test")) == 500


def test_trec_has_fifty_fine_classes_of_which_the_test_has_42() -> None:
    task = real("trec50")
    assert len(task.labels) == 50
    assert len({example.label for example in task.examples("test")}) == 42
    assert training_counts(task).total() == 5452


def test_ag_news_has_its_official_test_set() -> None:
    task = real("agnews")
    assert Counter(example.label for example in task.examples("test")) == dict.fromkeys(
        task.labels, 1900
    )
    assert not any("\\" in example.texts[0] for example in task.examples("test"))
    (file,) = task.data_files("train")
    counts = training_counts(task)
    if ".part5000." in file.name:
        assert [counts[name] for name in task.labels] == [1204, 1240, 1291, 1265]
    else:
        assert [counts[name] for name in task.labels] == [30_000] * 4


def test_imdb_has_its_official_counts() -> None:
    task = real("imdb")
    assert training_counts(task) == {"pos": 12_500, "neg": 12_500}
    test = task.examples("test")
    assert Counter(example.label for example in test) == {"pos": 12_500, "neg": 12_500}
    assert len({example.texts for example in test}) == 24_801
    assert not any("<br />" in example.texts[0] for example in test)
    assert any("\x85" in example.texts[0] for example in test)


def test_imdb_has_fifty_thousand_unlabelled_reviews() -> None:
    assert sum(1 for _ in real("imdb").unlabelled_texts()) == 50_000


def test_real_table_with_a_header_is_read_as_own_data(tmp_path: Path) -> None:
    source = real("agnews")
    (official,) = source.data_files("test")
    content = official.read_bytes()
    content = gzip.decompress(content) if official.suffix == ".gz" else content
    path = tmp_path / "own.csv"
    path.write_bytes(b"class,title,description\n" + content)
    config = ClassifyConfig("title", "description")
    own = classify_task({"train": path}, config)
    examples = own.examples("train")
    assert (own.kind, own.labels, len(examples)) == ("classes", ("1", "2", "3", "4"), 7600)
