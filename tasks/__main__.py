"""The command `finetune`: the library's commands and one for each family of tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune import cli

if TYPE_CHECKING:
    from finetune.run_settings import FitRun
    from finetune.task import Task


def _glue(run: FitRun) -> Task:
    from tasks.glue import glue_task

    files = {"train": run.train, "validation": run.validation}
    given = {split: Path(file) for split, file in files.items() if file is not None}
    return glue_task(run.task.split("/", 1)[1], Path(run.data) if run.data else None, given)


def _glue_names() -> list[str]:
    from tasks.glue_table import GLUE

    return list(GLUE)


def _demo(words: list[str]) -> int:
    from tasks.demo import demo

    return demo(words)


FAMILIES = {"glue": cli.Family("fine-tune on a GLUE task", _glue, _glue_names)}
COMMANDS = {
    "demo": cli.Command("start", "the main job on a small made world, in a few minutes", _demo)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return cli.main(argv, FAMILIES, COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
