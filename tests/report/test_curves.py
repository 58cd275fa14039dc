"""The learning curve over training examples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.report.collecting import collect
from finetune.report.curves import by_examples
from finetune.report.view import task_views
from tests.made.runs import write_class_run

ELEMENTARY = {"trivial": {"accuracy": 0.5}, "bag_of_words": {"accuracy": 0.8}}


def write(root: Path, name: str, accuracy: float, count: int, start: str) -> None:
    data = {"train": {"examples": count, "sequences": count, "trimmed": 0.0}}
    more: dict[str, Any] = {"data": data, "encoder": start, "baselines": ELEMENTARY}
    write_class_run(root / name, accuracy, (1, 2), **more)


def drawn(root: Path) -> Any:
    (view,) = task_views(collect([root]))
    block = by_examples(view)
    return block and json.loads(re.findall(r'class="spec">(.*?)</script>', block, re.S)[0])


def test_runs_on_more_and_fewer_examples_make_a_line_for_each_start(tmp_path: Path) -> None:
    write(tmp_path, "tiny-100", 0.6, 100, "runs/tiny")
    write(tmp_path, "tiny-2000", 0.9, 2000, "runs/tiny")
    write(tmp_path, "scratch-100", 0.5, 100, "none")
    spec = drawn(tmp_path)
    values = json.loads((tmp_path / "tiny-2000" / "results.json").read_text())["metrics"][
        "accuracy"
    ]
    lines = {one["name"]: one["points"] for one in spec["series"]}
    assert spec["names"] == ["100", "2,000"]
    assert set(lines) == {"tiny", "from scratch", "best elementary baseline"}
    assert [point[0] for point in lines["tiny"]] == ["100", "2,000"]
    deviation = np.std(values["values"], ddof=1)
    assert lines["tiny"][1][1:] == pytest.approx([values["mean"], deviation])
    assert [point[1] for point in lines["best elementary baseline"]] == [0.8, 0.8]


def test_what_else_tells_runs_apart_names_the_line(tmp_path: Path) -> None:
    for pooling, count in (("mean", 100), ("mean", 500), ("cls", 100)):
        name = f"{pooling}-{count}"
        write(tmp_path, name, 0.6, count, "runs/tiny")
        for folder in (tmp_path / name, *(tmp_path / name).glob("seed-*")):
            with (folder / "config.yaml").open("a") as file:
                file.write(f"head: {{pooling: {pooling}}}\n")
    names = [one["name"] for one in drawn(tmp_path)["series"]]
    assert set(names) == {"tiny, mean", "tiny, cls", "best elementary baseline"}


def test_runs_on_the_same_examples_make_no_learning_curve(tmp_path: Path) -> None:
    write(tmp_path, "tiny", 0.6, 100, "runs/tiny")
    write(tmp_path, "scratch", 0.5, 500, "none")
    assert drawn(tmp_path) is None
