"""Fine-tuning called from Python: settings as keywords, and data in memory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from finetune.checkpoints.seed_folders import DATA
from finetune.errors import ConfigError
from finetune.files.writing import write_bytes
from finetune.jobs import fine_tuning
from finetune.jobs.inputs import refuse_shape
from finetune.machine.processes import is_first_process, join
from finetune.runs.fits import folder_of, full_name
from finetune.runs.folder import RunFolder
from finetune.runs.opening import check_folder
from finetune.runs.results import Results
from finetune.runs.settings import FitRun, fit_settings
from finetune.settings.fields import read
from finetune.settings.keywords import from_keywords
from finetune.text.features.in_memory import rows_of


def fit(
    run: FitRun | str,
    *,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    **settings: Any,
) -> Results:
    """Fine-tune on a task: one run, or one for each seed.

    >>> import finetune
    >>> results = finetune.fit(
    ...     "classify", name="reviews", encoder="runs/pretrained", out="runs/own",
    ...     train="data/train.csv", validation="data/validation.csv", text="text", label="label",
    ...     max_epochs=3, wandb=False,
    ... )
    >>> results["task"], sorted(results["metrics"])
    ('classify/reviews', ['accuracy', 'auc', 'macro_f1', 'macro_precision', 'macro_recall'])

    The settings can also be one object: `finetune.fit(finetune.FitRun(...))`.

    Data in memory are written to RUN/data/train.jsonl and so on, a JSON object for each row. So the
    run can be resumed, evaluated and reported in another process, as if it had read files. Give
    them a `name`, by which lists and reports group runs.

    Args:
        run: The task, such as `classify` or `glue/cola`; or all settings. A plain FitRun leaves
            the settings that a family of tasks adds at their defaults.
        train: The file to train on, or the data themselves: a list of dictionaries, a dictionary
            of columns, a pandas DataFrame or a `datasets.Dataset`. None: the task's official file.
        validation: The same for validation.
        test: The same for the test split.
        text: The column of the text, or of the first text of a pair (`text_column`).
        pair: The column of the second text of a pair (`pair_column`).
        label: The column of the label (`label_column`).
        settings: All other settings by the names of their flags, such as `encoder`, `out`,
            `max_epochs`, `learning_rate`, `seeds=[1, 2, 3]`, `wandb=False`; or whole sections, such
            as `optimizer=OptimizerConfig(...)`.

    Returns:
        The content of RUN/results.json.

    Raises:
        ConfigError: A setting is unknown or wrong, or the folder contains another run.
        CheckpointError: There is no checkpoint to start from.
        DataError: A file is missing, or a row is wrong.
    """
    splits = {"train": train, "validation": validation, "test": test}
    data = {split: value for split, value in splits.items() if value is not None}
    columns = {"text_column": text, "pair_column": pair, "label_column": label}
    settings |= {name: column for name, column in columns.items() if column is not None}
    if isinstance(run, FitRun):
        if data or settings:
            raise ConfigError(
                f"expected a FitRun or settings as keywords, got both ({', '.join(data | settings)}"
                "); put them into the FitRun"
            )
        return fine_tuning.fit(run)
    files = {split: value for split, value in data.items() if _is_path(value)}
    made = _run(run, settings | files)
    with _with_data(made, {s: v for s, v in data.items() if s not in files}) as named:
        return fine_tuning.fit(named)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _run(task: str, settings: Mapping[str, Any]) -> FitRun:
    """The settings of a task from keywords."""
    if not {"encoder", "encoder_from"} & settings.keys():
        raise ConfigError(
            "encoder is missing; give encoder= a run, a Hugging Face folder or name, or 'none'"
        )
    name = full_name(task)
    kind = fit_settings(name)
    keys = from_keywords(kind, {"task": name, **settings})
    made = read(kind, None, keys)
    refuse_shape(made, keys, written=str)
    return made


@contextmanager
def _with_data(run: FitRun, data: Mapping[str, Any]) -> Iterator[FitRun]:
    """The run with its data in files: of its folder, or of a passing one where it has none."""
    if not data:
        yield run
        return
    join(run.trainer.devices)  # which of several processes this is
    run = dataclasses.replace(run, out=folder_of(run))
    folder = RunFolder(Path(str(run.out)))
    keeps = run.dry_run or (run.find_lr and folder.has_started)  # the run there and its data
    if keeps or not is_first_process():  # which alone writes into the folder
        with TemporaryDirectory() as place:
            yield _written(run, data, Path(place) / DATA)
        return
    named = _named(run, data, folder.path / DATA)
    if not run.resume:  # otherwise the run itself compares its settings and inputs
        check_folder(folder, named, resume=False, overwrite=run.overwrite)
    with _put_back(folder) if run.overwrite else nullcontext():
        yield _written(run, data, folder.path / DATA)


@contextmanager
def _put_back(folder: RunFolder) -> Iterator[None]:
    """If the block fails before the run that is there was replaced, it has its data again."""
    before = {path: path.read_bytes() for path in (folder.path / DATA).glob("*.jsonl")}
    stamp = _stamp(folder.config_file)
    try:
        yield
    except BaseException:
        if stamp is not None and _stamp(folder.config_file) == stamp:
            for path, content in before.items():
                write_bytes(path, content)
        raise


def _stamp(file: Path) -> tuple[int, int] | None:
    """What another file under this name does not have; None where there is none."""
    return (file.stat().st_ino, file.stat().st_mtime_ns) if file.is_file() else None


def _paths(data: Mapping[str, Any], place: Path) -> dict[str, Path]:
    return {split: place / f"{split}.jsonl" for split in data}


def _named(run: FitRun, data: Mapping[str, Any], place: Path) -> FitRun:
    """The run that reads its data from there."""
    named = {**run.files(), **_paths(data, place)}
    train, validation, test = (_text(named.get(split)) for split in ("train", "validation", "test"))
    return dataclasses.replace(run, train=train, validation=validation, test=test)


def _written(run: FitRun, data: Mapping[str, Any], place: Path) -> FitRun:
    """The same, when they are there."""
    for split, path in _paths(data, place).items():
        _write(data[split], path, split, keep=run.resume)
    return _named(run, data, place)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _write(data: Any, path: Path, split: str, *, keep: bool) -> None:
    """Write the rows of a split; those of a resumed run must be the ones that it began with."""
    lines = "".join(_line(row) for row in rows_of(data, split))
    content = lines.encode(errors="backslashreplace")  # half a surrogate pair, as JSON writes it
    if keep and path.is_file():
        if path.read_bytes() != content:
            raise ConfigError(
                f"{split}: expected the data that the run began with ({path}), got other rows; "
                "start a new run with another out="
            )
        return
    write_bytes(path, content)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=_as_json) + "\n"


def _as_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
