"""`finetune compare`: two runs, or two groups of runs, set against each other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import printable, put
from finetune.errors import ConfigError

if TYPE_CHECKING:
    from finetune.comparison import Group, Run

LONGEST_VALUE = 22
"""Characters of a setting's value that are shown."""


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser(
        "compare", "Compare two runs, two groups of runs, or a run with a baseline: A minus B."
    )
    parser.add_argument("a", type=Path, help="folder of a run, or of the runs of one group")
    parser.add_argument("b", type=Path, nargs="?", help="another")
    parser.add_argument(
        "--baseline", metavar="NAME", help="compare A with a baseline of it, such as bag_of_words"
    )
    parser.add_argument("--metric", help="metric to compare (default: all that both have)")
    add_json(parser, "print all numbers as JSON on stdout")
    space = parser.parse_args(arguments)
    if (space.b is None) == (space.baseline is None):
        raise ConfigError("compare: name a second run, or a baseline by --baseline bag_of_words")
    from finetune.comparison import as_json, as_text, compare
    from finetune.runs.folder import note
    from finetune.runs.groups import baseline_group, read_group, score_of

    note("comparing: the bootstrap over examples may take a minute")
    a = read_group(space.a)
    b = baseline_group(a, space.baseline) if space.baseline else read_group(space.b)
    runs = (*a.runs, *b.runs)
    score = score_of(runs)
    _warn_of_other_answers(runs)
    comparison = compare(a, b, space.metric, score=score)
    settings = _settings_that_differ(a, b)
    if space.json:
        put(json.dumps({**as_json(comparison), "settings": settings}))
    else:
        put(as_text(comparison))
        if settings:
            put("\n" + _settings_table(settings))
    return 0


def _settings_that_differ(a: Group, b: Group) -> dict[str, list[Any]]:
    """Key -> its value in each group, by their first runs; those of one seed have them alike."""
    from finetune.runs.folder import RunFolder
    from finetune.runs.inputs import differing

    folders = [group.runs[0].folder for group in (a, b)]
    configs = [RunFolder(folder).read_config() for folder in folders if folder is not None]
    if len(configs) < 2 or not all(configs):
        return {}
    different = differing(configs)
    return {
        key: [None if value is ... else value for value in values]
        for key, values in different.items()
    }


def _settings_table(settings: dict[str, list[Any]]) -> str:
    from finetune.console.tables import table
    from finetune.settings.values import show

    rows = [[key, *(_end(printable(show(value))) for value in settings[key])] for key in settings]
    return table(rows, ["setting", "A", "B"])


def _end(text: str) -> str:
    """The end of a long value: of a path it is that which differs."""
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def _warn_of_other_answers(runs: Iterable[Run]) -> None:
    """Name the predictions files that a run's results were not computed from."""
    from finetune.runs.folder import RunFolder, say

    for folder in (RunFolder(run.folder) for run in runs if run.folder is not None):
        results = folder.read_results() if folder.results_file.is_file() else {}
        for split in folder.foreign_splits(results):
            say(
                f"warning: {folder.path}/{folder.foreign(split)}; finetune evaluate {folder.path} "
                "rewrites them"
            )
