"""The run folder: what a run leaves behind, and who may write into it.

RUN/config.yaml      all that the run used, defaults included
RUN/inputs.json      digests of what it reads (`run_inputs`)
RUN/metrics.jsonl    a line a log step
RUN/log.txt          what was said while it ran
RUN/results.json     what came out
RUN/checkpoints/     best: the weights to keep; last: all that resuming needs
RUN/predictions/     a file a split
RUN/baselines/       answers of elementary baselines: NAME.SPLIT.jsonl
RUN/texts/           texts of the examples that were answered worst, a file a split
RUN/seed-1/ …        the same for each of several seeds; results.json above them is of all
RUN/running.lock     while a process writes here: locked by it (`RunFolder.hold`)

Whoever wants to know anything of a run's files asks `RunFolder`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from finetune.checkpoints.seed_folders import (
    ANY_SEED,
    CHECKPOINTS,
    CONFIG,
    LOG,
    MARKS,
    METRICS,
    PREDICTIONS,
    RATE_CURVE,
    RESULTS,
    RESULTS_BEFORE,
    SUBMISSION,
    TEXTS,
    TOKENIZER,
    seed_folder,
    seed_folders,
)
from finetune.errors import ConfigError, DataError
from finetune.files.cache_folder import cache_folder as cache_folder
from finetune.files.writing import is_temporary, write_text
from finetune.machine.processes import first_process_only, is_first_process
from finetune.runs.inputs import moved_along
from finetune.runs.lock import held, is_running
from finetune.runs.log import error_in, logged
from finetune.runs.log import note as note
from finetune.runs.log import say as say
from finetune.runs.predictions import read_origin, read_predictions, read_texts
from finetune.runs.results import BestSeed, Results, best_run, checked_runs, logged_step, of_several
from finetune.settings import fields as settings
from finetune.settings.renames import with_new_names
from finetune.settings.values import load

if TYPE_CHECKING:
    from finetune.comparison import Run
    from finetune.task.interface import Example

T = TypeVar("T")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, or that of one of its seeds: where its files are and what is in them."""

    path: Path

    @property
    def config_file(self) -> Path:
        """All settings of the run."""
        return self.path / CONFIG

    @property
    def results_file(self) -> Path:
        """What came out."""
        return self.path / RESULTS

    @property
    def metrics_file(self) -> Path:
        """One line for each logged step."""
        return self.path / METRICS

    @property
    def rate_curve_file(self) -> Path:
        """The losses at increasing learning rates, of a search for one."""
        return self.path / RATE_CURVE

    @property
    def marks(self) -> list[Path]:
        """The files that are there of those by which one knows a run."""
        return [file for mark in MARKS if (file := self.path / mark).is_file()]

    @property
    def checkpoints(self) -> Path:
        """Folder of `best` and `last`."""
        return self.path / CHECKPOINTS

    @property
    def submission(self) -> Path:
        """Folder of files in the benchmark's own format."""
        return self.path / SUBMISSION

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer that was trained with the encoder."""
        return self.path / TOKENIZER

    def predictions(self, split: str) -> Path:
        """The answers on a split."""
        return self.path / PREDICTIONS / f"{split}.jsonl"

    def predictions_files(self, begins: str = "") -> list[Path]:
        """The answers on every split whose name begins so, by name."""
        return sorted(self.path.glob(f"{PREDICTIONS}/{begins}*.jsonl"))

    def texts(self, split: str) -> Path:
        """The texts of the examples of a split that were answered worst."""
        return self.path / TEXTS / f"{split}.jsonl"

    def outputs(self) -> dict[str, dict[str, Path]]:
        """Kind, `predictions` or `submission` -> path inside that folder -> file, by name."""
        return {
            kind: {
                path.relative_to(self.path / kind).as_posix(): path
                for path in sorted((self.path / kind).rglob("*"))
                if path.is_file()
            }
            for kind in (PREDICTIONS, SUBMISSION)
        }

    def seed(self, seed: int) -> RunFolder:
        """The folder of one of several seeds."""
        return RunFolder(seed_folder(self.path, seed))

    @property
    def adapted(self) -> RunFolder:
        """The folder beside it of the stage before, in which its encoder is adapted."""
        has_name = self.path.name not in ("", "..")
        return RunFolder(Path(f"{self.path if has_name else os.path.abspath(self.path)}-adapt"))

    @staticmethod
    def of_checkpoint(checkpoint: Path) -> RunFolder | None:
        """The run that a checkpoint's folder, RUN/checkpoints/best, lies in; None for another."""
        is_inside = checkpoint.parent.name == CHECKPOINTS
        return RunFolder(checkpoint.parent.parent) if is_inside else None

    @property
    def seeds(self) -> list[RunFolder]:
        """The folders of seeds that are there, by number; none where it holds one run."""
        return list(map(RunFolder, seed_folders(self.path)))

    @property
    def runs(self) -> list[RunFolder]:
        """The folders that were trained in: those of its seeds, or itself."""
        return self.seeds or [self]

    @property
    def is_run(self) -> bool:
        """Whether it holds what a run leaves, or the folder of one of its seeds does."""
        return self._is_marked or any(seed._is_marked for seed in self.seeds)

    @property
    def has_only_seeds(self) -> bool:
        """Whether its seeds are runs of their own, made one by one: there is no run above them."""
        return not self._is_marked and bool(self.seeds)

    @property
    def _is_marked(self) -> bool:
        return bool(self.marks)

    @property
    def has_started(self) -> bool:
        """Whether it, or the folder of one of its seeds, holds a checkpoint or results."""
        files = (RESULTS, f"{CHECKPOINTS}/*/config.json")
        patterns = (at + part for part in files for at in ("", f"{ANY_SEED}/"))
        found = (path for pattern in patterns for path in self.path.glob(pattern))
        return not all(is_temporary(path.parent) for path in found)

    @property
    def was_finished(self) -> bool:
        """Whether it has results, or had them before it was trained further."""
        return self.results_file.is_file() or (self.path / RESULTS_BEFORE).is_file()

    @property
    def has_weights(self) -> bool:
        """Whether it holds a checkpoint."""
        return any(self.checkpoints.glob("*/config.json"))

    @property
    def is_running(self) -> bool:
        """Whether a process holds it, or the folder of one of its seeds."""
        return any(is_running(place.path) for place in (self, *self.seeds))

    @property
    def planned_seeds(self) -> list[RunFolder]:
        """The folders of all seeds that its settings name; none where it is a run of one seed."""
        return [self.seed(seed) for seed in self.read_config().get("seeds") or ()]

    def one_run(self) -> RunFolder:
        """The run to answer with: itself, or its best seed's, which is then said.

        Raises:
            ConfigError: It is a run of several seeds that has not ended.
            DataError: Its results are damaged.
        """
        seeds = self.planned_seeds or self.seeds
        if not seeds:
            return self
        if not self.results_file.is_file():
            raise ConfigError(
                f"{self.path} contains a run of several seeds; choose one: {seeds[0].path} (the "
                "best one is used when all have ended: continue the run with --resume)"
            )
        best = self.best_seed()
        say(f"{self.path}: several seeds; the best by {best.metric} is seed {best.run.seed}")
        return self.seed(best.run.seed)

    def read_settings(self, cls: type[T]) -> T:
        """Read the settings that the run was made with; files that were moved along are found.

        Args:
            cls: The kind of run that is wanted, a dataclass of settings.

        Raises:
            ConfigError: The folder holds no run, or one of another kind.
        """
        if not self.config_file.is_file():
            raise ConfigError(f"{self.path}: expected a run folder with {CONFIG}, got none")
        known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if not self.read_config().keys() <= known:
            about = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
            wanted = about[:1].lower() + about[1:]
            raise ConfigError(
                f"{self.path}: expected a run that was made to {wanted}, got one of another kind"
            )
        run = settings.read(cls, self.config_file, warn=False)  # a record is not to be edited
        return moved_along(run, self.path)

    def read_config(self) -> dict[str, Any]:
        """Read config.yaml of any kind of run, old names as new ones; {} where there is none.

        Raises:
            ConfigError: It is damaged.
        """
        if not self.config_file.is_file():
            return {}
        content = with_new_names(load(self.config_file))
        if not isinstance(content, dict):
            raise ConfigError(
                f"{self.config_file}: expected settings by name, got {type(content).__name__}"
            )
        return content

    def read_results(self) -> Results:
        """Read results.json.

        Raises:
            DataError: It is missing (the run has not ended) or damaged.
        """
        file = self.results_file
        try:
            results = json.loads(file.read_bytes())
        except FileNotFoundError:
            raise DataError(
                f"{file}: no such file; the run has not ended (continue the run with --resume)"
            ) from None
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{file}: expected JSON, got {error}") from None
        if not isinstance(results, dict):
            raise DataError(f"{file}: expected results by name, got {type(results).__name__}")
        return results

    def read_metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The logged steps, and how many lines are damaged but for a last one that was cut off."""
        if not self.metrics_file.is_file():
            return [], 0
        lines = [logged_step(line) for line in self.metrics_file.read_bytes().splitlines()]
        damaged = sum(line is None for line in lines[:-1])
        return [line for line in lines if line is not None], damaged

    def read_ended(self) -> list[Run]:
        """The runs that results.json is of: one for each seed, in the order of that file.

        Raises:
            DataError: It is missing (the run has not ended) or damaged.
        """
        from finetune.comparison import Run

        results = self.read_results()
        several = of_several(results)
        return [
            Run(
                one["seed"],
                dict(one["metrics"]),
                folder=(place := self.seed(one["seed"]) if several else self).path,
                degenerate=bool(one.get("collapsed")),
                results=one,
                read=place.read_predictions,
            )
            for one in checked_runs(results, self.results_file)
        ]

    def best_seed(self) -> BestSeed:
        """The best run by the metric that chose its checkpoint; the first of equals.

        That is what `--monitor` named, else the headline, the first metric.

        Raises:
            DataError: As for `read_ended`; or there is no metric.
        """
        best = best_run(self.read_ended(), self.read_config().get("monitor"))
        if best is None:
            raise DataError(f"{self.results_file}: expected a metric, got none; evaluate again")
        return best

    def read_predictions(self, split: str) -> list[dict[str, Any]] | None:
        """Read the answers on a split; None where there are none.

        Raises:
            DataError: A line is no answer.
        """
        file = self.predictions(split)
        return read_predictions(file) if file.is_file() else None

    def read_texts(self, split: str) -> dict[int | str, Example]:
        """The examples of a split whose texts lie here, by id; {} where none are of its answers."""
        answers = self.predictions(split)
        origin = read_origin(answers) if answers.is_file() else None
        return {} if origin is None else read_texts(self.texts(split), origin)

    def foreign_splits(self, results: Mapping[str, Any]) -> list[str]:
        """The splits whose predictions are not those that the results were computed from.

        Args:
            results: Those of this folder; of an earlier version they do not say.
        """
        recorded = (results.get("predictions") or {}).items()
        return [
            split
            for split, origin in recorded
            if self.predictions(split).is_file() and _origin(self.predictions(split)) != origin
        ]

    def foreign(self, split: str) -> str:
        """Say of one of `foreign_splits` what is wrong with it, from its path inside the folder."""
        name = self.predictions(split).relative_to(self.path)
        return f"{name} contains other answers than those scored in {RESULTS}"

    def hold(self) -> AbstractContextManager[None]:
        """Keep the folder, made if need be, for this process while the block runs.

        Raises:
            ConfigError: Another process holds it.
        """
        return held(self.path) if is_first_process() else nullcontext()

    def read_error(self) -> str | None:
        """What ended the last session here, if it was an error."""
        return error_in(self.path / LOG)

    def log(self) -> AbstractContextManager[None]:
        """Add to RUN/log.txt what is said while the block runs."""
        return logged(self.path / LOG)

    @first_process_only
    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write results.json."""
        text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(self.results_file, text + "\n")
        (self.path / RESULTS_BEFORE).unlink(missing_ok=True)

    @first_process_only
    def set_results_aside(self) -> None:
        """Have no results while a finished run is trained further: they are the shorter run's."""
        if self.results_file.is_file():
            self.results_file.replace(self.path / RESULTS_BEFORE)

    @first_process_only
    def write_submission(self, contents: Mapping[str, str]) -> None:
        """Write the files in the benchmark's own format: name -> content."""
        RunFolder(self.submission).write_files(contents)

    @first_process_only
    def write_files(self, contents: Mapping[str, str]) -> None:
        """Write small files beside these, each whole or not at all: name -> content."""
        for name, text in contents.items():
            write_text(self.path / name, text)


def _origin(predictions: Path) -> dict[str, str] | None:
    origin = read_origin(predictions)
    return None if origin is None else dataclasses.asdict(origin)
