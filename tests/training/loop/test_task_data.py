"""The halves of a validation split: one chooses, the other stays fresh."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from finetune.errors import DataError
from finetune.task.drawing import halves
from finetune.task.interface import Example
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.task_data import TaskData
from tasks.glue.task import glue_task
from tests.made.texts import has_the, sentences, write_sst2


def examples(texts: list[str]) -> list[Example]:
    return [Example(number, (text,)) for number, text in enumerate(texts)]


def test_halves_share_nothing_are_alike_in_size_and_keep_the_order() -> None:
    whole = examples([f"text {number}" for number in range(101)])
    chosen, fresh = halves(whole)
    assert (len(chosen), len(fresh)) == (50, 51)
    assert sorted([*chosen, *fresh], key=lambda one: int(one.id)) == whole
    for half in (chosen, fresh):
        assert [one.id for one in half] == sorted(int(one.id) for one in half)


def test_the_half_of_a_text_does_not_depend_on_the_order_of_the_rows() -> None:
    whole = examples([f"text {number}" for number in range(100)])
    chosen = {one.texts for one in halves(whole)[0]}
    random.Random(0).shuffle(whole)
    assert {one.texts for one in halves(whole)[0]} == chosen


def test_examples_of_one_passage_stay_together() -> None:
    passages = [f"a long passage, number {number}" for number in range(20)]
    whole = [Example(n, (f"why {n}", passages[n % 20])) for n in range(100)]
    chosen, fresh = ({one.texts[1] for one in half} for half in halves(whole))
    assert not chosen & fresh
    assert len(chosen) == len(fresh) == 10


def test_a_pair_and_its_mirrored_one_stay_together() -> None:
    """Also where both texts are of one length, and neither is the longer one."""
    pairs = [(f"cat {number}", f"dog {number}") for number in range(10, 40)]
    whole = [Example(n, pair) for n, pair in enumerate(pairs + [(b, a) for a, b in pairs])]
    chosen, fresh = ({frozenset(one.texts) for one in half} for half in halves(whole))
    assert len(chosen) == len(fresh) == 15
    assert not chosen & fresh


@pytest.mark.parametrize("texts", [["a", "b"], ["a", "a", "a", "b"], ["b", "a", "a", "a"]])
def test_two_different_texts_are_enough(texts: list[str]) -> None:
    assert all(halves(examples(texts)))


def test_a_task_is_validated_on_one_half_and_has_the_other_by_name(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    task = glue_task("sst2", write_sst2(tmp_path, has_the))
    data = TaskData(task, tokenizer, choose_on_half=True)
    chosen, fresh = halves(task.examples("validation"))
    assert data.examples("validation") == chosen
    assert data.examples("validation_fresh") == fresh
    assert data.examples("train") == task.examples("train")
    assert len(data.features("validation_fresh")) == len(fresh)
    assert data.digest("validation") != TaskData(task, tokenizer).digest("validation")


def test_a_split_of_one_text_cannot_be_halved(tmp_path: Path, tokenizer: Tokenizer) -> None:
    task = glue_task("sst2", write_sst2(tmp_path, has_the))
    file = tmp_path / "glue_data" / "SST-2" / "dev.tsv"
    file.write_text("sentence\tlabel\n" + f"{sentences(1, 1)[0]}\t1\n" * 3)
    data = TaskData(task, tokenizer, choose_on_half=True)
    with pytest.raises(DataError, match="expected a validation split of at least two different"):
        data.examples("validation")
