"""How far probabilities can be trusted: likelihood, calibration error, coverage; and what mends it.

Logits are those of one class an example (softmax; the target is its number), or of several classes
that are decided one by one (sigmoid; the targets are indicators). Errors that are averaged over
decisions take each class of each example as one decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BINS = 15
"""Bins of equal width over [0, 1] (Guo et al., 2017, section 2)."""
COLDEST, HOTTEST = 0.1, 10.0
"""Range of temperatures: beyond it probabilities are all but 0 and 1, or all but equal."""
FEWEST = 5
"""Examples with a class, and without it, that its threshold is chosen on; 0.5 on fewer."""
HALF = 0.5
"""The threshold of a class for which none was chosen."""

Floats = npt.NDArray[np.float64]


def negative_log_likelihood(logits: npt.ArrayLike, targets: npt.ArrayLike) -> float:
    """Mean negative logarithm of the probability of what is true.

    Args:
        logits: float (N, C).
        targets: The right class of each example, int (N,); or indicators, bool (N, C).

    Returns:
        Nats an example, or a decision where the targets are indicators; at least 0.
    """
    z, true = _pair(logits, targets)
    if true.ndim == 2:
        return float(np.logaddexp(0, np.where(true, -z, z)).mean())
    return float((_log_sum_exp(z) - z[np.arange(len(z)), true]).mean())


def confidences(
    logits: npt.ArrayLike, targets: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The probability that stands for each answer, and whether it was right.

    Args:
        logits: float (N, C).
        targets: The right class of each example, int (N,); or indicators, bool (N, C).

    Returns:
        Of one class an example: the highest probability, and whether its class is the right one,
        (N,) each. Of decisions: the probability of the class, and whether it applies, (N C,) each.
    """
    z, true = _pair(logits, targets)
    if true.ndim == 2:
        return (0.5 * (1 + np.tanh(0.5 * z))).ravel(), true.astype(np.bool_).ravel()
    highest = np.exp(z.max(axis=1) - _log_sum_exp(z))
    return highest, z.argmax(axis=1) == true


class Bin(NamedTuple):
    """The answers whose confidences lie in one bin."""

    confidence: float
    """Their mean."""
    accuracy: float
    """Fraction of them that is right."""
    answers: int
    """Their number."""


def reliability(confidence: npt.ArrayLike, right: npt.ArrayLike, bins: int = BINS) -> list[Bin]:
    """Confidence against accuracy, by bins of equal width; empty bins are left out.

    Args:
        confidence: In [0, 1], float (N,).
        right: Whether each answer is right, bool (N,).
        bins: Their number.
    """
    values, hits = _sides(confidence, right)
    # A bin has its upper end, as in Guo et al. (2017); the first one 0 as well.
    number = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    sums = [np.bincount(number, weights=one, minlength=bins) for one in (values, hits)]
    return [
        Bin(float(sums[0][n] / counts[n]), float(sums[1][n] / counts[n]), int(counts[n]))
        for n in np.flatnonzero(counts)
    ]


def calibration_error(confidence: npt.ArrayLike, right: npt.ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: mean distance of confidence from accuracy over bins.

    (Naeini et al., 2015; Guo et al., 2017, equation 5.) Arguments as for `reliability`.

    Returns:
        A number in [0, 1]; 0 where probabilities are fractions of right answers.
    """
    parts = reliability(confidence, right, bins)
    total = sum(part.answers for part in parts)
    return sum(part.answers * abs(part.accuracy - part.confidence) for part in parts) / total


def coverage(confidence: npt.ArrayLike, right: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Accuracy of the surest answers, by how many of them are given (El-Yaniv and Wiener, 2010).

    Args:
        confidence: float (N,); answers of equal confidence are given together.
        right: Whether each answer is right, bool (N,).

    Returns:
        Fraction of answers that are given, ascending to 1, and the accuracy of these: a point for
        each different confidence.
    """
    values, hits = _sides(confidence, right)
    order = np.argsort(-values, kind="stable")
    given = np.arange(1, len(values) + 1)
    accuracy = np.cumsum(hits[order]) / given
    last = np.append(np.diff(values[order]) != 0, True)  # of those of equal confidence
    return given[last] / len(values), accuracy[last]


def best_temperature(logits: npt.ArrayLike, targets: npt.ArrayLike) -> float | None:
    """The temperature of the highest likelihood (Guo et al., 2017, section 4.2).

    The likelihood of logits / T is concave in 1 / T, so that there is one optimum. No answer
    changes: the order of the logits of an example stays, and the sign of each.

    Args:
        logits: float (N, C).
        targets: The right class of each example, int (N,); or indicators, bool (N, C).

    Returns:
        T in [0.1, 10], of four significant digits; None where every answer is right: the likelihood
        then grows without end as T falls; or where a logit is not finite.
    """
    from scipy.optimize import brentq

    z, true = _pair(logits, targets)
    decisions = true.ndim == 2
    if not np.isfinite(z).all():  # the weights have diverged, which whoever writes answers says
        return None
    if ((z > 0) == true).all() if decisions else (z.argmax(axis=1) == true).all():
        return None
    of_truth = z * true if decisions else z[np.arange(len(z)), true]

    def slope(inverse: float) -> float:
        """Of the negative log-likelihood, in 1 / T."""
        scaled = z * inverse
        if decisions:
            return float((z * 0.5 * (1 + np.tanh(0.5 * scaled)) - of_truth).mean())
        odds = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return float(((odds * z).sum(axis=1) / odds.sum(axis=1) - of_truth).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    return float(f"{1 / brentq(slope, low, high, xtol=1e-8):.4g}")


def best_thresholds(probabilities: npt.ArrayLike, true: npt.ArrayLike) -> Floats:
    """The threshold of the best F1 of each class, half-way between two probabilities.

    Args:
        probabilities: float (N, C).
        true: Indicators of the true classes, bool (N, C).

    Returns:
        float (C,): a class applies where its probability is above it. Of thresholds of equal F1
        the one nearest 0.5; 0.5 itself where it is as good, or where fewer than `FEWEST` examples
        have the class or lack it.
    """
    values, classes = _pair(probabilities, true)
    pairs = zip(values.T, classes.T.astype(np.bool_), strict=True)
    return np.array([_best_threshold(*pair) for pair in pairs])


def _best_threshold(values: Floats, true: npt.NDArray[np.bool_]) -> float:
    positive = int(true.sum())
    if min(positive, len(true) - positive) < FEWEST:
        return HALF
    levels = np.unique(values)
    candidates = np.append((levels[:-1] + levels[1:]) / 2, HALF)
    order = np.argsort(values)
    place = np.searchsorted(values[order], candidates, side="right")  # answers below or at each
    below = np.append(0, np.cumsum(true[order]))[place]  # true ones among these
    hits, predicted = positive - below, len(values) - place
    scores = 2 * hits / (predicted + positive)
    best = np.flatnonzero(scores == scores.max())
    return float(candidates[best[np.argmin(np.abs(candidates[best] - HALF))]])


def _log_sum_exp(z: Floats) -> Floats:
    highest = z.max(axis=1)
    return np.asarray(highest + np.log(np.exp(z - highest[:, None]).sum(axis=1)))


def _pair(values: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.int64]]:
    z, true = np.asarray(values, dtype=np.float64), np.asarray(targets)
    if z.ndim != 2 or not z.size or true.shape not in (z.shape, z.shape[:1]):
        raise ValueError(
            f"expected logits (N, C) of at least 1 example, and targets (N,) or (N, C); got "
            f"{z.shape} and {true.shape}"
        )
    return z, true.astype(np.int64)


def _sides(confidence: npt.ArrayLike, right: npt.ArrayLike) -> tuple[Floats, Floats]:
    values = np.asarray(confidence, dtype=np.float64)
    hits = np.asarray(right, dtype=np.float64)
    if values.ndim != 1 or values.shape != hits.shape or not values.size:
        raise ValueError(
            "expected confidences and answers of the same length, at least 1; got "
            f"{values.shape} and {hits.shape}"
        )
    return values, hits
