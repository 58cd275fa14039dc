"""RUN/metrics.jsonl, and RUN/metrics.csv made of it at the end."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from finetune.checkpoints.seed_folders import METRICS
from finetune.files.writing import named, new_file, write_bytes


class JsonlLogger(Logger):
    """Writes RUN/metrics.jsonl: one JSON object a step, with `step`, `epoch` and named values.

    A line is in the file as soon as it is logged; what is logged at the same step later is added to
    it. Floats are written exactly; what is no finite number is null. A resumed run drops the
    lines of the steps that it is about to make again.
    """

    def __init__(
        self, run_dir: Path, *, resume: bool = False, steps: int = 0, as_csv: bool = False
    ) -> None:
        """Open the file, with what is in it if the run is resumed.

        Args:
            run_dir: The run folder.
            resume: Whether lines that are there are kept.
            steps: Optimizer steps that are behind in a resumed run; the lines of later ones
                are dropped.
            as_csv: Whether `metrics.csv` is written beside it when the run ends.
        """
        super().__init__()
        self.path = run_dir / METRICS
        self._line: dict[str, Any] = {}
        self._start = 0  # of the last line, in bytes
        self._as_csv = as_csv
        self._make_file(steps if resume else None)

    @property
    def name(self) -> str | None:
        """No name: checkpoints and other files need no folder for it."""
        return None

    @property
    def version(self) -> str | None:
        """No version, as no name."""
        return None

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: RUN/config.yaml has the settings."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values under their names.

        Args:
            metrics: Name → number; `epoch` is one of them.
            step: Optimizer steps made so far; None for the step of the last line.
        """
        if step is None:
            step = int(self._line.get("step", 0))
        if self._line.get("step") != step:
            self._start, self._line = self.path.stat().st_size, {"step": step}
        self._line |= {name: _number(value) for name, value in metrics.items()}
        line = json.dumps(_step_first(self._line), allow_nan=False) + "\n"
        with named(self.path), self.path.open("r+b") as file:
            file.seek(self._start)
            file.write(line.encode())
            file.truncate()

    @rank_zero_only
    def close(self) -> None:
        """Write the same as a table where that is wanted; the lines are in the file already."""
        if self._as_csv:
            write_csv(self.path, self.path.with_suffix(".csv"))

    @rank_zero_only
    def _make_file(self, steps: int | None) -> None:
        """Make it, or keep the lines up to a step; what is logged there is added to its line."""
        there = _whole_lines(self.path) if steps is not None and self.path.exists() else []
        kept = [line for line in there if json.loads(line)["step"] <= (steps or 0)]
        if kept:
            self._line, self._start = json.loads(kept[-1]), sum(map(len, kept[:-1]))
        write_bytes(self.path, b"".join(kept))


def write_csv(lines: Path, table: Path) -> None:
    """Write the lines of a metrics.jsonl as a table: a row a step, a column a name.

    Args:
        lines: The file to read.
        table: The file to write; a value that a step has not is an empty cell.
    """
    rows = [json.loads(line) for line in _whole_lines(lines)]
    names = dict.fromkeys(name for row in rows for name in row)
    with new_file(table) as file:
        writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file but for one that was cut off by a crash."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _step_first(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "epoch") if name in line} | line


def _number(value: Any) -> float | int | None:
    """Turn a logged value (a tensor of one number too) into what JSON has."""
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def plain(value: Any) -> Any:
    """Turn nested settings or results into what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
