"""`python -m finetune`: the command `finetune`, of which the tasks have their part."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from finetune.machine.packages import import_own


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    status: int = import_own("tasks.__main__").main(argv)
    return status


if __name__ == "__main__":
    sys.exit(main())
