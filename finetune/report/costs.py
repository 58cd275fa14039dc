"""What runs cost: speed, memory and padding as measured, parameters and arithmetic as counted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from finetune.console.output import counted
from finetune.report.collecting import Collection, ReportedRun, number
from finetune.report.markup import Cell, Column, Html, Row, data_table, element, joined
from finetune.report.overview import run_name
from finetune.report.parts import figure
from finetune.report.series import logged
from finetune.report.view import TaskView

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.encoder.cost import PartCost


def speed_table(views: Sequence[TaskView]) -> Html:
    """Throughput, padding and memory of each run."""
    columns = [
        Column("Run"),
        Column("Tokens/s", number=True, about="Median of the logged steps, all seeds"),
        Column("ex/s", number=True, about="Examples a second over the whole training"),
        Column("Padding", number=True, about="Fraction of the tokens that are padding"),
        Column("Ceiling", number=True, about="Fraction of the machine's matrix products, median"),
        Column("Cut", number=True, about="Fraction of training texts that lost their end"),
        Column("GiB", number=True, about="Peak memory"),
        Column("Minutes", number=True),
        Column("Parameters", number=True),
    ]
    rows = [_speed_row(view, run) for view in views for run in view.runs]
    return data_table("Speed, padding and memory, seeds together", columns, rows)


def _speed_row(view: TaskView, run: ReportedRun) -> list[Cell]:
    tokens, ceiling = (
        _median(run, f"perf/{name}") for name in ("tokens_per_second", "ceiling_share")
    )
    padding = run.mean("data", "padding")
    if padding is None:
        padding = _median(run, "perf/padding")
    examples, seconds = run.mean("examples_per_second"), run.mean("train_seconds")
    cut, gib, parameters = (
        run.mean("data", "train", "trimmed"),
        run.mean("peak_gib"),
        run.mean("parameters"),
    )
    return [
        Cell(run_name(view, run), run.name),
        _figure_cell(tokens, "{:,.0f}"),
        _figure_cell(examples, "{:,.0f}"),
        _figure_cell(padding, "{:.1%}"),
        _figure_cell(ceiling, "{:.0%}"),
        _figure_cell(cut, "{:.1%}"),
        _figure_cell(gib, "{:.2f}"),
        _figure_cell(None if seconds is None else seconds / 60, "{:.1f}"),
        _figure_cell(parameters, "{:,.0f}"),
    ]


def _figure_cell(value: float | None, form: str) -> Cell:
    return Cell(None if value is None else form.format(value).replace("%", " %"), value)


def _median(run: ReportedRun, name: str) -> float | None:
    values = [value for seed in run.seeds for _, _, value in logged(seed.lines, name)]
    return statistics.median(values) if values else None


def parts(collection: Collection) -> Html | None:
    """Parameters and operations of each shape of encoder that occurs, part by part."""
    shapes: dict[tuple[str, int, bool], tuple[EncoderConfig, list[ReportedRun]]] = {}
    for run in collection.runs:
        config = collection.attempt(run.name, partial(_encoder, run))
        if config is not None:
            shape = repr(sorted(config.to_dict().items()))
            key = (shape, _length(run), run.models_language)
            shapes.setdefault(key, (config, []))[1].append(run)
    tables = [_shape(config, length, runs) for (_, length, _), (config, runs) in shapes.items()]
    return joined(tables) if tables else None


def _encoder(run: ReportedRun) -> EncoderConfig | None:
    """The encoder's shape, as its checkpoint says; None for a run without one."""
    from finetune.checkpoints.folder import load_checkpoint

    place = next((seed.folder for seed in run.seeds if seed.folder.has_weights), None)
    return None if place is None else load_checkpoint(place.path).encoder_config


def _length(run: ReportedRun) -> int:
    lengths = (
        number(run.config, "max_length"),
        number(run.config, "data", "max_length"),
        number(run.config, "text", "max_length"),
    )
    return int(next((length for length in lengths if length), 128))


def _heads(runs: Sequence[ReportedRun], encoder: int) -> str:
    """What the heads of tasks add to the encoder's parameters."""
    counts = {run.mean("parameters") for run in runs if not run.models_language}
    added = sorted({int(count) - encoder for count in counts if count is not None})
    if not added or added[0] <= 0:
        return ""
    most = f" to {added[-1]:,}" if len(added) > 1 else ""
    return f" A task's head adds {added[0]:,}{most} parameters."


def _shape(config: EncoderConfig, length: int, runs: Sequence[ReportedRun]) -> Html:
    from finetune.encoder.cost import cost, inner_sizes

    parts = dict(cost(config, length))
    if not runs[0].models_language:
        parts.pop("lm head")
    encoder = sum(part.parameters for part in parts.values())
    stage = "Pretraining: " if runs[0].models_language else ""
    blocks = counted(config.num_hidden_layers, "block")
    heads = counted(config.num_attention_heads, "head")
    inner = heads if config.block == "transformer" else inner_sizes(config)
    title = (
        f"{stage}{blocks} of {config.hidden_size}, {inner}, vocabulary {config.vocab_size:,}, "
        f"at {length} tokens"
    )
    words = ", ".join(f"{name} {part.parameters:,} parameters" for name, part in parts.items())
    spec = {"rows": list(_stacked(parts))}
    note = f"Runs: {', '.join(run.name for run in runs)}.{_heads(runs, encoder)}"
    plot = figure("stack", "Where parameters and operations are", words, spec, note=note)
    caption = f"{title}: {encoder:,} parameters"
    return joined([element("h3", title), plot, _cost_table(parts, caption)])


def _stacked(parts: Mapping[str, PartCost]) -> Iterator[dict[str, str | float]]:
    for name, part in parts.items():
        yield {"measure": "parameters", "part": name, "value": part.parameters}
        yield {"measure": "operations", "part": name, "value": part.flops}


def _cost_table(parts: Mapping[str, PartCost], caption: str) -> Html:
    parameters = sum(part.parameters for part in parts.values())
    flops = sum(part.flops for part in parts.values())
    columns = [
        Column("Part"),
        Column("Parameters", number=True),
        Column("Percent", number=True),
        Column(
            "Million operations a token", number=True, about="Forward; a training step is three"
        ),
        Column("Percent ", number=True),
    ]
    rows: list[Row] = [
        [
            name,
            Cell(f"{part.parameters:,}", part.parameters),
            _figure_cell(part.parameters / parameters, "{:.1%}"),
            Cell(f"{part.flops / 1e6:,.2f}", part.flops),
            _figure_cell(part.flops / flops if flops else 0.0, "{:.1%}"),
        ]
        for name, part in parts.items()
    ]
    return data_table(caption, columns, rows, sortable=False)
