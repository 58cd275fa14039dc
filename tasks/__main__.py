"""The command `finetune`: the library's commands, and two that know the benchmark tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from finetune import cli

COMMANDS = {
    "demo": cli.Command(
        "start", "pretrain, fine-tune and report on a small built-in sample", "tasks.demo:demo"
    ),
    "check": cli.Command(
        "your data",
        "check data before a run: facts, a baseline, all refused rows",
        "tasks.check:check",
    ),
    "submit": cli.Command(
        "use",
        "pack answers of GLUE runs into the leaderboard's zip, or check it",
        "tasks.submit:submit",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return cli.main(argv, COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
