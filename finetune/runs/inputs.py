"""What a run is made from, by content: RUN/inputs.json, which is written before config.yaml.

A resumed run reads what it began with: the same examples or corpus, tokenizer and encoder.
Where their files lie, how they are packed and when they were written does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from finetune.errors import ConfigError
from finetune.files.writing import write_json

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
            f"{path}: expected the digests of what the run reads, found {error}; restore the file, "
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
