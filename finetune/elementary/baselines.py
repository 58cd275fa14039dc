"""Which elementary baselines answer a task, by the form of its examples, and their answers.

The answers are those of `Task.answers`, in the task's own form: a baseline gives what a head would
have given. A new baseline is a row of `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from finetune.elementary import TRIVIAL
from finetune.elementary.bags import (
    Answerer,
    Training,
    count_grams,
    fit_naive_bayes,
    fit_tfidf,
    remembered,
)
from finetune.elementary.linear import label_order
from finetune.elementary.overlap import fit_overlap
from finetune.elementary.sliding_window import sliding_window
from finetune.elementary.spans import fit_spans
from finetune.errors import DataError
from finetune.metrics.semantics import goodness
from finetune.task.interface import Answer, Example, Label, Outputs, Task
from finetune.text.features.pairs import Features

SPANS = "candidate_spans"
"""Name of the baseline for answers in a passage."""
MOST_TUNED = 5_000
"""Training questions that the threshold of no answer is chosen on, at most."""
MOST_EXAMPLES = 100_000
"""Training examples at most: seconds and gigabytes stay few. A larger set is thinned out evenly."""

Learnt = Literal["class", "classes", "number", "span", "text"]
"""What is answered: a class, several classes, a number, a passage of a text, a written text."""


@dataclass(frozen=True)
class Form:
    """What examples of a task look like."""

    texts: int
    """Texts that are read together: 1, 2, or 2 and the options."""
    options: int
    """Options of which one is right; 0 where nothing is chosen."""
    classes: int
    """Classes; 0 where there are none."""
    learnt: Learnt
    """What is answered."""


def form_of(task: Task, examples: Sequence[Example]) -> Form:
    """The form of a task's examples, of which one at least has a label.

    Raises:
        DataError: None of them has a label.
    """
    label = next((one.label for one in examples if one.label is not None), None)
    if label is None:
        raise DataError(
            f"{task.name}: expected examples with labels, got none; name a labelled file"
        )
    options = task.sequences_per_example if task.sequences_per_example > 1 else 0
    return Form(len(examples[0].texts), options, len(task.labels), _learnt(task, label))


def _learnt(task: Task, label: Label) -> Learnt:
    if isinstance(label, tuple):
        return "classes" if task.labels else "span"
    if isinstance(label, str) and not task.labels:
        return "text"
    return "class" if task.labels else "number"


Answered = Outputs | tuple[Outputs, Sequence[Features]]
"""What `Task.answers` reads answers off; spans come with the words that they are of."""


class Baseline(NamedTuple):
    """An elementary baseline."""

    applies: Callable[[Form], bool]
    """Whether it can answer examples of a form."""
    fit: Callable[[Training], Callable[[Sequence[Example]], Answered]]
    """What is fitted to the training examples."""
    is_fitted: bool = True
    """Whether it needs training examples."""
    most: int = MOST_EXAMPLES
    """Training examples that it takes at most."""


def _is_text(form: Form) -> bool:
    return not form.options and form.learnt not in ("span", "text")


def _window(training: Training) -> Answerer:
    return lambda examples: sliding_window(examples, training.names)


BASELINES = {
    "bag_of_words": Baseline(_is_text, fit_tfidf),
    "naive_bayes": Baseline(
        lambda form: _is_text(form) and form.classes == 2 and form.learnt == "class",
        fit_naive_bayes,
    ),
    "word_overlap": Baseline(
        lambda form: _is_text(form) and form.texts == 2, fit_overlap, most=20_000
    ),
    "sliding_window": Baseline(
        lambda form: 2 < form.texts <= 2 + form.options, _window, is_fitted=False
    ),
    SPANS: Baseline(lambda form: form.learnt == "span" and form.texts == 2, fit_spans, most=20_000),
}
"""Name in results.json -> baseline."""


def applicable(task: Task, examples: Sequence[Example]) -> list[str]:
    """The baselines that can answer a task, by name.

    Args:
        task: The task.
        examples: Some of its labelled examples.
    """
    form = form_of(task, examples)
    return [name for name, one in BASELINES.items() if one.applies(form)]


AnswerRows = Callable[[Sequence[Example]], list[Answer]]
"""Examples -> the rows of a predictions file."""


def fit(name: str, task: Task, train: Sequence[Example]) -> AnswerRows:
    """Fit a baseline to the training examples of a task.

    >>> from finetune import find_task
    >>> from finetune.elementary.baselines import fit
    >>> task = find_task("classify", train="data/train.csv", validation="data/validation.csv")
    >>> answers = fit("bag_of_words", task, task.examples("train"))(task.examples("validation"))
    >>> sorted(task.score(answers))
    ['accuracy', 'macro_f1']

    Args:
        name: A baseline that is `applicable`, or `trivial`.
        task: The task.
        train: Its training examples; at most `most` of the baseline are used.

    Returns:
        A function of a list of examples that gives the rows of a predictions file.

    Raises:
        DataError: Nothing can be learnt from the training examples.
    """
    return fitter(task, train)(name)


def fitter(task: Task, train: Sequence[Example]) -> Callable[[str], AnswerRows]:
    """What fits baselines to the training examples of a task; they share what they count.

    Args:
        task: The task.
        train: Its training examples.

    Returns:
        `fit` of a name.
    """
    counts = remembered(count_grams)
    labelled = [one for one in train if one.label is not None]

    def score(outputs: Outputs, examples: Sequence[Example]) -> float:
        metrics = task.score(task.answers(outputs, examples, []))
        return goodness(task.monitor, metrics[task.monitor])

    @lru_cache
    def training(most: int) -> Training:
        return Training(thinned(labelled, most), task.labels, counts, score)

    def fit_one(name: str) -> AnswerRows:
        if name == TRIVIAL:
            return lambda examples: task.baseline_answers(train, examples)
        baseline = BASELINES[name]
        if baseline.is_fitted and not labelled:
            raise DataError(f"{task.name}: expected labelled examples to train on, got none")
        answer = baseline.fit(training(baseline.most))

        def rows(examples: Sequence[Example]) -> list[Answer]:
            answered = answer(examples)
            outputs, words = answered if isinstance(answered, tuple) else (answered, [])
            return task.answers(outputs, examples, words)

        if name != SPANS or all(one.label for one in labelled):
            return rows  # each question has an answer
        numbers = task.tune(rows(thinned(labelled, MOST_TUNED)))
        return lambda examples: task.decide(rows(examples), numbers)

    return fit_one


def thinned(examples: Sequence[Example], most: int = MOST_EXAMPLES) -> list[Example]:
    """Every so many-th example of each label, in their order; the same ones each time.

    Args:
        examples: Labelled ones.
        most: All of them are returned where they are not more than this.
    """
    if len(examples) <= most:
        return list(examples)
    by_label = sorted(range(len(examples)), key=lambda number: label_order(examples[number].label))
    places = np.linspace(0, len(examples) - 1, most).round().astype(int)
    return [examples[number] for number in sorted(by_label[place] for place in places)]
