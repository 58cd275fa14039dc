"""What a run is made from: its settings, and its inputs by content (RUN/inputs.json).

A resumed run has the settings that it began with, and reads the same examples or corpus,
tokenizer and encoder. How these files are packed and when they were written does not matter.
Paths are recorded in full in config.yaml, and as they were typed in inputs.json, which is written
first: what has settings in its folder can be resumed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from finetune.checkpoints.seed_folders import ANY_SEED, CONFIG
from finetune.errors import ConfigError
from finetune.files.unpacking import without_sheet
from finetune.files.writing import write_json

SESSION_KEYS = (
    "resume",
    "overwrite",
    "extend_epochs",
    "dry_run",
    "find_lr",
    "out",
    "name",
    "baselines",
    "tracking",
    "trainer.progress",
    "trainer.devices",
    "trainer.strategy",
    "trainer.log_every_steps",
    "loader.micro_batches",
    "loader.num_workers",
    "checkpoints.checkpoint_every_steps",
    "checkpoints.requeue",
    "cache_dir",
    "data.tokenize_workers",
    "data.local_dir",
    "text.tokenize_workers",
    "text.local_dir",
    "caching.cache",
    "caching.cache_gib",
)
"""Settings that may differ when a run is resumed: they change no number, but for the last digits
and, of how a batch is divided, the dropout."""
FILE = "inputs.json"
"""Name of an input -> its `digest` and `place`."""
READ = ("encoder_from", "tokenizer", "data", "train", "validation", "test", "corpus")
"""Settings that name files and folders to read; `encoder_from` may be a name on the hub."""
WRITTEN = ("out", "cache_dir")
"""Settings that name folders to write."""
R = TypeVar("R")


@dataclass(frozen=True)
class Input:
    """Something that a run reads."""

    digest: str
    """Hash of its content."""
    place: str
    """Where it is, as it was typed; config.yaml has the whole path."""


Inputs = Mapping[str, Input]
"""Name, such as `train examples` -> what it is."""


def with_full_paths(run: R) -> R:
    """The settings with absolute paths, as config.yaml has them: they hold wherever one stands.

    Args:
        run: The settings, a dataclass. What names no file that is there, such as an encoder on
            the hub, stays as it is.
    """
    full = {name: _each(value, os.path.abspath) for name, value in paths_in(run, WRITTEN)}
    for name, value in paths_in(run):
        full[name] = _each(value, lambda place: os.path.abspath(place) if _is(place) else place)
    return dataclasses.replace(run, **full)  # type: ignore[type-var]


def moved_along(run: R, folder: Path) -> R:
    """The settings of a run whose folder may have been moved, with what it reads.

    A file that is not where it was is looked for at the same place relative to the run's folder.
    One inside that folder, such as data that were given in memory, is looked for there first:
    another run may have taken the old place.

    Args:
        run: The settings as they were recorded, a dataclass.
        folder: Where the run's folder is now.
    """
    out = getattr(run, "out", None)
    if out is None:
        return run

    is_seed = Path(out).match(ANY_SEED)
    own = os.path.abspath(os.path.dirname(out) if is_seed else out)  # which has the data of all

    def place_now(place: str) -> str:
        there = os.path.normpath(folder / os.path.relpath(place, out))
        is_own = os.path.commonpath([own, os.path.abspath(place)]) == own
        return there if _is(there) and (is_own or not _is(place)) else place

    return dataclasses.replace(  # type: ignore[type-var]
        run, **{name: _each(value, place_now) for name, value in paths_in(run)}
    )


def paths_in(run: object, names: Sequence[str] = READ) -> Iterator[tuple[str, str | list[str]]]:
    """The settings that name files or folders, of those with these names: name and value."""
    for name in names:
        value = getattr(run, name, None)
        if isinstance(value, str | list) and value != "none":  # `data` may be a section
            yield name, value


def _each(value: str | list[str], change: Callable[[str], str]) -> str | list[str]:
    """A path, or each of several, changed."""
    return change(value) if isinstance(value, str) else [change(one) for one in value]


def _is(place: str) -> bool:
    weighted = place.rpartition(":")[0]  # of a corpus's inputs, such as news:0.7
    return os.path.exists(without_sheet(place)) or os.path.exists(weighted)


def write_inputs(folder: Path, inputs: Inputs) -> None:
    """Write RUN/inputs.json."""
    write_json(folder / FILE, {name: asdict(one) for name, one in inputs.items()})


def read_inputs(folder: Path) -> dict[str, Input] | None:
    """Read RUN/inputs.json; None for a run of an earlier version, which has none.

    Raises:
        ConfigError: It is damaged.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_bytes())
        return {name: Input(**one) for name, one in content.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: expected the digests of what the run reads, got {error}; restore the file, "
            "or remove it to resume without a check of the inputs"
        ) from error


def check_inputs(folder: Path, inputs: Inputs) -> None:
    """Refuse to resume with other inputs than the run began with.

    Args:
        folder: RUN.
        inputs: Those that there are now; all, or those that are known so far.

    Raises:
        ConfigError: One has changed, is new or is gone.
    """
    before = read_inputs(folder)
    if before is None:
        return
    for name, one in inputs.items():
        if name not in before:
            raise _changed(folder, name, one, "new")
        if before[name].digest != one.digest:
            raise _changed(folder, name, one, "changed")
    kinds = {_kind(name) for name in inputs}
    for name, one in before.items():
        if name not in inputs and _kind(name) in kinds:
            raise _changed(folder, name, one, "missing")


def _kind(name: str) -> str:
    """What an input belongs to: all files of a corpus are known together."""
    return name.partition(" ")[0]


def _changed(folder: Path, name: str, one: Input, how: str) -> ConfigError:
    place = "" if name.endswith(one.place) else f" ({one.place})"
    return ConfigError(
        f"{folder}: {how} input since the run began: {name}{place}; restore it to continue with "
        "--resume, or start another run (--overwrite, or another --out)"
    )


def check_settings(folder: Path, before: object, now: object) -> None:
    """Refuse to resume under other settings: the numbers would be those of no run at all.

    Args:
        folder: RUN.
        before: The settings that the run began with, a dataclass.
        now: Those that it is to be resumed with, of the same kind.

    Raises:
        ConfigError: One that changes numbers is another one.
    """
    before, now = with_full_paths(before), with_full_paths(now)
    was = flat(asdict(before))  # type: ignore[call-overload]
    free = (*SESSION_KEYS, *_of_inputs(now))
    for key, value in flat(asdict(now)).items():  # type: ignore[call-overload]
        may_differ = any(key == name or key.startswith(f"{name}.") for name in free)
        if not may_differ and was[key] != value:
            raise ConfigError(
                f"{folder}: {key} was {was[key]!r} when the run began and is {value!r} now; "
                f"resume with the settings of its {CONFIG}, or start another run"
            )


def _of_inputs(run: object) -> tuple[str, ...]:
    """Settings that follow from what a run reads, whose digests are compared in their place."""
    is_given = getattr(run, "encoder_from", "none") != "none"
    folder = () if is_dataclass(getattr(run, "data", None)) else ("data",)  # or a section
    return (*folder, "encoder" if is_given else "encoder.vocab_size")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Settings that are not alike everywhere: key -> value of each; `...` where it has none.

    Those that change no number are left out.
    """
    every = [flat(config) for config in configs]
    found = {}
    for key in dict.fromkeys(key for config in every for key in config):
        values = [config.get(key, ...) for config in every]
        is_free = any(key == name or key.startswith(f"{name}.") for name in SESSION_KEYS)
        if not is_free and any(value != values[0] for value in values):
            found[key] = values
    return found
