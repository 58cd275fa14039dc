"""A comparison as plain text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from finetune.comparison.differences import Comparison, Difference
from finetune.comparison.seeds import Spread
from finetune.comparison.verdict import interval_text, p_text, short_names
from finetune.metrics.semantics import column_title, shown

WIDTH = 80
_NAME = 30
_TEST = 32


def as_text(comparison: Comparison) -> str:
    """The whole comparison: the sides, each metric with its tests, notes, the verdict."""
    a, b = comparison.a, comparison.b
    parts = [
        f"{comparison.task} ({comparison.split})\n"
        + _wrap(f"A: {a} ({_seeds(comparison.seeds_a)})", "   ")
        + "\n"
        + _wrap(f"B: {b} ({_seeds(comparison.seeds_b)})", "   ")
    ]
    names = short_names(a, b)
    parts += ["\n".join(_block(difference, *names)) for difference in comparison.differences]
    notes = [*comparison.notes, *(note for item in comparison.differences for note in item.notes)]
    if notes:
        parts.append("\n".join(_wrap(f"note: {note}") for note in dict.fromkeys(notes)))
    parts.append("\n".join(_wrap(item.verdict) for item in comparison.differences))
    return "\n\n".join(parts)


def summary(comparisons: Sequence[Comparison]) -> str:
    """One line for each difference of several comparisons, such as all with one baseline."""
    rows = [
        [
            _cut(short_names(comparison.a, comparison.b)[0], 22),
            _mean(item.metric, item.a),
            _mean(item.metric, item.b),
            shown(item.metric, item.seeds.difference, signed=True),
            interval_text(item.metric, item.seeds.interval) if item.seeds.interval else "-",
            p_text(item.adjusted_p) if item.adjusted_p is not None else "-",
            {"better": "A", "worse": "B"}.get(item.outcome, "-"),
        ]
        for comparison in comparisons
        for item in comparison.differences
    ]
    header = ["A", "A mean ± sd", "B mean ± sd", "A - B", "95 % interval", "Holm", "won"]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        " ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _block(difference: Difference, a: str, b: str) -> Iterator[str]:
    metric = difference.metric
    yield f"{_cut(column_title(metric), _NAME):<{_NAME}} {'mean':>8} {'std':>8}  each seed"
    yield "-" * WIDTH
    yield _side(f"A  {_cut(a, _NAME - 3)}", metric, difference.a)
    yield _side(f"B  {_cut(b, _NAME - 3)}", metric, difference.b)
    interval = difference.seeds.interval
    ends = f"95 % interval {interval_text(metric, interval)}" if interval else "no interval"
    size = shown(metric, difference.seeds.difference, signed=True)
    yield f"{'A - B':<{_NAME}} {size:>8} {'':>8}  {ends}"
    tests = list(_tests(difference))
    if tests:
        yield ""
        yield f"{'test':<{_TEST}} {'p':>7} {'Holm':>7}"
        yield "-" * WIDTH
        yield from tests


def _side(name: str, metric: str, values: Spread) -> str:
    deviation = "-" if values.std is None else shown(metric, values.std)
    line = f"{name:<{_NAME}} {shown(metric, values.mean):>8} {deviation:>8} "
    for value in values.values:
        cell = f" {shown(metric, value)}"
        if len(line) + len(cell) > WIDTH - 2:
            return f"{line} …"
        line += cell
    return line


def _tests(difference: Difference) -> Iterator[str]:
    tests, several = difference.seeds, difference.comparisons > 1
    metric = difference.metric
    if tests.t_p is not None:
        name = "paired t, seeds" if tests.paired else "Welch's t, seeds"
        yield _test(name, tests.t_p, difference.adjusted_p if several else None)
    if tests.rank_p is not None and tests.lowest_rank_p is not None:
        name = "Wilcoxon signed-rank, seeds" if tests.paired else "Wilcoxon rank-sum, seeds"
        # With three seeds a rank test cannot reach 0.05 whatever they show: the reader must know.
        limit = f"cannot be below {tests.lowest_rank_p:.3f}" if tests.lowest_rank_p > 0.01 else ""
        yield _test(name, tests.rank_p, about=limit)
    bootstrap = difference.bootstrap
    if bootstrap is not None:
        name = f"bootstrap, {bootstrap.examples:,} examples"
        adjusted = difference.adjusted_bootstrap_p if several else None
        yield _test(
            name, bootstrap.p, adjusted, f"95 %: {interval_text(metric, bootstrap.interval)}"
        )
    for pair in difference.mcnemar:
        adjusted = pair.adjusted_p if len(difference.mcnemar) > 1 else None
        right = f"only A right {pair.only_a}, only B {pair.only_b}"
        yield _test(f"McNemar, seed {pair.seed}", pair.p, adjusted, right)


def _test(name: str, p: float, adjusted: float | None = None, about: str = "") -> str:
    corrected = "" if adjusted is None else p_text(adjusted)
    return f"{_cut(name, _TEST):<{_TEST}} {p_text(p):>7} {corrected:>7}  {about}".rstrip()


def _mean(metric: str, values: Spread) -> str:
    deviation = "" if values.std is None else f" ± {shown(metric, values.std)}"
    return f"{shown(metric, values.mean)}{deviation}"


def _seeds(seeds: Sequence[int]) -> str:
    if not seeds:
        return "a baseline"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _cut(name: str, width: int) -> str:
    """The end of a name: paths differ there."""
    return name if len(name) <= width else f"…{name[1 - width :]}"
