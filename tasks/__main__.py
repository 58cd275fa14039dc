"""The command `finetune`: the library's commands and one for each family of tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from finetune import cli
from tasks.families import FAMILIES


def _demo(words: list[str]) -> int:
    from tasks.demo import demo

    return demo(words)


def _submit(words: list[str]) -> int:
    from tasks.submit import submit

    return submit(words)


COMMANDS = {
    "demo": cli.Command(
        "start", "pretrain, fine-tune and report on a small built-in sample", _demo
    ),
    "submit": cli.Command(
        "use", "pack answers of GLUE runs into the leaderboard's zip, or check it", _submit
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return cli.main(argv, FAMILIES, COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
