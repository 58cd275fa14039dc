"""Exact match and token F1 of answers that are passages of a text, by the rules of each version.

The definitions are those of the two evaluation scripts of SQuAD (Rajpurkar et al., 2016, section
6.1, and 2018, section 5). They differ where a text normalizes to nothing, such as "." or "The":

- 1.1: two texts without a common token have F1 0, even where both have no token at all.
- 2.0: where either text has no token, F1 is 1 if neither has one and 0 otherwise. Gold answers
  that normalize to nothing are dropped, and a question without a gold left has the one gold "".

All scores are fractions in [0, 1]. A row is one of a predictions file: `prediction`, `answers`
(the gold, `[{"text", …}]`), and for 2.0 `null_odds` and, where there is one, `nbest`.
"""

from __future__ import annotations

import functools
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import evaluate

Row = Mapping[str, Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

VERSIONS = ("1.1", "2.0")
"""Without and with questions that the text does not answer."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower the case, drop ASCII punctuation and English articles, collapse white space."""
    cleaned = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(cleaned.split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 if two texts are equal once normalized, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def token_f1(prediction: str, gold: str, version: str) -> float:
    """Harmonic mean of precision and recall of the tokens that two texts share.

    Args:
        prediction: The answer given.
        gold: A right answer.
        version: `1.1` or `2.0`, which differ in the score of a text without tokens.

    Returns:
        A number in [0, 1].
    """
    _check(version)
    return _f1(normalize_answer(prediction), normalize_answer(gold), version)


def _f1(prediction: str, gold: str, version: str) -> float:
    """`token_f1` of normalized texts."""
    if prediction == gold:  # the common case, and it needs no counting
        return 1.0 if prediction or version == "2.0" else 0.0
    predicted_tokens, gold_tokens = prediction.split(), gold.split()
    common = sum((Counter(predicted_tokens) & Counter(gold_tokens)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted_tokens), common / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def span_scores(rows: Sequence[Row], version: str) -> dict[str, float]:
    """Score answers by the official rules; the threshold sweep of 2.0 included.

    `exact_match` and `f1` are those of the predictions. The best values over all thresholds are
    those of the best passage of each question, whether or not "no answer" was predicted instead:
    the first text of `nbest`, or else the prediction. So they depend on no threshold chosen before.

    Args:
        rows: N rows, at least 1.
        version: `1.1` or `2.0`.

    Returns:
        `exact_match`, `f1`; for 2.0 also `has_answer_exact_match`, `has_answer_f1`,
        `no_answer_exact_match`, `no_answer_f1` (each pair where there are such questions),
        `best_exact_match`, `best_exact_match_threshold`, `best_f1`, `best_f1_threshold`: the
        thresholds in the unit of `null_odds`.

    Raises:
        ValueError: There are no rows, or the version is unknown.
    """
    _check(version)
    if not rows:
        raise ValueError("expected at least one row to score, got none")
    normalize = functools.cache(normalize_answer)  # many answers occur several times
    golds = _golds(rows, version, normalize)
    exact, f1 = _scores([row["prediction"] for row in rows], golds, version, normalize)
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    if version == "1.1":
        return scores
    answerable = _answerable(rows)
    for part, chosen in (("has_answer", answerable), ("no_answer", ~answerable)):
        if chosen.any():
            scores[f"{part}_exact_match"] = float(exact[chosen].mean())
            scores[f"{part}_f1"] = float(f1[chosen].mean())
    return scores | _best_scores(rows, golds, answerable, normalize)


def _best_scores(
    rows: Sequence[Row],
    golds: Sequence[Sequence[str]],
    answerable: Bools,
    normalize: Callable[[str], str],
) -> dict[str, float]:
    texts = [_passage(row) for row in rows]
    given, odds = np.array([text != "" for text in texts]), _null_odds(rows)
    measured = _scores(texts, golds, "2.0", normalize)
    scores: dict[str, float] = {}
    for name, values in zip(("exact_match", "f1"), measured, strict=True):
        best, threshold = best_threshold(values, odds, answerable, given)
        scores |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    return scores


def best_threshold(
    scores: npt.ArrayLike, null_odds: npt.ArrayLike, answerable: npt.ArrayLike, given: npt.ArrayLike
) -> tuple[float, float]:
    """Sweep the threshold above which a question goes unanswered, as the script of 2.0 does.

    At first no question is answered; then questions are answered one by one in the order of their
    odds (equal odds: in the order given, each a separate step). The first of equally good steps is
    taken.

    Args:
        scores: Score of each question if it is answered (N,).
        null_odds: The higher, the more likely there is no answer (N,).
        answerable: Whether a question has an answer, bool (N,).
        given: Whether the text that would be given is not empty, bool (N,).

    Returns:
        The best mean score, and the odds of the last question answered there; 0.0 where it is best
        to answer none.
    """
    odds, has_answer = np.asarray(null_odds, dtype=float), np.asarray(answerable, dtype=bool)
    # Answering a question without an answer loses the point that silence has there.
    gains = np.where(has_answer, np.asarray(scores, dtype=float), -np.asarray(given, dtype=float))
    order = np.argsort(odds, kind="stable")
    totals = np.cumsum(np.concatenate([[np.sum(~has_answer)], gains[order]]))  # (N + 1,)
    best = int(totals.argmax())
    return float(totals[best] / len(odds)), float(odds[order[best - 1]]) if best else 0.0


def tuned_threshold(rows: Sequence[Row]) -> float:
    """Find the threshold of `null_odds` that gives these rows their best F1 by the rules of 2.0.

    `best_threshold` gives the figures of the official script. This one considers only steps that a
    threshold can make (equal odds go together), and lies in the middle between the odds of the last
    question answered and of the first unanswered: there the same outputs with other rounding errors
    (another machine, another batch) give the same answers.

    Args:
        rows: N labelled rows, at least 1.

    Returns:
        A finite number: a question whose odds are above it goes unanswered.
    """
    normalize = functools.cache(normalize_answer)
    golds, odds = _golds(rows, "2.0", normalize), _null_odds(rows)
    answered = _scores([_passage(row) for row in rows], golds, "2.0", normalize)[1]
    unanswered = _scores([""] * len(rows), golds, "2.0", normalize)[1]
    levels, level = np.unique(odds, return_inverse=True)
    gains = np.bincount(level, weights=answered - unanswered)
    best = int(np.concatenate([[0.0], np.cumsum(gains)]).argmax())
    return _between(levels, best)


def _between(levels: Floats, answered: int) -> float:
    """A threshold that is at least the `answered`-th level and below the next.

    Args:
        levels: Odds, ascending, each once, at least one.
        answered: How many of them lie at or below the threshold.

    Returns:
        The middle of the two levels; 1 below or above all of them, or more where the odds are so
        large that adding 1 changes nothing. Finite.
    """
    largest = sys.float_info.max
    levels = levels.clip(-largest, largest)
    first, last = float(levels[0]), float(levels[-1])
    if answered == 0:
        return max(first - max(1.0, 1e-6 * abs(first)), -largest)
    if answered == len(levels):
        return min(last + max(1.0, 1e-6 * abs(last)), largest)
    lower, upper = float(levels[answered - 1]), float(levels[answered])
    middle = lower / 2 + upper / 2  # their sum may overflow
    return middle if lower <= middle < upper else lower  # neighbouring floats have no middle


def _golds(
    rows: Sequence[Row], version: str, normalize: Callable[[str], str]
) -> list[Sequence[str]]:
    """The normalized gold answers of each row, each once."""
    golds_of_rows: list[Sequence[str]] = []
    for row in rows:
        golds = dict.fromkeys(normalize(answer["text"]) for answer in row["answers"])
        if version == "2.0":
            golds.pop("", None)
        golds_of_rows.append(tuple(golds) or ("",))
    return golds_of_rows


def _scores(
    texts: Sequence[str],
    golds: Sequence[Sequence[str]],
    version: str,
    normalize: Callable[[str], str],
) -> tuple[Floats, Floats]:
    """Exact match and F1 of each text against the gold that it matches best, (N,) each."""
    pairs = list(zip(map(normalize, texts), golds, strict=True))
    exact = [text in accepted for text, accepted in pairs]
    f1 = [max(_f1(text, gold, version) for gold in accepted) for text, accepted in pairs]
    return np.array(exact, dtype=float), np.array(f1, dtype=float)


def _answerable(rows: Sequence[Row]) -> Bools:
    # As in the official script: before golds that normalize to nothing are dropped.
    return np.array([len(row["answers"]) > 0 for row in rows])


def _null_odds(rows: Sequence[Row]) -> Floats:
    return np.array([row.get("null_odds") or 0.0 for row in rows], dtype=float)


def _passage(row: Row) -> str:
    """The best text that is not empty, or else what was predicted."""
    passages = (entry["text"] for entry in row.get("nbest") or () if entry["text"])
    return str(next(passages, row["prediction"]))


def _check(version: str) -> None:
    if version not in VERSIONS:
        raise ValueError(f"expected the version {' or '.join(VERSIONS)}, got '{version}'")


def load_spans(version: str = "1.1") -> evaluate.Metric:
    """`span_scores` as a metric of the `evaluate` library; needs no network, writes no file.

    Args:
        version: `1.1` or `2.0`.

    Returns:
        An `evaluate.Metric` over predictions `{"id", "prediction_text"}`, for 2.0 with
        `no_answer_probability` (any number that is higher where "no answer" is more likely), and
        references `{"id", "answers": {"text": […], "answer_start": […]}}`. Its values are
        fractions.
    """
    _check(version)
    import datasets

    from finetune.metrics.scores import evaluate_metric

    text = datasets.Value("string")
    predicted = {"id": text, "prediction_text": text}
    if version == "2.0":
        predicted["no_answer_probability"] = datasets.Value("float64")
    golds = {"text": [text], "answer_start": [datasets.Value("int64")]}
    return evaluate_metric(
        f"exact match and token F1, {version}",
        {"predictions": predicted, "references": {"id": text, "answers": golds}},
        lambda predictions, references: span_scores(_rows(predictions, references), version),
    )


def _rows(predictions: Sequence[Row], references: Sequence[Row]) -> list[Row]:
    """Join predictions and references by id."""
    by_id = {prediction["id"]: prediction for prediction in predictions}
    missing = [reference["id"] for reference in references if reference["id"] not in by_id]
    if missing:
        raise ValueError(f"expected a prediction for every reference, got none for {missing[0]}")
    return [
        {
            "prediction": by_id[reference["id"]]["prediction_text"],
            "null_odds": by_id[reference["id"]].get("no_answer_probability"),
            "answers": [{"text": text} for text in reference["answers"]["text"]],
        }
        for reference in references
    ]
