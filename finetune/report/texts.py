"""The texts of examples: those in the run's folder, else read again from the task's data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError
from finetune.report.collecting import ReportedRun
from finetune.runs.families import make_task
from finetune.runs.fits import read_fit
from finetune.task.interface import Example, Task

Key = int | str


@dataclasses.dataclass
class Texts:
    """Reads each split of each task once, however many runs ask for it."""

    data: Path | None = None
    """A folder to look in, in place of the one that the run was made with."""
    _read: dict[Any, dict[Key, Example]] = dataclasses.field(default_factory=dict)

    def of(self, run: ReportedRun, split: str, ids: Iterable[Key]) -> dict[Key, Example]:
        """Examples of a split by id: those saved with the run, if all that are asked for are there.

        Args:
            run: The run.
            split: The split.
            ids: Of the examples to show.

        Raises:
            ConfigError: The run's settings cannot be read, or its data came from the hub.
            DataError: A file is not where it was, or is not in its official form.
        """
        if self.data is None:
            saved: dict[Key, Example] = {}
            for seed in run.seeds:
                saved |= seed.folder.read_texts(split)
            if saved.keys() >= set(ids):
                return saved
        task, key = self._task(run)
        if (key, split) not in self._read:
            self._read[key, split] = {example.id: example for example in task.examples(split)}
        return self._read[key, split]

    def _task(self, run: ReportedRun) -> tuple[Task, Any]:
        folders = (run.folder, *(seed.folder for seed in run.seeds))
        folder = next((one for one in folders if one.config_file.is_file()), run.folder)
        settings = read_fit(folder.path)
        if self.data is not None:
            settings = dataclasses.replace(settings, data=str(self.data))
        if not (settings.data or settings.files() or os.environ.get("FINETUNE_DATA")):
            raise ConfigError(
                f"{settings.task}: the data came from the hub, which a report does not ask; name a "
                "folder with the official files by --data"
            )
        files = tuple(sorted(settings.files().items()))
        return make_task(settings), (settings.task, settings.data, files)
