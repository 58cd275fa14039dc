"""Probes: what a linear classifier can predict from each layer, and the layers' shares in a mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.console.output import counted
from finetune.metrics.semantics import label, meaning
from finetune.report.inside.files import InspectionFile, blocks, figure_of
from finetune.report.inside.layers import SHORT, Summary, layer_table, layers_figure, series
from finetune.report.markup import Cell, Html, Row, details, element, joined
from finetune.report.parts import Part
from finetune.report.view import shown
from finetune.runs.results import summarise

CAVEAT = joined(
    [
        "A probe says what can be read off a layer by a linear map, not what the network uses "
        "(Belinkov, 2022). Compare with the trivial baseline (the most frequent answer), and an "
        "encoder of the same shape with random weights (",
        element("code", "--untrained"),
        ").",
    ]
)
UNTRAINED = "untrained"
"""The group of --untrained."""
Probed = Sequence[Mapping[str, Any]]
"""What was found for each run of a group."""


def probes_part(files: Sequence[InspectionFile]) -> Part:
    """What `finetune inspect probe` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("probes", "Probes", blocks(files, _block), CAVEAT)


def _block(file: InspectionFile) -> Html:
    metric = str(file.content["metric"])
    groups: Mapping[str, Probed] = file.content["groups"]
    first = list(groups.values())[0][0]
    title = f"{first['task']}: {label(metric)}, {first['pooling']} pooling"
    plots = element("div", _scores(groups, metric), _mix(groups), class_="grid")
    tables = [_table(groups, metric), _shares_table(groups)]
    return joined([element("h3", title), plots, *tables, _note(groups, first)])


def _scores(groups: Mapping[str, Probed], metric: str) -> Html:
    from finetune.inspection.probes import MIX, curve_names

    names = curve_names(probed[0] for probed in groups.values())
    lines = _lines({name: _curve(probed, metric) for name, probed in groups.items()})
    percent = meaning(metric).percent
    title = f"Score by layer{', percent' if percent else ''}"
    rules = [{"y": value, "label": "trivial baseline"} for value in _trivial(groups, metric)]
    return layers_figure("layers", title, names, lines, percent=percent, rules=rules, apart=MIX)


def _lines(groups: Mapping[str, Mapping[str, Summary]]) -> list[dict[str, Any]]:
    """A line a group; that of random weights, the bar to clear, has the colour of baselines."""
    lines = [series(name, place, of) for place, (name, of) in enumerate(groups.items())]
    grey = {"colour": "var(--baseline)", "dashed": False}
    return [line | grey if line["name"] == UNTRAINED else line for line in lines]


def _curve(probed: Probed, metric: str) -> dict[str, Summary]:
    """Mean and deviation at each layer and of the mix, by name."""
    from finetune.inspection.probes import curve, curve_names

    return dict(zip(curve_names(probed[:1]), curve(probed, metric), strict=True))


def _trivial(groups: Mapping[str, Probed], metric: str) -> list[float]:
    """The score of the trivial baseline: one value, unless groups have other texts."""
    from finetune.inspection.probes import trivial_score

    values = (figure_of(trivial_score(probed[0], metric)) for probed in groups.values())
    return sorted({value for value in values if value is not None})


def _shares(probed: Probed) -> dict[str, Summary]:
    """Share of each layer in the mix: over runs, or over the probes' own seeds for one run."""
    names = [layer["name"] for layer in probed[0]["layers"]]
    each = [one["mix"]["shares"] for one in probed]
    if len(each) == 1:
        return dict(zip(names, each[0], strict=True))
    over = [summarise([share["mean"] for share in shares]) for shares in zip(*each, strict=True)]
    return dict(zip(names, over, strict=True))


def _mix(groups: Mapping[str, Probed]) -> Html:
    shares = {name: _shares(probed) for name, probed in groups.items()}
    names = max((list(one) for one in shares.values()), key=len)
    lines = _lines(shares)
    title = "Share of each layer in the scalar mix, percent"
    return layers_figure("shares", title, names, lines, percent=True)


def _table(groups: Mapping[str, Probed], metric: str) -> Html:
    """Scores by layer, the mix and the trivial baseline below them."""
    from finetune.inspection.probes import curve_names, trivial_score

    names = curve_names(probed[0] for probed in groups.values())
    scores = [_curve(probed, metric) for probed in groups.values()]
    rows: list[Row] = [[name, *(_cell(metric, one.get(name)) for one in scores)] for name in names]
    trivial = (figure_of(trivial_score(probed[0], metric)) for probed in groups.values())
    rows.append(["trivial baseline", *(Cell(shown(metric, value), value) for value in trivial)])
    return layer_table(f"{label(metric).capitalize()} by layer", list(groups), rows)


def _shares_table(groups: Mapping[str, Probed]) -> Html:
    shares = [_shares(probed) for probed in groups.values()]
    names = max(map(list, shares), key=len)
    rows: list[Row] = [[name, *(_cell("share", one.get(name)) for one in shares)] for name in names]
    table = layer_table("Share in the scalar mix, percent", list(groups), rows)
    return table if len(rows) > SHORT else details("Share in the scalar mix as a table", table)


def _cell(metric: str, summary: Summary | None) -> Cell:
    if summary is None:
        return Cell(None)
    mean, deviation = figure_of(summary["mean"]), figure_of(summary["std"])
    return Cell(
        None if mean is None else f"{shown(metric, mean)} ± {shown(metric, deviation)}", mean
    )


def _note(groups: Mapping[str, Probed], first: Mapping[str, Any]) -> Html:
    sizes = first["examples"]
    sentences = [
        f"{counted(sizes['train'], 'example')} to learn from, {sizes['validation']:,} of the "
        f"{first['split']} split to score.",
        _spread(groups),
        "The scalar mix learns a weight for each layer with the classifier (Peters et al., 2018).",
    ]
    return element("p", " ".join(sentences), class_="note")


def _spread(groups: Mapping[str, Probed]) -> str:
    several = [f"{name} ({len(probed)})" for name, probed in groups.items() if len(probed) > 1]
    over = [f"over the runs of {', '.join(several)}"] if several else []
    over += ["over the probes' own seeds"] if len(several) < len(groups) else []
    return f"± and bars: one standard deviation, {'; else '.join(over)}."
