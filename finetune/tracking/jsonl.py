"""Write RUN/metrics.jsonl while a run trains, and RUN/metrics.csv from it at the end."""

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
    """Writes RUN/metrics.jsonl: a JSON object for each step, with `step`, `epoch` and named values.

    A line is in the file as soon as it is logged; values logged later at the same step are added to
    it. Floats are written exactly, NaN and infinity as null. A resumed run removes the lines of the
    steps that it repeats.
    """

    def __init__(
        self, run_dir: Path, *, resume: bool = False, steps: int = 0, as_csv: bool = False
    ) -> None:
        """Open the file; a resumed run keeps its content.

        Args:
            run_dir: The run folder.
            resume: Whether existing lines stay.
            steps: Optimizer steps already made by a resumed run; the lines of later steps are
                removed.
            as_csv: Whether `metrics.csv` is written beside it when the run ends.
        """
        super().__init__()
        self.path = run_dir / METRICS
        self._line: dict[str, Any] = {}
        self._start = 0  # offset of the last line in bytes
        self._as_csv = as_csv
        self._make_file(steps if resume else None)

    @property
    def name(self) -> str | None:
        """None, so that Lightning makes no folder of this name for checkpoints."""
        return None

    @property
    def version(self) -> str | None:
        """None, for the same reason."""
        return None

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the settings are in RUN/config.yaml."""

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
        # The last line is written again in place: Lightning logs the values of one step in several
        # calls, and a reader wants one line for each step.
        with named(self.path), self.path.open("r+b") as file:
            file.seek(self._start)
            file.write(line.encode())
            file.truncate()

    @rank_zero_only
    def close(self) -> None:
        """Write the table if requested; the lines are in the file already."""
        if self._as_csv:
            write_csv(self.path, self.path.with_suffix(".csv"))

    @rank_zero_only
    def _make_file(self, steps: int | None) -> None:
        """Create the file, or cut it after a step: values logged there are added to its line."""
        resumed = steps is not None and self.path.exists()
        lines = _complete_lines(self.path) if resumed else []
        lines = [line for line in lines if json.loads(line)["step"] <= (steps or 0)]
        if lines:
            self._line, self._start = json.loads(lines[-1]), sum(map(len, lines[:-1]))
        write_bytes(self.path, b"".join(lines))


def write_csv(lines: Path, table: Path) -> None:
    """Write the lines of a metrics.jsonl as a table: a row for each step, a column for each name.

    Args:
        lines: The file to read.
        table: The file to write; a value that a step does not have is an empty cell.
    """
    rows = [json.loads(line) for line in _complete_lines(lines)]
    names = dict.fromkeys(name for row in rows for name in row)
    with new_file(table) as file:
        writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _complete_lines(path: Path) -> list[bytes]:
    """The lines of a file, without a last one that a crash cut off."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _step_first(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "epoch") if name in line} | line


def _number(value: Any) -> float | int | None:
    """A logged value, or a tensor of one number, as a JSON number; None for NaN and infinity."""
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def plain(value: Any) -> Any:
    """Convert nested settings or results to the types of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
