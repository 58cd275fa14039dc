"""Parts of a benchmark's training files, drawn by a seed: a sample of them, or a fifth held out.

The parts are files of the official form again, so that every contestant reads the same ones. What
belongs together stays together: SQuAD is drawn by article, RACE by passage, GLUE by row.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from tasks.glue.table import GLUE
from tasks.race.files import read_passage
from tasks.sources.archives import read_members
from tasks.sources.reader import decode, first_of, plain_or_gzipped, read_bytes

T = TypeVar("T")
HELD_OUT = 5
"""One part of so many is held out."""


def drawn(items: Sequence[T], count: int | None, seed: int) -> list[T]:
    """A sample in the order of the whole; all where there are no more, or no number is given."""
    if count is None or count >= len(items):
        return list(items)
    chosen = sorted(random.Random(f"draw {seed}").sample(range(len(items)), count))
    return [items[number] for number in chosen]


def fifth(items: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """Split into four fifths to train on and a fifth (at least one) held out, both in order."""
    count = max(1, len(items) // HELD_OUT)
    chosen = set(random.Random(f"held out {seed}").sample(range(len(items)), count))
    numbered = list(enumerate(items))
    rest = [one for n, one in numbered if n not in chosen]
    return rest, [one for n, one in numbered if n in chosen]


def glue_rows(path: Path, task: str) -> tuple[list[str], list[str]]:
    """The header line of a GLUE file (none where it has none) and its rows, as they stand.

    Raises:
        DataError: There is no such file, plain or gzipped.
    """
    missing = f"expected the rows of {task} at {path} (or .gz), got none; name their folder"
    content = read_bytes(first_of(plain_or_gzipped([path]), missing))
    lines = decode(content, path).removesuffix("\n").split("\n")
    row = GLUE[task]
    has_header = {*row.texts, row.label} <= set(lines[0].removesuffix("\r").split("\t"))
    return (lines[:1], lines[1:]) if has_header else ([], lines)


def write_rows(path: Path, header: Sequence[str], rows: Sequence[str]) -> Path:
    """Write a file of such rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("\n".join([*header, *rows]) + "\n").encode())
    return path


def glue_file(data: Path, task: str, split: str) -> Path:
    """The official file of a split."""
    row = GLUE[task]
    return data / "glue_data" / row.folder / row.splits[split].file


def sample_glue(
    data: Path,
    task: str,
    count: int | None,
    folder: Path,
    *,
    development: int | None = None,
    seed: int = 0,
) -> int:
    """Write a task's training rows, or a sample of them, and its development rows below a folder.

    Returns:
        How many rows there are to train on.
    """
    header, rows = glue_rows(glue_file(data, task, "train"), task)
    chosen = drawn(rows, count, seed)
    write_rows(glue_file(folder, task, "train"), header, chosen)
    header, rows = glue_rows(glue_file(data, task, "validation"), task)
    write_rows(glue_file(folder, task, "validation"), header, drawn(rows, development, seed))
    return len(chosen)


def hold_out_glue(
    data: Path, task: str, folder: Path, count: int | None, *, seed: int = 0
) -> tuple[Path, Path]:
    """Write four fifths of a task's training rows and the fifth that is held out."""
    header, rows = glue_rows(glue_file(data, task, "train"), task)
    train, held_out = fifth(drawn(rows, count, seed), seed)
    return (
        write_rows(folder / "train.tsv", header, train),
        write_rows(folder / "held-out.tsv", header, held_out),
    )


def hold_out_squad(file: Path, folder: Path, *, seed: int = 0) -> tuple[Path, Path]:
    """Write four fifths of the articles of a training file and the fifth that is held out."""
    document = json.loads(file.read_text(encoding="utf-8"))
    paths = folder / "train.json", folder / "held-out.json"
    folder.mkdir(parents=True, exist_ok=True)
    for path, articles in zip(paths, fifth(document["data"], seed), strict=True):
        part = {**document, "data": articles}
        path.write_text(json.dumps(part, ensure_ascii=False), encoding="utf-8")
    return paths


Passage = tuple[str, dict[str, Any]]
"""File name and content of a passage of RACE."""


def race_passages(archive: Path, level: str) -> list[Passage]:
    """All training passages of a level, by their names' order."""
    inside = f"train/{level}/"
    members = read_members(archive, lambda name: inside in name)
    passages = [
        (Path(name).name, read_passage(content, where, answered=True))
        for where, name, content in members
    ]
    return sorted(passages, key=lambda passage: passage[0])


def some_questions(passages: Sequence[Passage], count: int | None, seed: int) -> list[Passage]:
    """Passages drawn in a seeded order until they have so many questions, or a few more."""
    if count is None:
        return list(passages)
    shuffled = list(passages)
    random.Random(f"draw {seed}").shuffle(shuffled)
    chosen, questions = [], 0
    for passage in shuffled:
        if questions >= count:
            break
        chosen.append(passage)
        questions += len(passage[1]["questions"])
    return sorted(chosen, key=lambda passage: passage[0])


def write_passages(folder: Path, level: str, passages: Sequence[Passage]) -> Path:
    """Write passages as `folder/LEVEL/N.txt`."""
    (folder / level).mkdir(parents=True, exist_ok=True)
    for name, content in passages:
        (folder / level / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
