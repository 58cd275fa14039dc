"""What a report says of the data, and which runs belong together because of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from finetune.report.collecting import Problem, collect
from finetune.report.confusion import scatter
from finetune.report.data import corpus_table, data_tables, made_table
from finetune.report.overview import summary
from finetune.report.view import TaskView, task_views
from finetune.report.warnings import problem_list
from finetune.runs.families import Anchor
from tests.made.runs import class_rows, write_class_run, write_pretraining, write_run

WORDS = {"min": 1, "median": 6.0, "mean": 7.1, "p95": 19.0, "max": 30}
DATA = {
    "train": {
        "files": ["/data/reviews.csv"],
        "examples": 1200,
        "sequences": 1200,
        "classes": {"no": 900, "yes": 300},
        "words": WORDS,
        "tokens": WORDS,
        "trimmed": 0.125,
        "duplicate_texts": 12,
    },
    "validation": {"examples": 40, "numbers": {"min": 0.0, "mean": 2.6, "max": 5.0, "std": 1.0}},
    "shared_texts": {"train/validation": 3},
    "padding": 0.1,
}


def views_of(folder: Path, **more: Any) -> list[TaskView]:
    return task_views(collect([folder]), **more)


def text_of(markup: Any) -> str:
    return " ".join(re.sub("<[^>]*>", " ", str(markup)).split())


def write(folder: Path, task: str, digest: str, metric: str = "accuracy", **more: Any) -> None:
    origin = {"task": task, "checkpoint": "x", "data": digest}
    more = {"predictions": {"validation": origin}} | more if digest else more
    write_run(folder, task, {metric: 0.8}, class_rows(1, 0.8), **more)


def test_the_splits_are_described(tmp_path: Path) -> None:
    write(tmp_path / "run", "classes", "", data=DATA)
    table = text_of(data_tables(views_of(tmp_path)))
    assert "train reviews.csv 1,200 no 900 (75%), yes 300 (25%) 6 19 6 19 12.5% 12 1.0% –" in table
    assert "validation 40 0 to 5, mean 2.6" in table
    assert table.endswith("3 7.5%")


def test_runs_on_other_data_have_a_table_of_their_own(tmp_path: Path) -> None:
    less = {**DATA, "train": {"examples": 10, "trimmed": 0.0}}
    moved = {**DATA, "train": {**DATA["train"], "files": ["/moved/reviews.csv"]}}  # type: ignore[dict-item]
    for name, data in (("a", DATA), ("b", less), ("c", moved)):
        write(tmp_path / name, "classes", "", data=data)
    tables = text_of(data_tables(views_of(tmp_path)))
    named = re.findall(r"made/classes \(([abc, ]*)\)", tables)
    assert sorted(named) == ["b", "c, a"]  # the baseline comes last


def test_how_a_run_was_made_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "old", "classes", "")
    assert made_table(views_of(tmp_path)) is None
    facts = {
        "finished": "2026-11-29T06:50:12+01:00",
        "command": "finetune classify --train <a>.csv",
        "working_folder": "/home/me",
        "machine": {"processor": "EPYC", "cores": 2, "memory_gib": 7.8, "gpu": None},
        "versions": {"finetune": "0.2", "torch": "2.13", "numpy": "2"},
    }
    write(tmp_path / "new", "classes", "", **facts)
    table = made_table(views_of(tmp_path))
    assert "<a>" not in str(table)
    assert '<span class="unbroken">--train</span>' in str(table)
    for part in ("2026-11-29 06:50", "EPYC, 2 cores, 8 GiB", "finetune 0.2, torch 2.13"):
        assert part in text_of(table)
    assert "finetune classify --train" in text_of(table)
    assert "in /home/me" in text_of(table)


def test_runs_on_the_same_examples_belong_together_whatever_their_name(tmp_path: Path) -> None:
    write(tmp_path / "a", "own", "d1")
    write(tmp_path / "b", "reviews", "d1")
    write(tmp_path / "c", "own", "d2", data=DATA)
    views = views_of(tmp_path)
    assert [[run.name for run in view.runs] for view in views] == [["b", "a"], ["c"]]
    assert [view.task for view in views] == ["made/own (1)", "made/own (reviews.csv)"]
    assert len({view.key for view in views}) == 2


def test_without_a_digest_runs_of_other_metrics_are_apart(tmp_path: Path) -> None:
    write(tmp_path / "a", "own", "")
    write(tmp_path / "b", "own", "", "pearson")
    views = views_of(tmp_path)
    assert [view.headline for view in views] == ["accuracy", "pearson"]


@pytest.mark.parametrize(("examples", "shown"), [(80, 1), (100, 0), (8000, 0), (None, 1)])
def test_published_figures_stand_beside_runs_on_the_official_data_alone(
    tmp_path: Path, examples: int | None, shown: int
) -> None:
    write(tmp_path / "run", "classes", "")  # on 40 examples, scored on 40
    anchor = Anchor("accuracy", 0.9, "A large one", "test", "Someone, 2020", examples)
    (view,) = views_of(tmp_path, anchors={"made/classes": [anchor]})
    assert len(view.anchors) == shown


def test_numbers_are_drawn_against_the_gold() -> None:
    rows = [{"id": n, "prediction": n + 1.0, "label": float(n)} for n in range(5)]
    other = [{**row, "prediction": row["label"]} for row in rows]
    plot = str(scatter([rows, other], "run", "red"))
    assert '{"id":"4","gold":4.0,"predicted":4.5}' in plot
    assert "5 examples, mean absolute error 0.5" in plot
    assert scatter([class_rows(1, 0.8)], "run", "red") is None
    assert scatter([], "run", "red") is None


def test_a_large_scatter_is_thinned_and_says_so() -> None:
    rows = [{"id": n, "prediction": 1.0, "label": float(n)} for n in range(4001)]
    plot = str(scatter([rows], "run", "red"))
    assert plot.count('"gold"') == 1334
    assert "1,334 of 4,001 shown" in plot


def test_equal_warnings_of_several_runs_are_one() -> None:
    same = [Problem(name, "it is odd", damaged=False) for name in "abcdef"]
    listed = problem_list([*same, *same, Problem("g", "it is worse")])
    assert str(listed).count("<li") == 2
    assert text_of(listed) == "g : it is worse a, b, c, d and 2 more (6 runs): it is odd"


def test_with_too_few_seeds_the_examples_lead(tmp_path: Path) -> None:
    write_class_run(tmp_path / "a", 0.95, (1, 2))
    write_class_run(tmp_path / "b", 0.4, (1, 2), encoder="none")
    views = views_of(tmp_path)
    assert "1 better on these examples (too few seeds to say more)" in text_of(summary(views))


def test_a_pretraining_says_what_its_corpus_is(tmp_path: Path) -> None:
    write_pretraining(tmp_path / "run")
    assert corpus_table(views_of(tmp_path)) is None  # of an earlier version
    facts = {"corpus": ["/data/wiki.txt"], "documents": 1200, "validation_documents": 12}
    facts |= {"duplicate_documents": 3, "tokens": 45_678, "unknown_share": 0.0012}
    file = tmp_path / "run" / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": facts}))
    row = text_of(corpus_table(views_of(tmp_path)))
    assert row.endswith("run wiki.txt 1,200 12 3 45,678 0.12%")
