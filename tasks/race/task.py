"""RACE (Lai et al., 2017): reading comprehension of middle and high school, four options each.

The files are the official ones, `DATA/race/RACE/{train,dev,test}/{middle,high}/N.txt`, or the same
read straight out of `DATA/race/RACE.tar.gz`; without a data folder the hub is asked through
`datasets`. A file is one passage with its questions, as JSON; a passage without questions is passed
over. The id of a question is that of its passage and its number there, from 0: `high1.txt/0`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.errors import CheckpointError, ConfigError, DataError, nearest
from finetune.task.interface import Answer, Example
from finetune.text.features.long_texts import CUT, LongConfig
from tasks.own.options import ChoiceTask
from tasks.race.files import LETTERS, hub_examples, hub_split, questions, read_passage
from tasks.sources.archives import ENDINGS, read_members
from tasks.sources.hub import cache_files
from tasks.sources.reader import (
    BY_DATA,
    UniqueIds,
    check_files,
    check_split,
    check_texts,
    data_folder,
    first_of,
)

LEVELS = {"all": ("middle", "high"), "middle": ("middle",), "high": ("high",)}
"""Name of the task -> the levels that it reads."""
FOLDERS = {"train": "train", "validation": "dev", "test": "test"}
"""Our name of a split -> the official folder."""


def race_task(
    name: str,
    data: Path | None = None,
    files: Mapping[str, Path] | None = None,
    labels: Sequence[str] | None = None,
) -> RaceTask:
    """Find a task by its name: `all`, `middle` or `high`, with or without `race/` before it.

    Args:
        name: The task.
        data: A folder with `race/`; None: the folder that the variable FINETUNE_DATA names, or
            else the hub.
        files: Folders or archives of other names, by split: `{"train": PATH}`; they hold passages
            as `middle/N.txt` and `high/N.txt`.
        labels: The letters in the order of a trained head's logits; None: A, B, C, D.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: RACE has no such task, or no split that a file was named for.
        CheckpointError: The labels are not the four letters.
    """
    key = name.lower().removeprefix("race/")
    if key not in LEVELS:
        raise ConfigError(f"unknown RACE task '{name}'; {nearest(key, LEVELS)}")
    check_files(f"race/{key}", files or {}, FOLDERS)
    letters = tuple(LETTERS if labels is None else labels)
    return RaceTask(key, data_folder(data), files or {}, letters)


@dataclass(frozen=True)
class RaceTask(ChoiceTask):
    """One level of RACE or both, read from files or from the hub."""

    level: str
    """`all`, `middle` or `high`."""
    data: Path | None = None
    """The folder that holds `race/`; None asks the hub."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> folder or archive, before any other place."""
    labels: tuple[str, ...] = LETTERS
    """The four letters in the order of the logits."""
    long: LongConfig = CUT
    """How passages longer than a sequence are read."""

    train_split = "train"
    validation_splits = ("validation",)
    test_splits = ("test",)

    def __post_init__(self) -> None:
        """Refuse the head of another task: its answers would get wrong names."""
        if sorted(self.labels) != sorted(LETTERS):
            raise CheckpointError(
                f"{self.name}: expected a head for the options {', '.join(LETTERS)}, got one for "
                f"{', '.join(self.labels) or 'no options'}; name a run that has learnt them"
            )

    @property
    def name(self) -> str:
        """`race/` and the level."""
        return f"race/{self.level}"

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that are read."""
        return LEVELS[self.level]

    def data_files(self, split: str) -> list[Path]:
        """The folder or the archive of a split; from the hub, the files of its local cache."""
        if split not in self.files and self.data is None:
            return cache_files(self._hub_rows(split))
        return [self._home(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        if split not in self.files and self.data is None:
            return list(hub_examples(self._hub_rows(split)))
        home = self._home(split)
        examples = list(self._passages(home, split))
        for level in self.levels:
            if not any(example.group == level for example in examples):
                raise DataError(
                    f"{home}: expected questions in files such as {level}/1.txt, got none"
                )
        if split == self.train_split:
            check_texts(examples, home)
        return examples

    def _passages(self, home: Path, split: str) -> Iterator[Example]:
        ids = UniqueIds()
        for where, name, content in read_members(home, self._wanted(split)):
            passage = read_passage(content, where, answered=split not in self.test_splits)
            level = name.split("/")[-2]
            if not passage["id"].startswith(level):
                raise DataError(
                    f"{where}: expected an id that starts with '{level}', the level, "
                    f"got '{passage['id']}'"
                )
            ids.add(passage["id"], where)
            yield from questions(passage, level)

    def _wanted(self, split: str) -> Callable[[str], bool]:
        """Whether a file name is that of a passage of this split and of these levels."""
        others = {*FOLDERS.values()} - {FOLDERS[split]}

        def wanted(name: str) -> bool:
            *_, above, level, file = ["", "", *name.split("/")]
            # A dot: what some systems put beside a file when they pack it.
            is_passage = file.endswith(".txt") and not file.startswith(".")
            return is_passage and level in self.levels and above not in others

        return wanted

    def _home(self, split: str) -> Path:
        """The folder or the archive that a split is read from."""
        check_split(self.name, split, FOLDERS)
        is_named = split in self.files
        homes = [self.files[split]] if is_named else list(self._official_homes(split))
        hint = "name a folder or an archive that is there" if is_named else f"{BY_DATA} race/"
        missing = (
            f"expected the {split} passages of {self.name} at {homes[0]} or in RACE.tar.gz, got "
            f"neither; {hint}"
        )
        return first_of(homes, missing, Path.exists)

    def _official_homes(self, split: str) -> Iterator[Path]:
        """Folders first; the folder or the archive itself may be what was given."""
        data = self.data or Path()
        for root in (data / "race" / "RACE", data / "race", data / "RACE", data):
            folder = root / FOLDERS[split]
            if root.name == "RACE" or (folder / self.levels[0]).is_dir():
                yield folder
        for root in (data / "race", data):
            yield from (root / f"RACE{ending}" for ending in ENDINGS)
        if data.is_file():
            yield data

    def _hub_rows(self, split: str) -> Any:
        check_split(self.name, split, FOLDERS)
        return hub_split(self.level, split)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Accuracy, and that of each level where there are both."""
        scores = super().score(answers)
        for level in LEVELS["all"]:
            part = [answer for answer in answers if str(answer["id"]).startswith(level)]
            if 0 < len(part) < len(answers):
                scores[f"accuracy_{level}"] = super().score(part)["accuracy"]
        return scores
