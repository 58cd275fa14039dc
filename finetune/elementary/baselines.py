"""Which elementary baselines answer a task, by the form of its examples, and their answers.

The answers are those of `Task.answers`, in the task's own form: a baseline gives what a head would
have given. A new baseline is a row of `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from finetune.elementary.bags import Answerer, Fit, fit_naive_bayes, fit_tfidf
from finetune.elementary.overlap import fit_overlap
from finetune.elementary.sliding_window import sliding_window
from finetune.errors import DataError
from finetune.task.interface import Answer, Example, Label, Task

TRIVIAL = "trivial"
"""Name of the answers that read no text: the most frequent label, or the mean."""
MOST_EXAMPLES = 100_000
"""Training examples at most: seconds and gigabytes stay few. A larger set is thinned out evenly."""

Learnt = Literal["class", "classes", "number", "span"]
"""What is answered: a class, several classes, a number, a passage of a text."""


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
    return "class" if task.labels else "number"


class Baseline(NamedTuple):
    """An elementary baseline."""

    applies: Callable[[Form], bool]
    """Whether it can answer examples of a form."""
    fit: Fit
    """What is fitted to the training examples."""
    is_fitted: bool = True
    """Whether it needs training examples."""
    most: int = MOST_EXAMPLES
    """Training examples that it takes at most."""


def _is_text(form: Form) -> bool:
    return not form.options and form.learnt != "span"


def _window(train: Sequence[Example], labels: Sequence[Label], names: Sequence[str]) -> Answerer:
    return lambda examples: sliding_window(examples, names)


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
        lambda form: form.options > 0 and form.texts == 2 + form.options, _window, is_fitted=False
    ),
}
"""Name in results.json -> baseline."""


def applicable(task: Task, examples: Sequence[Example]) -> list[str]:
    """The baselines that can answer a task, by name.

    Args:
        task: The task.
        examples: Some of its labelled examples.
    """
    form = form_of(task, examples)
    fits = form.learnt != "span"
    return [name for name, one in BASELINES.items() if fits and one.applies(form)]


def fit(name: str, task: Task, train: Sequence[Example]) -> Callable[..., list[Answer]]:
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
    if name == TRIVIAL:
        return lambda examples: task.baseline_answers(train, examples)
    labelled = thinned([one for one in train if one.label is not None], BASELINES[name].most)
    if BASELINES[name].is_fitted and not labelled:
        raise DataError(f"{task.name}: expected labelled examples to train on, got none")
    labels = [one.label for one in labelled if one.label is not None]
    outputs = BASELINES[name].fit(labelled, labels, task.labels)
    return lambda examples: task.answers(outputs(examples), examples, [])


def thinned(examples: Sequence[Example], most: int = MOST_EXAMPLES) -> list[Example]:
    """Every so many-th example of each label, in their order; the same ones each time.

    Args:
        examples: Labelled ones.
        most: All of them are returned where they are not more than this.
    """
    if len(examples) <= most:
        return list(examples)
    by_label = sorted(range(len(examples)), key=lambda number: _order(examples[number].label))
    places = np.linspace(0, len(examples) - 1, most).round().astype(int)
    return [examples[number] for number in sorted(by_label[place] for place in places)]


def _order(label: Label | None) -> tuple[float, str]:
    return (label, "") if isinstance(label, int | float) else (0.0, str(label))
