"""`finetune report` and `dashboard`: runs as one HTML page, or in a Weights & Biases project."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import put


def report(arguments: list[str]) -> int:
    """Write the page; takes the arguments after `finetune report`."""
    space = _report_parser().parse_args(arguments)
    from finetune.report import write_report
    from finetune.report.inside import inside_parts
    from finetune.runs.folder import say

    written = write_report(
        space.runs,
        space.out,
        baselines=space.baseline,
        title=space.title,
        data=space.data,
        more=inside_parts(space.inside),
    )
    for problem in written.problems:
        say(f"{problem.place}: {problem.what}")
    if space.json:
        problems = [{"place": one.place, "problem": one.what} for one in written.problems]
        summary = {"report": str(written.path), "runs": written.runs, "problems": problems}
        put(json.dumps(summary, ensure_ascii=False))
    else:
        put(str(written.path))
    return 0


def _report_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "report", "Write a report of runs as one HTML file that needs no network."
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", help="folders of runs, or folders that contain runs"
    )
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    _add_paths(
        parser,
        "--baseline",
        "run to compare the others of its task with, or a folder of such runs; may be repeated "
        "(default: a run from random weights, or the first run)",
    )
    parser.add_argument("--title", help="heading of the page")
    about = "folder with the official files, for the texts of examples (default: the run's)"
    parser.add_argument("--data", type=Path, help=about)
    parser.add_argument(
        *("--inside", "--attention"),
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file or folder written by finetune inspect (attention, heads, probe, similarity, "
        "words or frequency.json) to include; may be repeated",
    )
    add_json(parser, "print the file, its runs and what could not be shown, as JSON on stdout")
    return parser


def _add_paths(parser: argparse.ArgumentParser, flag: str, about: str) -> None:
    parser.add_argument(flag, type=Path, action="append", default=[], help=about)


def dashboard(arguments: list[str]) -> int:
    """Make workspace and report, or their file; takes the arguments after `finetune dashboard`."""
    parser = command_parser(
        "dashboard", "Create a workspace and a report for runs in Weights & Biases."
    )
    parser.add_argument("--entity", required=True, help="user or team in Weights & Biases")
    parser.add_argument(
        "--project", default="finetune", help="project of the user or team (default: finetune)"
    )
    parser.add_argument(
        "--spec", type=Path, help="write this JSON file instead; needs no network and no login"
    )
    add_json(parser, "print their addresses as JSON on stdout")
    space = parser.parse_args(arguments)
    from finetune.dashboards.spec import save, write_spec

    if space.spec is not None:
        write_spec(space.entity, space.project, space.spec)
        addresses = {"spec": str(space.spec)}
    else:
        workspace, report = save(space.entity, space.project)
        addresses = {"workspace": workspace, "report": report}
    put(json.dumps(addresses) if space.json else "\n".join(addresses.values()))
    return 0
