"""The workspace and the report in the form of Weights & Biases: saved there, or as JSON.

Only this package knows `wandb-workspaces`, and only inside functions.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.dashboards.panels import CHAPTERS, SECTIONS, Chapter, Panel
from finetune.errors import ConfigError
from finetune.files.writing import write_text
from finetune.jobs.answer_tables import CONFUSION
from finetune.machine.packages import is_installed
from finetune.tracking import logged_in

WORKSPACE, REPORT = "finetune", "Pretraining and fine-tuning"
"""What they are called."""
COUNTED = ("Actual", "Predicted", "nPredictions")
"""The columns of a table of confusions."""
_WIDTH, _HEIGHT = 12, 8  # of a panel in a report that is 24 wide


def write_spec(entity: str, project: str, file: Path) -> None:
    """Write workspace and report as JSON, without a network.

    Args:
        entity: User or team of Weights & Biases.
        project: Its project.
        file: The file to write, whole or not at all.

    Raises:
        ConfigError: `wandb-workspaces` is not installed, or the file cannot be written.
    """
    _check_installed()
    content = {
        "workspace": _content(_workspace(entity, project)),
        "report": _content(_report(entity, project)),
    }
    text = json.dumps(_stable(content), indent=2, sort_keys=True, ensure_ascii=False)
    try:
        write_text(file, text + "\n")
    except OSError as error:
        raise ConfigError(f"--spec {file}: {error.strerror}; name another file") from None


def save(entity: str, project: str) -> list[str]:
    """Make workspace and report in a project.

    Args:
        entity: User or team of Weights & Biases.
        project: Its project.

    Returns:
        Their addresses.

    Raises:
        ConfigError: `wandb-workspaces` is not installed, nobody is logged in, or the server
            refuses or is not reached.
    """
    _check_installed()
    if not logged_in():
        raise ConfigError(
            "no login to Weights & Biases: run `wandb login` or set WANDB_API_KEY; or write the "
            "same to a file by --spec FILE"
        )
    try:
        return [
            place.save().url for place in (_workspace(entity, project), _report(entity, project))
        ]
    except Exception as error:  # the client raises many kinds: GraphQL, requests, its own
        raise ConfigError(
            f"{entity}/{project}: Weights & Biases did not take the dashboard: "
            f"{' '.join(str(error).split())}; check --entity, --project and the network"
        ) from error


def _check_installed() -> None:
    if not is_installed("wandb_workspaces"):
        raise ConfigError(
            "the dashboard needs wandb-workspaces, which is not installed: "
            "pip install 'finetune[dashboard]'"
        )


def _library(part: str) -> Any:
    """A module of the library, whose names type checkers do not all find."""
    with warnings.catch_warnings():
        # wandb-workspaces 0.4 is written in pydantic's old words, and pydantic 2 says so.
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"wandb_workspaces.{part}")


def _workspace(entity: str, project: str) -> Any:
    ws = _library("workspaces")
    sections = [
        ws.Section(
            name=section.title,
            panels=[_panel(panel) for panel in section.panels],
            is_open=section.is_open,
        )
        for section in SECTIONS
    ]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=WORKSPACE,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="step", group_by_prefix="first"),
        runset_settings=ws.RunsetSettings(
            pinned_columns=["run:displayName", "summary:best/headline", "config:seed.value"]
        ),
        auto_generate_panels=True,
    )


def _report(entity: str, project: str) -> Any:
    wr = _library("reports.v2")
    blocks: list[Any] = [wr.TableOfContents()]
    for chapter in CHAPTERS:
        blocks += [
            wr.H1(text=chapter.title),
            wr.P(text=chapter.text),
            wr.PanelGrid(runsets=[_runset(chapter)], panels=_placed(chapter.panels)),
        ]
    about = "Made by `finetune dashboard` from what runs log."
    return wr.Report(
        entity=entity,
        project=project,
        title=REPORT,
        description=about,
        blocks=blocks,
        width="fluid",
    )


def _runset(chapter: Chapter) -> Any:
    """The runs of the report's own project; one that is named is asked for on the network."""
    wr = _library("reports.v2")
    return wr.Runset(
        name=chapter.title,
        filters=f"Metric('JobType') in {list(chapter.jobs)}",
        groupby=list(chapter.group),
        pinned_columns=list(chapter.columns),
    )


def _placed(panels: Sequence[Panel]) -> list[Any]:
    """Two beside each other."""
    wr = _library("reports.v2")
    made = []
    for number, panel in enumerate(panels):
        row, column = divmod(number, 2)
        one = _panel(panel)
        one.layout = wr.Layout(x=column * _WIDTH, y=row * _HEIGHT, w=_WIDTH, h=_HEIGHT)
        made.append(one)
    return made


def _panel(panel: Panel) -> Any:
    wr = _library("reports.v2")
    title, names = panel.title, list(panel.names)
    grouped = _grouping(panel.group)
    match panel.kind:
        case "lines":
            return _lines(panel, grouped)
        case "bars":
            return wr.BarPlot(title=title, metrics=names, **grouped)
        case "scatter":
            x, y = map(_setting, names)
            return wr.ScatterPlot(title=title, x=x, y=y)
        case "table":
            return wr.WeavePanelSummaryTable(table_name=names[0])
        case "chart":
            return wr.CustomChart(
                query={"summaryTable": {"tableKey": f"{names[0]}_table"}},
                chart_name=CONFUSION,
                chart_fields={name: name for name in COUNTED},
                chart_strings={"title": title},
            )
        case "columns":
            columns = [wr.ParallelCoordinatesPlotColumn(metric=_setting(name)) for name in names]
            return wr.ParallelCoordinatesPlot(title=title, columns=columns)
        case "importance":
            return wr.ParameterImportancePlot(with_respect_to=names[0])
        case "differences":
            return wr.RunComparer(diff_only="split")


def _lines(panel: Panel, grouped: dict[str, Any]) -> Any:
    wr = _library("reports.v2")
    return wr.LinePlot(
        title=panel.title,
        x=panel.over,
        y=list(panel.names),
        metric_regex=panel.pattern,
        log_y=panel.log or None,
        plot_type="stacked-area" if panel.bands else None,
        smoothing_type="none",
        max_runs_to_show=100 if grouped else None,
        **grouped,
    )


def _grouping(key: str | None) -> dict[str, Any]:
    """Runs that have the same setting, or the same name of a group, as mean and deviation."""
    wr = _library("reports.v2")
    if key is None:
        return {}
    by = "Group" if key == "run.group" else wr.Config(key.removeprefix("config."))
    return {
        "groupby": by,
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "aggregate": True,
    }


def _setting(key: str) -> Any:
    wr = _library("reports.v2")
    where, _, name = key.partition(".")
    return wr.Config(name) if where == "config" else wr.SummaryMetric(name)


def _content(place: Any) -> Any:
    """What would be sent to the server."""
    return json.loads(place._to_model().model_dump_json(by_alias=True, exclude_none=True))


def _stable(content: Any) -> Any:
    """Without the random ids that the library gives to each part, so that files can be compared."""
    if isinstance(content, dict):
        return {
            key: _stable(value) for key, value in content.items() if key not in ("id", "__id__")
        }
    if isinstance(content, list):
        return [_stable(value) for value in content]
    return content
