"""A seeded sample of IMDb as JSONL files, for ULMFiT's grid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.errors import DataError
from finetune.files.writing import write_text
from tasks.own.labelled_texts import LabelledText
from tasks.own.text_set_files import Imdb
from tasks.sources.reader import BadRows

SAMPLE_SEED = 20180518


def sample(rows: Iterable[LabelledText], count: int, part: int) -> list[LabelledText]:
    """Draw rows, as many of each class, in their own order.

    Args:
        rows: All of them.
        count: How many to draw over all classes.
        part: Keys the draw, beside a fixed seed.

    Raises:
        DataError: A class has too few.
    """
    every = list(rows)
    indices: dict[Any, list[int]] = {}
    for index, row in enumerate(every):
        indices.setdefault(row.label, []).append(index)
    each, chosen = count // max(1, len(indices)), []
    for number, label in enumerate(sorted(indices)):
        if len(indices[label]) < each:
            raise DataError(
                f"expected {each:,} texts of class {label} to draw from, got "
                f"{len(indices[label]):,}; lower the --imdb sizes"
            )
        rng = np.random.default_rng([SAMPLE_SEED, part, number])
        chosen += rng.permutation(indices[label])[:each].tolist()
    return [every[index] for index in sorted(chosen)]


def write_imdb(data: Path, folder: Path, sizes: Sequence[int]) -> None:
    """Write a sample of IMDb as JSONL files: train, validation, test, and lm (train and unsup).

    Args:
        data: Folder with imdb/.
        folder: Receives them.
        sizes: Texts of train, validation and test, and unlabelled ones.
    """
    source = Imdb(data)
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for part, (split, size) in enumerate(zip(("train", "validation", "test"), sizes, strict=False)):
        rows = sample(source.rows(split, BadRows()), size, part)
        lines = [{"id": row.id, "text": row.texts[0], "label": row.label} for row in rows]
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        texts += [row.texts[0] for row in rows] if split == "train" else []
    texts += _unlabelled(source, sizes[3])
    lines = [{"text": text} for text in texts]
    write_text(folder / "lm.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _unlabelled(source: Imdb, count: int) -> list[str]:
    if not count:
        return []
    every = list(source.unlabelled())
    order = np.random.default_rng([SAMPLE_SEED, 3]).permutation(len(every))
    return [every[index] for index in sorted(order[:count].tolist())]
