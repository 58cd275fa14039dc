"""Features on disk: a split is tokenized once and stored as flat arrays.

What is read back are views of those arrays: a token costs 5 bytes, where lists of Python numbers
would cost some 40.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.files.writing import new_file
from finetune.text.features.pairs import Features

Arrays = dict[str, NDArray[Any]]


def save_features(features: Sequence[Features], path: Path) -> None:
    """Write features as flat arrays; the file appears only when it is complete."""
    arrays: Arrays = {
        "input_ids": np.concatenate([np.asarray(f.input_ids, np.int32) for f in features]),
        "token_type_ids": np.concatenate(
            [np.asarray(f.token_type_ids, np.uint8) for f in features]
        ),
        "lengths": np.array([len(feature.input_ids) for feature in features]),
        "trimmed": np.array([feature.trimmed for feature in features], np.int32),
    }
    for name, column in (("labels", _labels), ("examples", _examples), ("contexts", _contexts)):
        if (array := column(features)) is not None:
            arrays[name] = array
    if features[0].offsets is not None:
        arrays["offsets"] = np.concatenate([f.offsets for f in features if f.offsets is not None])
    if features[0].target is not None:
        targets = [np.asarray(f.target, np.int32) for f in features if f.target is not None]
        arrays["targets"] = np.concatenate(targets)
        arrays["target_lengths"] = np.array([len(target) for target in targets])
    with new_file(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _labels(features: Sequence[Features]) -> NDArray[Any] | None:
    return _column(features, lambda feature: feature.label)


def _examples(features: Sequence[Features]) -> NDArray[Any] | None:
    return _column(features, lambda feature: feature.example)


def _contexts(features: Sequence[Features]) -> NDArray[Any] | None:
    return _column(features, lambda feature: feature.context)


def _column(features: Sequence[Features], value: Callable[[Features], Any]) -> NDArray[Any] | None:
    """One value or row of values a feature, (F,) or (F, n); None where there are none."""
    return None if value(features[0]) is None else np.array([value(f) for f in features])


def load_features(path: Path) -> list[Features] | None:
    """Read features back; None where there are none, or where the file is damaged (a warning)."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as members:
            if members.testzip() is None:  # before any header in it is believed
                file.seek(0)
                with np.load(file) as archive:
                    return list(_rows({name: archive[name] for name in archive.files}))
    except (FileNotFoundError, NotADirectoryError):  # the latter is reported by writing
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        pass
    warnings.warn(f"{path}: this part of the cache is damaged; computing it again", stacklevel=2)
    return None


def _rows(arrays: Arrays) -> Iterator[Features]:
    lengths = arrays["lengths"]
    contexts = arrays.get("contexts")
    offsets: Iterator[Any] = repeat(None)
    if "offsets" in arrays and contexts is not None:
        offsets = iter(_split(arrays["offsets"], contexts[:, 1] - contexts[:, 0]))
    targets: Iterator[Any] = repeat(None)
    if "targets" in arrays:
        targets = iter(_split(arrays["targets"], arrays["target_lengths"]))
    columns = zip(
        _split(arrays["input_ids"], lengths),
        _split(arrays["token_type_ids"], lengths),
        arrays["trimmed"].tolist(),
        _or_none(arrays.get("labels")),
        _or_none(arrays.get("examples")),
        _or_none(contexts),
        strict=False,
    )
    for ids, types, trimmed, label, example, context in columns:
        yield Features(
            ids,
            types,
            # A span is a pair; classes of which any number may be right are a list.
            label=tuple(label) if context is not None and label is not None else label,
            trimmed=trimmed,
            example=example,
            context=None if context is None else (context[0], context[1]),
            offsets=next(offsets),
            target=next(targets),
        )


def _split(array: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    return np.split(array, np.cumsum(lengths)[:-1])


def _or_none(column: NDArray[Any] | None) -> Iterator[Any]:
    return repeat(None) if column is None else iter(column.tolist())
