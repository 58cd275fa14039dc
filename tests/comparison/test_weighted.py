"""Bootstraps from weights, held against scoring the rows of the very same resamples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from finetune.comparison import Answer
from finetune.comparison.example_tests import unpaired_bootstrap
from finetune.comparison.examples import Rescored, Score
from finetune.comparison.weighted import WeightedScores
from finetune.metrics import (
    METRICS,
    auc,
    indicators,
    macro_f1,
    macro_precision,
    macro_recall,
    micro_f1,
    root_mean_squared_error,
)

CLASSES = ("a", "b", "c", "d")
RESAMPLES = 60


def class_rows(seed: int, count: int = 50, classes: Sequence[str] = CLASSES) -> list[Answer]:
    """Probabilities in tenths, so that many tie; the last class is rare."""
    rng, golds = np.random.default_rng(seed), np.random.default_rng(0)
    rows = []
    for number in range(count):
        label = classes[int(min(golds.integers(3), golds.integers(len(classes))))]
        odds = rng.integers(0, 5, len(classes)) + 4.0 * (np.array(classes) == label)
        shares = dict(zip(classes, np.round(odds / odds.sum(), 1).tolist(), strict=True))
        rows.append({"id": number, "prediction": max(shares, key=lambda name: shares[name])})
        rows[-1] |= {"probabilities": shares, "label": label}
    return rows


def of_classes(rows: Sequence[Answer]) -> dict[str, float]:
    said, true = ([row[key] for row in rows] for key in ("prediction", "label"))
    sure = [[row["probabilities"][name] for name in CLASSES] for row in rows]
    numbers = [[CLASSES.index(name) for name in side] for side in (said, true)]
    positive = [[int(name == "b") for name in side] for side in (said, true)]
    return {
        "matthews_correlation": METRICS["matthews_correlation"](*numbers),
        "f1": METRICS["f1"](*positive),
        "macro_f1": macro_f1(said, true),
        "macro_precision": macro_precision(said, true),
        "macro_recall": macro_recall(said, true),
        "auc": auc(sure, indicators([[name] for name in true], CLASSES)),
    }


def of_right(rows: Sequence[Answer]) -> dict[str, float]:
    return {"accuracy": float(np.mean([row["prediction"] == row["label"] for row in rows]))}


def set_rows(seed: int, count: int = 40) -> list[Answer]:
    rng, golds = np.random.default_rng(seed), np.random.default_rng(0)
    rows = []
    for number in range(count):
        holds = golds.random(4) < (0.5, 0.3, 0.1, 0.02)
        sure = dict(zip(CLASSES, np.round(0.5 * holds + 0.6 * rng.random(4), 2), strict=True))
        label = [name for name, yes in zip(CLASSES, holds, strict=True) if yes]
        said = [name for name in CLASSES if sure[name] > 0.5]
        rows.append({"id": number, "prediction": said, "probabilities": sure, "label": label})
    return rows


def of_sets(rows: Sequence[Answer]) -> dict[str, float]:
    said, true = (indicators([row[key] for row in rows], CLASSES) for key in _SIDES)
    sure = [[row["probabilities"][name] for name in CLASSES] for row in rows]
    macro = {one.__name__: one(said, true) for one in (macro_f1, macro_precision, macro_recall)}
    return {"micro_f1": micro_f1(said, true), **macro, "auc": auc(sure, true)}


def number_rows(seed: int, count: int = 30) -> list[Answer]:
    rng, golds = np.random.default_rng(seed), np.random.default_rng(0)
    labels = golds.integers(0, 6, count).astype(float)
    said = np.round(labels + rng.normal(0, 2, count)).tolist()
    return [
        {"id": number, "prediction": one, "label": label}
        for number, (one, label) in enumerate(zip(said, labels.tolist(), strict=True))
    ]


def of_numbers(rows: Sequence[Answer]) -> dict[str, float]:
    sides = [[row[key] for row in rows] for key in _SIDES]
    correlations = {name: METRICS[name](*sides) for name in ("pearson", "spearman")}
    return correlations | {"root_mean_squared_error": root_mean_squared_error(*sides)}


_SIDES = ("prediction", "label")


@pytest.mark.parametrize(
    ("rows_of", "score"),
    [(class_rows, of_classes), (set_rows, of_sets), (number_rows, of_numbers)],
)
def test_bootstrap_from_weights_is_that_of_scoring_the_rows(rows_of: object, score: Score) -> None:
    """Two seeds against one; the same resamples, the same ends, the same p."""
    groups = [[rows_of(1), rows_of(2)], [rows_of(3)]]  # type: ignore[operator]
    weighted, rescored = WeightedScores(groups, score), Rescored(groups, score)
    for metric in score(groups[0][0]):
        known = weighted.bootstrap(metric, seed=4, resamples=RESAMPLES)
        slow = rescored.bootstrap(metric, seed=4, resamples=RESAMPLES)
        assert known is not None, metric
        assert known.interval == pytest.approx(slow.interval, abs=1e-9), metric
        assert (known.p, known.resamples, known.examples) == (
            slow.p,
            slow.resamples,
            slow.examples,
        ), metric


def test_ends_from_counts_have_the_very_bits() -> None:
    groups = [[class_rows(1)], [class_rows(3)]]
    weighted, rescored = WeightedScores(groups, of_classes), Rescored(groups, of_classes)
    for metric in ("matthews_correlation", "f1", "macro_f1"):
        both = [one.bootstrap(metric, seed=0, resamples=200) for one in (weighted, rescored)]
        assert both[0] == both[1]


def test_nearly_constant_sides_count_as_those_of_the_metric() -> None:
    """Many resamples have one class, or one number, on a side: the metric is 0 there."""
    classes = [row | {"prediction": "a"} for row in class_rows(1, 12)]
    classes[0]["prediction"] = "b"
    numbers = [row | {"prediction": 0.1} for row in number_rows(1, 12)]
    numbers[0]["prediction"] = 0.3
    for rows, other, score, metric in (
        (classes, class_rows(3, 12), of_classes, "matthews_correlation"),
        (numbers, number_rows(3, 12), of_numbers, "pearson"),
        (numbers, number_rows(3, 12), of_numbers, "spearman"),
    ):
        groups = [[rows], [other]]
        known = WeightedScores(groups, score).bootstrap(metric, seed=0, resamples=RESAMPLES)
        slow = Rescored(groups, score).bootstrap(metric, seed=0, resamples=RESAMPLES)
        assert known is not None
        assert known.interval == pytest.approx(slow.interval, abs=1e-9)


def test_metric_of_a_known_name_and_another_definition_is_scored() -> None:
    def score(rows: Sequence[Answer]) -> dict[str, float]:
        return {"macro_f1": of_classes(rows)["macro_f1"] ** 2}

    groups = [[class_rows(1)], [class_rows(2)]]
    assert WeightedScores(groups, score).bootstrap("macro_f1", seed=0, resamples=9) is None


def test_task_is_asked_for_a_few_scores_only() -> None:
    calls = 0

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        nonlocal calls
        calls += 1
        return of_classes(rows)

    weighted = WeightedScores([[class_rows(1)], [class_rows(2)]], score)
    for metric in ("f1", "auc"):
        assert weighted.bootstrap(metric, seed=0, resamples=1_000) is not None
    assert calls == 2 * 10


def test_ranks_are_not_computed_for_a_task_without_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(rows: Sequence[Answer]) -> dict[str, float]:
        return {"f1": of_classes(rows)["f1"]}

    weighted = WeightedScores([[class_rows(1)], [class_rows(2)]], score)
    monkeypatch.delattr("finetune.metrics.weighted._ranks")
    assert weighted.bootstrap("f1", seed=0, resamples=1_000) is not None


@pytest.mark.parametrize("order", [1, -1])
def test_a_side_without_probabilities_has_no_area_but_all_else(order: int) -> None:
    """A baseline's answers may lack them."""

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        scores = of_classes([{"probabilities": dict.fromkeys(CLASSES, 0.0), **row} for row in rows])
        return scores if "probabilities" in rows[0] else {"f1": scores["f1"]}

    lacking = [{k: v for k, v in row.items() if k != "probabilities"} for row in class_rows(2)]
    lacking[0]["prediction"] = CLASSES[-1]  # the only one of this class
    weighted = WeightedScores([[class_rows(1)], [lacking]][::order], score)
    assert weighted.bootstrap("f1", seed=0, resamples=9) is not None
    assert weighted.bootstrap("auc", seed=0, resamples=9) is None


def test_sides_that_name_other_classes_are_scored_row_by_row() -> None:
    def score(rows: Sequence[Answer]) -> dict[str, float]:
        said, true = ([int(row[key] == "b") for row in rows] for key in ("prediction", "label"))
        return {"f1": METRICS["f1"](said, true)}

    one, other = (
        [{"id": row["id"], "label": row["label"], "prediction": said} for row in class_rows(1)]
        for said in "bd"
    )
    weighted = WeightedScores([[one], [other]], score)
    assert weighted.bootstrap("f1", seed=0, resamples=9) is None


def test_average_over_all_classes_is_told_from_that_over_those_drawn() -> None:
    """They differ in resamples without a class alone, as few of a class of six examples are."""
    groups: list[list[list[Answer]]] = [[set_rows(1, 400)], [set_rows(2, 400)]]
    for (rows,) in groups:
        for row in rows:
            rare = ["d"] if int(row["id"]) % 60 == 0 else []
            row["label"] = [name for name in row["label"] if name != "d"] + rare
            row["prediction"] = [name for name in row["prediction"] if name != "d"] + rare
    weighted = WeightedScores(groups, of_sets)
    assert weighted._variants["macro_f1"] == 1
    plain: list[list[list[Answer]]] = [[class_rows(1, 400)], [class_rows(2, 400)]]
    assert WeightedScores(plain, of_classes)._variants["macro_f1"] == 0


def test_two_sets_of_other_examples_are_resampled_each_by_itself() -> None:
    groups = ([class_rows(1, 40)], [class_rows(2, 30)])
    recorded = tuple([of_classes(rows)["macro_f1"] for rows in group] for group in groups)
    first, second = (Rescored([rows], of_classes) for rows in groups)
    result = unpaired_bootstrap(
        groups, (recorded[0], recorded[1]), "macro_f1", of_classes, resamples=200
    )
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 40, (200, 40)), rng.integers(0, 30, (200, 30))
    drawn = [
        first.means("macro_f1", one)[0] - second.means("macro_f1", other)[0]
        for one, other in zip(a, b, strict=True)
    ]
    assert result is not None
    assert result.interval == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=1e-9)


@pytest.mark.parametrize(("metric", "score"), [("accuracy", of_right), ("macro_f1", of_classes)])
@pytest.mark.parametrize("counts", [(1, 30), (30, 1), (2, 30)])
def test_a_set_of_one_example_is_not_resampled(
    metric: str, score: Score, counts: tuple[int, int]
) -> None:
    first, second = ([class_rows(1, count)] for count in counts)
    recorded = [score(first[0])[metric]], [score(second[0])[metric]]
    found = unpaired_bootstrap((first, second), recorded, metric, score, resamples=50)
    assert (found is None) == (1 in counts)
