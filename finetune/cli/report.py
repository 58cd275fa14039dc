"""`finetune report`: run folders as one HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from finetune.cli.parser import command_parser
from finetune.families import Family


def report_command(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    """The command, for these families of tasks."""

    def command(words: list[str]) -> int:
        space = _parser().parse_args(words)
        from finetune.report import write_report
        from finetune.report.inside import attention_part
        from finetune.run_folder import say

        made = write_report(
            space.runs,
            space.out,
            baselines=space.baseline,
            title=space.title,
            families=families,
            data=space.data,
            more=[part for part in [attention_part(space.attention)] if part],
        )
        for problem in made.problems:
            say(f"{problem.place}: {problem.what}")
        print(made.path)
        return 0

    return command


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("report", "Run folders as one HTML page that opens anywhere.")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, or folders of runs")
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    _add_paths(
        parser,
        "--baseline",
        "run that those of its task are compared with, or a folder of such; may be given again "
        "(default: the one from random weights, else the first)",
    )
    parser.add_argument("--title", help="heading of the page")
    about = "folder with the official files, for the texts of examples (default: the run's own)"
    parser.add_argument("--data", type=Path, help=about)
    _add_paths(
        parser,
        "--attention",
        "attention.json that finetune inspect wrote, as a part of the page; may be given again",
    )
    return parser


def _add_paths(parser: argparse.ArgumentParser, flag: str, about: str) -> None:
    parser.add_argument(flag, type=Path, action="append", default=[], help=about)
