"""Bag of words: words and bigrams without their order, weighted, then a linear model.

Of a pair, words that are in both texts, in the first alone and in the second alone are features of
their own. The weights are TF-IDF (Jones, 1972) or, for two classes, the log-count ratios of naive
Bayes (Wang and Manning, 2012, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.elementary import linear
from finetune.errors import DataError
from finetune.task.interface import Example, Label, Outputs

Answerer = Callable[[Sequence[Example]], Outputs]
"""Examples -> what `Task.answers` reads their answers off."""
Fit = Callable[[Sequence[Example], Sequence[Label], Sequence[str]], Answerer]
"""Training examples, their labels, and the classes in the order of the outputs -> an answerer."""

COLUMNS = 2**20
"""Words and bigrams of a text are hashed into so many columns (Weinberger et al., 2009): memory is
bounded, however many there are."""
MOST_WEIGHTS = 1_000_000
"""Weights of the model at most, over all classes; the rarest words and bigrams are left out."""
TFIDF_INVERSE, RATIO_INVERSE = 10.0, 1.0
"""Inverse penalties. Rows of TF-IDF have length 1, so that their weights must be large; naive
Bayes has that of the paper."""

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


def fit_tfidf(train: Sequence[Example], labels: Sequence[Label], names: Sequence[str]) -> Answerer:
    """Fit a linear model on TF-IDF of words and bigrams.

    Args:
        train: The N training examples.
        labels: Theirs.
        names: The classes in the order of the logits; empty for numbers.

    Returns:
        What answers further examples.

    Raises:
        DataError: The texts contain no word, or there is only one class.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = _counts(train)
    columns = _most_frequent(counts, names)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(counts[:, columns])
    model = linear.fit(tfidf.transform(counts[:, columns]), labels, names, inverse=TFIDF_INVERSE)
    return lambda examples: model(tfidf.transform(_counts(examples)[:, columns]))


def fit_naive_bayes(
    train: Sequence[Example], labels: Sequence[Label], names: Sequence[str]
) -> Answerer:
    """Fit logistic regression on words and bigrams that are weighted by their log-count ratios.

    A word is there or not; how often does not count, as in the paper.

    Args:
        train: The N training examples.
        labels: Theirs: names of two classes.
        names: The two classes in the order of the logits.

    Returns:
        What answers further examples.

    Raises:
        DataError: The texts contain no word, or there is only one class.
    """
    present = _counts(train).sign()
    columns = _most_frequent(present, names)
    present = present[:, columns]
    ratios = log_count_ratios(present, np.array([label == names[1] for label in labels]))
    model = linear.fit(present.multiply(ratios).tocsr(), labels, names, inverse=RATIO_INVERSE)
    return lambda examples: model(_counts(examples).sign()[:, columns].multiply(ratios).tocsr())


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


def _counts(examples: Sequence[Example]) -> Any:
    """How often each word and bigram is in each field, sparse (N, fields x COLUMNS)."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(analyzer=list, n_features=COLUMNS, norm=None, alternate_sign=False)
    fields = zip(*(fields_of(example.texts) for example in examples), strict=True)
    return hstack([hashed.transform(grams) for grams in fields], format="csr")


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
