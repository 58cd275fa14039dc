"""Bag of words: words and bigrams without their order, weighted, then a linear model.

Of a pair, words that are in both texts, in the first alone and in the second alone are features of
their own. The weights are TF-IDF (Jones, 1972) or, for two classes, the log-count ratios of naive
Bayes (Wang and Manning, 2012, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.elementary import linear
from finetune.errors import DataError
from finetune.task.interface import Example, Label, Outputs

Answerer = Callable[[Sequence[Example]], Outputs]
"""Examples -> what `Task.answers` reads their answers off."""
Counts = Callable[[Sequence[Example]], Any]
"""Examples -> how often each word and bigram is in each field, sparse (N, fields x COLUMNS)."""

COLUMNS = 2**20
"""Words and bigrams of a text are hashed into so many columns (Weinberger et al., 2009): memory is
bounded, however many there are."""
MOST_WEIGHTS = 1_000_000
"""Weights of the model at most, over all classes; the rarest words and bigrams are left out."""
TFIDF_INVERSES = (1.0, 3.0, 10.0, 30.0)
"""Inverse penalties to choose from. Rows of TF-IDF have length 1, so that weights must be large."""
RATIO_INVERSES = (0.03, 0.1, 0.3, 1.0)
"""Inverse penalties to choose from for naive Bayes; the paper has 0.1 and 1."""
RIDGE_INVERSES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Inverse penalties to choose from for numbers."""

_WORD = re.compile(r"[぀-ヿ㐀-鿿]|[^\W_぀-ヿ㐀-鿿]+")


def words(text: str) -> list[str]:
    """The words of a text in lower case; punctuation is left out.

    A character of Chinese or Japanese, which put no space between words, is a word.

    >>> from finetune.elementary.bags import words
    >>> words("The cat's mat, 東京.")
    ['the', 'cat', 's', 'mat', '東', '京']
    """
    return _WORD.findall(text.lower())


def words_and_bigrams(text: str) -> list[str]:
    """The words of a text, and each two neighbours joined by a space."""
    single = words(text)
    return single + [" ".join(pair) for pair in pairwise(single)]


def fields_of(texts: Sequence[str]) -> list[list[str]]:
    """The words and bigrams of texts, in the fields that have features of their own.

    >>> from finetune.elementary.bags import fields_of
    >>> fields_of(("a cat", "the cat"))
    [['cat'], ['a', 'a cat'], ['the', 'the cat']]
    """
    grams = [words_and_bigrams(text) for text in texts]
    if len(texts) != 2:
        return grams
    first, second = grams
    one, other = set(first), set(second)
    return [
        [gram for gram in first if gram in other],
        [gram for gram in first if gram not in other],
        [gram for gram in second if gram not in one],
    ]


@dataclass(frozen=True, eq=False)
class Training:
    """What a baseline is fitted to."""

    examples: Sequence[Example]
    """N labelled examples."""
    names: Sequence[str] = ()
    """The classes in the order of the outputs; empty for numbers."""
    counts: Counts = field(default_factory=lambda: remembered(count_grams))
    """Counts words and bigrams; shared by all baselines of a run."""
    score: Callable[[Outputs, Sequence[Example]], float] | None = None
    """How good outputs for examples are by the headline metric; None: the fraction of right
    classes."""

    @cached_property
    def labels(self) -> list[Label]:
        """The label of each example."""
        return [one.label for one in self.examples if one.label is not None]

    def labels_of(self, rows: linear.Rows) -> list[Label]:
        """Labels of some of the examples."""
        return [self.labels[row] for row in rows]

    def goodness(self, rows: linear.Rows, outputs: Outputs) -> float:
        """How good outputs for some of the examples are; of numbers, by their squared error."""
        if not self.names:  # which a correlation, often the headline, would not notice
            targets = np.array(self.labels_of(rows), dtype=float)
            return -float(np.mean((outputs - targets) ** 2))
        if self.score is not None:
            return self.score(outputs, [self.examples[row] for row in rows])
        right = np.array(self.names)[outputs.argmax(axis=1)] == self.labels_of(rows)
        return float(np.mean(right))

    def choose(self, inverses: Sequence[float], fit_rows: linear.FitRows) -> float:
        """Choose the inverse penalty of a model on these examples."""
        inverses = inverses if self.names else RIDGE_INVERSES
        return linear.choose_inverse(inverses, self.labels, fit_rows, self.goodness)


def fit_tfidf(training: Training) -> Answerer:
    """Fit a linear model on TF-IDF of words and bigrams.

    Raises:
        DataError: The texts contain no word, or there is only one class.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = training.counts(training.examples)
    columns = _most_frequent(counts, training.names)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(counts[:, columns])
    model = fit_chosen(training, tfidf.transform(counts[:, columns]), TFIDF_INVERSES)
    return lambda examples: model(tfidf.transform(training.counts(examples)[:, columns]))


def fit_chosen(training: Training, features: Any, inverses: Sequence[float]) -> linear.Scorer:
    """Fit a linear model with the inverse penalty that is best on the training examples.

    Args:
        training: The N training examples.
        features: Theirs, (N, F).
        inverses: Inverse penalties to choose from, for classes.

    Raises:
        DataError: There is only one class.
    """

    def fit_rows(rows: linear.Rows, inverse: float) -> Callable[[linear.Rows], Outputs]:
        labels = training.labels_of(rows)
        names, rough = training.names, linear.ROUGH
        model = linear.fit(features[rows], labels, names, inverse=inverse, tolerance=rough)
        return lambda others: model(features[others])

    inverse = training.choose(inverses, fit_rows)
    return linear.fit(features, training.labels, training.names, inverse=inverse)


def fit_naive_bayes(training: Training) -> Answerer:
    """Fit logistic regression on words and bigrams that are weighted by their log-count ratios.

    A word is there or not; how often does not count, as in the paper.

    Args:
        training: Examples of two classes.

    Raises:
        DataError: The texts contain no word, or there is only one class.
    """
    counts, names = training.counts(training.examples), training.names
    columns = _most_frequent(counts, names)
    present = counts[:, columns].sign()
    is_second = np.array([label == names[1] for label in training.labels])

    def fit_rows(rows: linear.Rows, inverse: float, tolerance: float) -> linear.Scorer:
        some = present[rows]
        ratios = log_count_ratios(some, is_second[rows])  # of labels that are not held out
        labels = training.labels_of(rows)
        weighted = some.multiply(ratios).tocsr()
        model = linear.fit(weighted, labels, names, inverse=inverse, tolerance=tolerance)
        return lambda others: model(others.multiply(ratios).tocsr())

    def fit_rough(rows: linear.Rows, inverse: float) -> Callable[[linear.Rows], Outputs]:
        model = fit_rows(rows, inverse, linear.ROUGH)
        return lambda others: model(present[others])

    inverse = training.choose(RATIO_INVERSES, fit_rough)
    model = fit_rows(np.arange(len(training.labels)), inverse, tolerance=1e-6)
    return lambda examples: model(training.counts(examples)[:, columns].sign())


def log_count_ratios(counts: Any, is_second: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """How much more frequent a feature is in the second class than in the first: r of the paper.

    Args:
        counts: (N, F), sparse.
        is_second: Whether an example is of the second class, bool (N,).

    Returns:
        log((p / |p|) / (q / |q|)) with one added to each count, (F,).
    """
    second, first = (
        1 + np.asarray(counts[rows].sum(axis=0)).ravel() for rows in (is_second, ~is_second)
    )
    return np.asarray(np.log(second / second.sum()) - np.log(first / first.sum()))


def count_grams(examples: Sequence[Example]) -> Any:
    """How often each word and bigram is in each field, sparse (N, fields x COLUMNS)."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(analyzer=list, n_features=COLUMNS, norm=None, alternate_sign=False)
    fields = zip(*(fields_of(example.texts) for example in examples), strict=True)
    return hstack([hashed.transform(grams) for grams in fields], format="csr")


def remembered(count: Counts) -> Counts:
    """Count the same list of examples once, for as long as what is returned is in use."""
    known: list[tuple[Sequence[Example], Any]] = []

    def counts(examples: Sequence[Example]) -> Any:
        for others, counted in known:
            if others is examples:
                return counted
        known.append((examples, count(examples)))
        return known[-1][1]

    return counts


def _most_frequent(counts: Any, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """The columns in which there is something, those of the most texts where they are too many."""
    texts = np.bincount(counts.indices, minlength=counts.shape[1])
    most = MOST_WEIGHTS // max(1, len(names) if len(names) > 2 else 1)
    columns = np.flatnonzero(texts)
    if not len(columns):
        raise DataError("the training texts contain no word")
    if len(columns) > most:
        columns = np.sort(columns[np.argsort(-texts[columns], kind="stable")[:most]])
    return columns
