"""`finetune dashboard`: the workspace and the report of a Weights & Biases project."""

from __future__ import annotations

import json
from pathlib import Path

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import put


def command(arguments: list[str]) -> int:
    """Make them in the project, or write them to a file.

    Args:
        arguments: Those after `finetune dashboard`.

    Returns:
        The exit status.
    """
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
        places = {"spec": str(space.spec)}
    else:
        workspace, report = save(space.entity, space.project)
        places = {"workspace": workspace, "report": report}
    put(json.dumps(places) if space.json else "\n".join(places.values()))
    return 0
