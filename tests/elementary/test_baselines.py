"""Which baselines answer which form of examples, and that tasks score their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from finetune import find_task
from finetune.elementary.bags import TFIDF_INVERSES
from finetune.elementary.baselines import BASELINES, TRIVIAL, applicable, fit, thinned
from finetune.errors import DataError
from finetune.task.interface import Answer, Example, Task
from tests.made.texts import has_the, sentences, write_csv, write_lines

BAGS = ["bag_of_words", "naive_bayes"]


def task_of(folder: Path, rows: Mapping[str, list[list[object]]], *columns: str) -> Task:
    files = {
        split: write_csv(folder / f"{split}.csv", columns, content)
        for split, content in rows.items()
    }
    return find_task("classify", train=files["train"], validation=files["validation"])


def rows_of(label: object, *, pair: bool = False, count: int = 40) -> dict[str, list[list[object]]]:
    """Rows whose label is a function of the first text."""
    made = {}
    for split, seed in (("train", 1), ("validation", 2)):
        texts = sentences(seed, count)
        made[split] = [
            [text, *([text[: 4 + n % 3 * 9]] if pair else []), label(text, n)]  # type: ignore[operator]
            for n, text in enumerate(texts)
        ]
    return made


def of_class(text: str, number: int) -> str:
    return "with" if has_the(text) else "without"


def of_three(text: str, number: int) -> str:
    return "abc"[number % 3]


def of_number(text: str, number: int) -> float:
    return len(text) + 0.5


def of_several(text: str, number: int) -> str:
    return ";".join(name for name in ("the", "cat", "dog") if name in text.split()) or "dog"


@pytest.mark.parametrize(
    ("label", "pair", "expected"),
    [
        (of_class, False, BAGS),
        (of_class, True, [*BAGS, "word_overlap"]),
        (of_three, True, ["bag_of_words", "word_overlap"]),
        (of_number, False, ["bag_of_words"]),
        (of_number, True, ["bag_of_words", "word_overlap"]),
        (of_several, False, ["bag_of_words"]),
    ],
)
def test_form_of_the_examples_says_which_baselines_apply(
    tmp_path: Path, label: object, pair: bool, expected: list[str]
) -> None:
    columns = ("text1", "text2", "label") if pair else ("text", "label")
    task = task_of(tmp_path, rows_of(label, pair=pair), *columns)
    train, rest = task.examples("train"), task.examples("validation")
    assert applicable(task, train) == expected
    for name in (TRIVIAL, *expected):
        answers = fit(name, task, train)(rest)
        assert [row["id"] for row in answers] == [one.id for one in rest]
        assert task.monitor in task.score(answers)
        assert fit(name, task, train)(rest) == answers


def test_bag_of_words_learns_what_words_say(tmp_path: Path) -> None:
    task = task_of(tmp_path, rows_of(of_class, count=200), "text", "label")
    train, rest = task.examples("train"), task.examples("validation")
    scores = {
        name: task.score(fit(name, task, train)(rest))["accuracy"] for name in (TRIVIAL, *BAGS)
    }
    assert scores["bag_of_words"] > 0.9 > scores[TRIVIAL]
    assert scores["naive_bayes"] > 0.9


def test_penalty_is_chosen_by_the_headline_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(tmp_path, rows_of(of_class), "text", "label")
    train, scored = task.examples("train"), []

    def score(_: Task, rows: Sequence[Answer]) -> dict[str, float]:
        scored.append(len(rows))
        return {task.monitor: 0.0}

    monkeypatch.setattr(type(task), "score", score)
    fit("bag_of_words", task, train)
    assert scored == [8] * 5 * len(TFIDF_INVERSES)


def test_options_are_chosen_by_the_sliding_window(tmp_path: Path) -> None:
    row = {"context": "the red cat sees the dog", "question": "what is red", "answer": "A"}
    file = write_lines(tmp_path / "rows.jsonl", [{**row, "options": ["the cat", "a house"]}])
    task = find_task("choose", validation=file)
    examples = task.examples("validation")
    assert applicable(task, examples) == ["sliding_window"]
    assert task.score(fit("sliding_window", task, [])(examples)) == {"accuracy": 1.0}


@pytest.mark.parametrize("name", [name for name, one in BASELINES.items() if one.is_fitted])
def test_nothing_is_fitted_to_unlabelled_examples(tmp_path: Path, name: str) -> None:
    task = task_of(tmp_path, rows_of(of_class), "text", "label")
    with pytest.raises(DataError, match="expected labelled examples to train on"):
        fit(name, task, [Example(0, ("a cat",))])


def test_large_set_is_thinned_out_evenly_and_always_alike() -> None:
    examples = [Example(n, (str(n),), "a" if n % 4 else "b") for n in range(4000)]
    fewer = thinned(examples, 400)
    assert len(fewer) == 400
    assert sum(one.label == "b" for one in fewer) == pytest.approx(100, abs=1)
    assert [one.id for one in fewer] == sorted(int(one.id) for one in fewer)
    assert thinned(examples, 400) == fewer
    assert thinned(examples) == examples


def test_numbers_are_thinned_out_over_their_range() -> None:
    examples = [Example(n, (str(n),), float(n * 7919 % 1000)) for n in range(1000)]
    labels = sorted(float(str(one.label)) for one in thinned(examples, 11))
    assert labels == pytest.approx([100.0 * step for step in range(11)], abs=1)
