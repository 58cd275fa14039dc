"""Two groups put side by side: all tests, corrected together, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from finetune.comparison.differences import Comparison, Difference
from finetune.comparison.example_tests import ExampleTests
from finetune.comparison.examples import RESAMPLES, Score
from finetune.comparison.groups import Group
from finetune.comparison.seeds import holm, seed_tests, spread
from finetune.comparison.verdict import judge, short_names
from finetune.errors import ConfigError, DataError
from finetune.metrics.semantics import headline


def compare(
    a: Group,
    b: Group,
    metric: str | None = None,
    *,
    score: Score | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two groups of runs.

    Args:
        a: The first group.
        b: The second group.
        metric: The metric to compare; None for all that both have.
        score: Scores answers, as the task does; needed for tests over examples of a metric that
            is not a fraction of right answers.
        resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    Returns:
        The comparison, `a` less `b`.

    Raises:
        DataError: The groups differ in task, split or examples, or a run is on both sides.
        ConfigError: They do not both have the metric.
    """
    if not a.is_like(b):
        raise DataError(
            f"expected runs of one task, got {a.task} ({a.split}) in {a.name} and {b.task} "
            f"({b.split}) in {b.name}; compare runs of the same task and split"
        )
    on_both_sides = _folders(a) & _folders(b)
    if on_both_sides:
        raise DataError(f"expected two different runs, got {min(on_both_sides)} on both sides")
    names = [metric] if metric else [name for name in a.metrics if name in b.metrics]
    first = headline(names)
    names.sort(key=lambda name: name != first)  # the others keep their order
    if not names:
        raise ConfigError(
            f"expected a metric that both have, got {', '.join(a.metrics) or 'none'} in {a.name} "
            f"and {', '.join(b.metrics) or 'none'} in {b.name}"
        )
    over_examples = ExampleTests(a, b, score, resamples=resamples, seed=seed)
    differences = [_difference(a, b, name, over_examples) for name in names]
    notes = (*a.notes, *b.notes, *_degenerate(a), *_degenerate(b))
    comparison = Comparison(
        a.task,
        a.split,
        a.name,
        b.name,
        a.seeds,
        () if b.is_baseline else b.seeds,
        tuple(differences),
        notes,
    )
    return corrected([comparison])[0]


def _folders(group: Group) -> set[Path]:
    return {run.folder.resolve() for run in group.runs if run.folder}


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct several comparisons together by Holm's method, and judge each again.

    Args:
        comparisons: Such as those of all variants with one baseline.

    Returns:
        The same in the same order, with p-values corrected over all their differences.
    """
    every = [difference for comparison in comparisons for difference in comparison.differences]
    over_seeds = _holm([difference.seeds.t_p for difference in every])
    over_examples = _holm([item.bootstrap.p if item.bootstrap else None for item in every])
    adjusted = iter(
        replace(item, comparisons=len(every), adjusted_p=seeds_p, adjusted_bootstrap_p=examples_p)
        for item, seeds_p, examples_p in zip(every, over_seeds, over_examples, strict=True)
    )
    return [
        replace(
            comparison,
            differences=tuple(_judged(next(adjusted), comparison) for _ in comparison.differences),
        )
        for comparison in comparisons
    ]


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(adjusted) for p in p_values]


def _judged(difference: Difference, comparison: Comparison) -> Difference:
    names = short_names(comparison.a, comparison.b)
    outcome, verdict = judge(difference, *names, baseline=not comparison.seeds_b)
    return replace(difference, outcome=outcome, verdict=verdict)


def _degenerate(group: Group) -> list[str]:
    seeds = ", ".join(str(run.seed) for run in group.runs if run.degenerate)
    return [f"{group.name} gives one answer to every example with seed {seeds}"] if seeds else []


def _difference(a: Group, b: Group, metric: str, over_examples: ExampleTests) -> Difference:
    first, second = a.values(metric), b.values(metric)
    over_seeds = seed_tests(first, second, paired=a.seeds == b.seeds)
    bootstrap, mcnemar, notes = over_examples.of(metric)
    return Difference(metric, spread(first), spread(second), over_seeds, bootstrap, mcnemar, notes)
