"""Published figures: each of a task that there is, of one of its metrics, with a source."""

from __future__ import annotations

import pytest

from finetune.runs.families import Anchor
from tasks.families import FAMILIES
from tasks.glue.table import GLUE

ANCHORS = [
    (task, anchor)
    for family in FAMILIES.values()
    for task, anchors in family.anchors().items()
    for anchor in anchors
]


@pytest.mark.parametrize(("task", "anchor"), ANCHORS)
def test_a_figure_is_a_fraction_of_a_known_task_with_its_source(task: str, anchor: Anchor) -> None:
    word, name = task.split("/")
    family = FAMILIES[word]
    assert name in family.names() or not family.names()
    assert 0 <= anchor.value <= 1
    assert anchor.split in ("validation", "test")
    assert anchor.model
    assert ", 20" in anchor.source
    if word == "glue":
        assert anchor.metric in GLUE[name].metrics


def test_every_glue_task_that_is_trained_has_one() -> None:
    assert FAMILIES["glue"].anchors().keys() == {f"glue/{name}" for name in GLUE} - {"glue/ax"}


def test_each_figure_says_how_large_its_data_are() -> None:
    sizes = {task: anchor.examples for task, anchor in ANCHORS}
    assert all(sizes.values())
    assert sizes["glue/sst2"] == 67_349 + 872
    assert sizes["glue/mnli"] == 392_702 + 9_815
    assert sizes["squad/2.0"] == 130_319 + 11_873
