"""`finetune evaluate`: a finished run scored again."""

from __future__ import annotations

from pathlib import Path

from finetune.cli.parser import add_json, check_is_there, command_parser
from finetune.cli.results_table import show_results


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("evaluate", "Score the best checkpoint of a finished run.")
    parser.add_argument("run", type=Path, help="folder of a fine-tuning run")
    parser.add_argument("--split", help="split with labels (split (default: the validation split))")
    parser.add_argument(
        "--file", help="another file with labels, scored as the split --split (default: test)"
    )
    add_json(parser)
    space = parser.parse_args(arguments)
    check_is_there(space.run)
    from finetune.jobs.evaluation import evaluate

    show_results(evaluate(space.run, space.split, space.file), space.run, arguments)
    return 0
