"""What a run is made from: its settings, and its inputs by content (RUN/inputs.json).

A resumed run has the settings that it began with, and reads the same examples or corpus,
tokenizer and encoder. Where their files lie, how they are packed and when they were written does
not matter. inputs.json is written first: what has settings in its folder can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finetune.checkpoints.seed_folders import CONFIG
from finetune.errors import ConfigError
from finetune.files.writing import write_json

SESSION_KEYS = (
    "resume",
    "overwrite",
    "dry_run",
    "find_lr",
    "out",
    "tracking",
    "trainer.progress",
    "loader.num_workers",
    "checkpoints.checkpoint_every_steps",
    "cache_dir",
    "caching.cache",
    "caching.cache_gib",
)
"""Settings that may differ when a run is resumed: they change no number."""
FILE = "inputs.json"
"""Name of an input -> its `digest` and `place`."""


@dataclass(frozen=True)
class Input:
    """Something that a run reads."""

    digest: str
    """Hash of its content."""
    place: str
    """Where it is, for people."""


Inputs = Mapping[str, Input]
"""Name, such as `train examples` -> what it is."""


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
    was = _flat(asdict(before))  # type: ignore[call-overload]
    for key, value in _flat(asdict(now)).items():  # type: ignore[call-overload]
        may_differ = any(key == free or key.startswith(free + ".") for free in SESSION_KEYS)
        if not may_differ and was[key] != value:
            raise ConfigError(
                f"{folder}: {key} was {was[key]!r} when the run began and is {value!r} now; "
                f"resume with the settings of its {CONFIG}, or start another run"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result
