"""What a user's own data are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConfigError
from tasks.own.names import name_of, slug
from tasks.run_settings import AnswerRun, ChooseRun, ClassifyRun


@pytest.mark.parametrize(
    ("file", "label", "name"),
    [
        ("reviews.csv", "sentiment", "reviews-sentiment"),
        ("reviews.csv", "label", "reviews"),
        ("reviews.csv.gz", None, "reviews"),
        ("spam/train.tsv", "label", "spam"),
        ("reviews_train.csv", "sentiment", "reviews-sentiment"),
        ("train-reviews.csv", "label", "reviews"),
        ("spam/data.csv", "label", "spam"),
        ("strain.csv", "label", "strain"),
        ("spam/Training.jsonl", "is it?", "spam-is-it"),
        ("my reviews (2).csv", None, "my-reviews-2"),
        ("/.csv", None, "own"),
    ],
)
def test_data_are_called_after_their_file_and_label_column(
    file: str, label: str | None, name: str
) -> None:
    assert name_of(Path(file), label) == name


def test_a_slug_is_never_empty_and_never_long() -> None:
    assert slug("  ") == slug("..") == "own"
    assert slug("x" * 49 + " - y") == "x" * 49


@pytest.mark.parametrize("name", ["..", "-", "x" * 101, "a/b", "😀"])
def test_names_that_make_no_folder_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name: expected at most 100 letters"):
        ClassifyRun("none", "classify/own", train="x.csv", name=name)


@pytest.mark.parametrize("kind", [ClassifyRun, AnswerRun, ChooseRun])
def test_name_and_task_follow_each_other(kind: Any) -> None:
    family = {ClassifyRun: "classify", AnswerRun: "answer", ChooseRun: "choose"}[kind]
    named = kind("none", f"{family}/own", train="x.csv", name="reviews")
    assert named.task == f"{family}/reviews"
    assert kind("none", named.task, train="x.csv").name == "reviews"
    assert kind("none", f"{family}/own", train="x.csv").name is None
    with pytest.raises(ConfigError, match="got 'a b'; choose one such as a-b"):
        kind("none", f"{family}/own", train="x.csv", name="a b")


def test_public_sets_keep_their_names() -> None:
    assert ClassifyRun("none", "classify/imdb").dataset == "imdb"
    assert ClassifyRun("none", "classify/own", dataset="imdb").task == "classify/imdb"
    assert ClassifyRun("none", "classify/imbd").dataset == "imbd"  # refused with its neighbour
    assert ClassifyRun("none", "classify/imdb", train="x.csv").dataset == "imdb"
    with pytest.raises(ConfigError, match="'imdb' is a public data set"):
        ClassifyRun("none", "classify/own", train="x.csv", name="imdb")
    with pytest.raises(ConfigError, match="so does --name"):
        ClassifyRun("none", "classify/own", dataset="imdb", name="x")
