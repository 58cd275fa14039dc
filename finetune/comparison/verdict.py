"""The verdict: a plain sentence about the seeds, and about the examples where they disagree."""

from __future__ import annotations

from pathlib import PurePath

from finetune.comparison.differences import Difference, Outcome
from finetune.comparison.seeds import ALPHA, MOST_SEEDS
from finetune.metrics.semantics import goodness, meaning, shown

FEWEST_SEEDS = 3
"""On each side, for a verdict: a deviation of two values is far too uncertain."""
BETTER_SEEDS = 5


def interval_text(metric: str, interval: tuple[float, float]) -> str:
    """Both ends with their signs."""
    return " to ".join(shown(metric, end, signed=True) for end in interval)


def p_text(p: float) -> str:
    """A p-value with three decimals; `<0.001` where it would round to 0."""
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def short_names(a: str, b: str) -> tuple[str, str]:
    """Two paths without the folders that both begin with."""
    first, second = PurePath(a).parts, PurePath(b).parts
    pairs = list(zip(first[:-1], second[:-1], strict=False))
    shared = next((depth for depth, (left, right) in enumerate(pairs) if left != right), len(pairs))
    return "/".join(first[shared:]), "/".join(second[shared:])


def judge(difference: Difference, a: str, b: str, *, baseline: bool = False) -> tuple[Outcome, str]:
    """Decide what follows from the tests.

    Args:
        difference: The difference, with its p-values corrected.
        a: Name of the first group.
        b: Name of the second.
        baseline: Whether the second is a baseline, which has no seeds.

    Returns:
        The outcome for the first group, and a sentence.
    """
    fewest = min(len(difference.a.values), len(difference.b.values))
    if fewest < FEWEST_SEEDS:
        return "not enough seeds", _too_few(difference, a, b, baseline=baseline)
    if difference.adjusted_p is None:
        return "undecided", _untestable(difference, a, b)
    if difference.adjusted_p < ALPHA:
        won = goodness(difference.metric, difference.seeds.difference) > 0
        return ("better" if won else "worse"), _decided(difference, *((a, b) if won else (b, a)))
    return "undecided", _undecided(difference, a, b, baseline=baseline)


def _too_few(difference: Difference, a: str, b: str, *, baseline: bool) -> str:
    """What the examples say, if there are answers to them; then that the seeds say nothing."""
    count = len(difference.a.values)
    counts = str(count) if baseline else f"{count} and {len(difference.b.values)}"
    seeds = "seed does" if counts == "1" else "seeds do"
    needed = f"at least {FEWEST_SEEDS}{_sides(baseline)} are needed, {BETTER_SEEDS} are better"
    metric, bootstrap = difference.metric, difference.bootstrap
    if bootstrap is None:
        return (
            f"Not enough seeds to say whether {a} or {b} is better in {metric}: {counts}; "
            f"{needed}; the difference is {_size(difference)}."
        )
    turned = difference.seeds.difference < 0 and _excludes_zero(difference)
    interval = interval_text(metric, _turned(bootstrap.interval, turned))
    evidence = f"95 % interval over {bootstrap.examples} examples {interval}"
    if on_examples(difference) is None:
        text = f"No difference in {metric} between {a} and {b} on these examples"
        text = f"{text}: {_size(difference)} ({evidence})"
    else:
        winner, loser = (a, b) if on_examples(difference) == "better" else (b, a)
        size = _in_points(metric, shown(metric, abs(difference.seeds.difference)))
        text = f"{winner} is better than {loser} in {metric} on these examples by {size}"
        text = f"{text} ({evidence})"
    return f"{text}; that is of these trained models, and {counts} {seeds} not say more: {needed}."


def _sides(baseline: bool) -> str:
    """What stands behind a number of seeds: a baseline has none."""
    return "" if baseline else " per side"


def on_examples(difference: Difference) -> Outcome | None:
    """The verdict on the first side for these very models; None where they do not differ."""
    if not _excludes_zero(difference):
        return None
    is_better = goodness(difference.metric, difference.seeds.difference) > 0
    return "better" if is_better else "worse"


def _untestable(difference: Difference, a: str, b: str) -> str:
    if not float(shown(difference.metric, difference.seeds.difference)):
        return f"No difference in {difference.metric} between {a} and {b}: all seeds are equal."
    return (
        f"No test over seeds is defined for {difference.metric} of {a} and {b}: they differ by "
        f"{_size(difference)} for every seed, without any spread."
    )


def _decided(difference: Difference, winner: str, loser: str) -> str:
    size = _in_points(difference.metric, shown(difference.metric, abs(difference.seeds.difference)))
    text = f"{winner} is better than {loser} in {difference.metric} by {size}"
    turned = difference.seeds.difference < 0  # "better by" is followed by a positive number
    if difference.bootstrap is None or _excludes_zero(difference):
        return f"{text} ({_evidence(difference, turned)})."
    interval = _turned(difference.bootstrap.interval, turned)
    return (
        f"{text} on these examples ({_evidence(difference, turned)}); the "
        f"{difference.bootstrap.examples} examples are too few to say so of others (95 % interval "
        f"over examples {interval_text(difference.metric, interval)})."
    )


def _turned(interval: tuple[float, float], turned: bool) -> tuple[float, float]:
    return (-interval[1], -interval[0]) if turned else interval


def _undecided(difference: Difference, a: str, b: str, *, baseline: bool) -> str:
    sides = _sides(baseline)
    text = (
        f"No difference in {difference.metric} between {a} and {b} was found: {_size(difference)} "
        f"({_evidence(difference)})"
    )
    needed = difference.seeds.seeds_needed
    most = max(len(difference.a.values), len(difference.b.values))
    if difference.seeds.t_p is not None and difference.seeds.t_p < ALPHA:
        return f"{text}, which is not enough among {difference.comparisons} comparisons."
    if needed is None or needed > MOST_SEEDS:
        return f"{text}; to show one this small takes more than {MOST_SEEDS} seeds{sides}."
    if needed <= most:  # sides of different sizes
        return f"{text}; run {most} seeds on both sides to decide."
    return f"{text}; not enough seeds: to show one of this size takes about {needed}{sides}."


def _size(difference: Difference) -> str:
    size = shown(difference.metric, difference.seeds.difference, signed=True)
    return _in_points(difference.metric, size)


def _in_points(metric: str, size: str) -> str:
    """A difference with its unit: percentages differ in points."""
    return f"{size} points" if meaning(metric).percent else size


def _evidence(difference: Difference, turned: bool = False) -> str:
    tests = difference.seeds
    assert tests.interval is not None
    assert difference.adjusted_p is not None
    interval = _turned(tests.interval, turned)
    counts = sorted({len(difference.a.values), len(difference.b.values)})
    kind = "paired t" if tests.paired else "Welch's t"
    corrected = f" after Holm's correction of {difference.comparisons}"
    return (
        f"95 % interval {interval_text(difference.metric, interval)}, {kind} over "
        f"{' and '.join(map(str, counts))} seeds, p = {p_text(difference.adjusted_p)}"
        f"{corrected if difference.comparisons > 1 else ''}"
    ).replace("= <", "< ")


def _excludes_zero(difference: Difference) -> bool:
    if difference.bootstrap is None:
        return False
    low, high = difference.bootstrap.interval
    return low > 0 or high < 0
