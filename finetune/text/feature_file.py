"""Features on disk: a split is tokenized once and kept as flat arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from finetune.text.features import Features


def save_features(features: Sequence[Features], path: Path) -> None:
    """Write features as flat arrays; the file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    labels = [np.nan if feature.label is None else feature.label for feature in features]
    np.savez(
        temporary,
        input_ids=np.concatenate([np.asarray(f.input_ids, np.int32) for f in features]),
        token_type_ids=np.concatenate([np.asarray(f.token_type_ids, np.uint8) for f in features]),
        lengths=np.array([len(feature.input_ids) for feature in features]),
        labels=np.array(labels, dtype=np.float64),
        integer=np.array(all(isinstance(feature.label, int) for feature in features)),
    )
    temporary.replace(path)


def load_features(path: Path) -> list[Features] | None:
    """Read features back; None where there are none or the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            bounds = np.cumsum(arrays["lengths"])[:-1]
            ids = np.split(arrays["input_ids"], bounds)
            types = np.split(arrays["token_type_ids"], bounds)
            labels, integer = arrays["labels"], bool(arrays["integer"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return [
        Features(row.tolist(), kinds.tolist(), _label(label, integer))
        for row, kinds, label in zip(ids, types, labels.tolist(), strict=True)
    ]


def _label(value: float, integer: bool) -> int | float | None:
    if np.isnan(value):
        return None
    return int(value) if integer else value
