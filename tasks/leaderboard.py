"""What GLUE's leaderboard takes: eleven files in one zip, each held to its official form.

Pure but for the one zip that it reads or writes; where the answers come from is not known here
(`tasks/submit.py`). A problem is a line of text that names file and line.
"""

from __future__ import annotations

import math
import re
import stat
import statistics
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from finetune.errors import nearest
from finetune.files.writing import new_file
from tasks.glue.table import GLUE, HIGHEST_SCORE, LOWEST_SCORE, GlueRow

HEADER = "index\tprediction"
MOST_PROBLEMS = 20
"""Lines that are reported of one file; a wrong column would otherwise give one a row."""
LARGEST_FILE = 64 * 2**20
"""Bytes; the largest file of a real submission, QQP's, has about four million."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: the same answers give the same bytes at any time."""

_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Form:
    """One file of the eleven."""

    name: str
    """`MNLI-m.tsv`."""
    task: str
    """The task's name in the table, `mnli`."""
    split: str
    """The task's split that it answers."""
    rows: int
    """Answers in it: the examples of the official test file."""
    legal: tuple[str, ...]
    """The labels as the leaderboard writes them; empty: a number from 0 to 5."""


def _forms(row: GlueRow) -> Iterator[Form]:
    for split, form in row.splits.items():
        if form.submission is not None:
            legal = row.written or row.labels
            yield Form(form.submission, row.name, split, form.rows, legal)


FORMS: dict[str, Form] = {form.name: form for row in GLUE.values() for form in _forms(row)}
"""File name -> its form, in the table's order."""


def missing_files(names: Iterable[str]) -> list[str]:
    """The files of the eleven that are not among these."""
    there = set(names)
    return [name for name in FORMS if name not in there]


def file_problems(name: str, content: bytes, *, allow_subset: bool = False) -> list[str]:
    """Hold one file to its form: header, indices from 0 in order, legal labels, official count.

    Args:
        name: One of `FORMS`.
        content: The file.
        allow_subset: Take fewer rows than the official test file has, but not none.

    Returns:
        A line a problem, `CoLA.tsv:7: expected …, found …`; of many, the first 20.
    """
    form = FORMS[name]
    problems, lines = _lines(content)
    problems += _row_problems(form, lines)
    messages = [f"{name}:{number}: {problem}" for number, problem in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        messages.append(f"{name}: and {len(problems) - MOST_PROBLEMS:,} more problems like these")
    return messages + _count_problems(form, len(lines) - 1, allow_subset=allow_subset)


Problem = tuple[int, str]
"""A line, from 1, and what is wrong with it."""


def _lines(content: bytes) -> tuple[list[Problem], list[str]]:
    """Decode a file and cut it into lines; what is amiss with its bytes is reported once."""
    problems: list[Problem] = []
    if content.startswith(b"\xef\xbb\xbf"):
        problems.append((1, "expected the header, got a byte order mark before it"))
        content = content[3:]
    if b"\r" in content:
        line = 1 + content.count(b"\n", 0, content.index(b"\r"))
        problems.append((line, "expected line ends of one line feed, got a carriage return"))
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        problems.append((line, f"expected UTF-8, got the byte 0x{content[error.start]:02x}"))
        text = content.decode("utf-8", errors="replace")
    return problems, text.removesuffix("\n").split("\n")


def _row_problems(form: Form, lines: list[str]) -> list[Problem]:
    problems: list[Problem] = []
    if lines[0] != HEADER:
        problems.append((1, f"expected the header index<TAB>prediction, got {lines[0][:60]!r}"))
    due = 0
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        if len(cells) != 2:
            problems.append((number, f"expected index<TAB>prediction, got {line[:60]!r}"))
            due += 1
            continue
        index, label = cells
        if index != str(due):
            problems.append((number, f"expected the index {due}, got {index[:60]!r}"))
        # Count on from what is there, so that one row that is left out is one problem.
        due = int(index) + 1 if _INDEX.fullmatch(index) and len(index) < 12 else due + 1
        if not _is_legal(label, form):
            legal = f"one of {', '.join(form.legal)}" if form.legal else "a number from 0 to 5"
            problems.append((number, f"expected {legal}, got {label[:60]!r}"))
    return problems


def _is_legal(label: str, form: Form) -> bool:
    if form.legal:
        return label in form.legal
    number = float(label) if _NUMBER.fullmatch(label) else math.nan
    return LOWEST_SCORE <= number <= HIGHEST_SCORE


def _count_problems(form: Form, rows: int, *, allow_subset: bool) -> list[str]:
    if rows == form.rows or (allow_subset and 0 < rows < form.rows):
        return []
    hint = "; --allow-subset lets fewer through" if 0 < rows < form.rows else ""
    return [f"{form.name}:{rows + 1}: expected {form.rows:,} rows, got {rows:,}{hint}"]


def missing_problems(names: Iterable[str]) -> list[str]:
    """A line for each of the eleven files that is not among these."""
    return [
        f"{name}: expected the answers of {FORMS[name].task}, got no such file"
        for name in missing_files(names)
    ]


def zip_problems(
    path: Path, *, allow_subset: bool = False, allow_missing: bool = False
) -> list[str]:
    """Hold anybody's zip to what the leaderboard takes; nothing is unpacked.

    Args:
        path: The zip.
        allow_subset: As for `file_problems`.
        allow_missing: Take a zip that lacks some of the eleven files.

    Returns:
        A line a problem, `glue.zip: CoLA.tsv:7: …`; none if the leaderboard would take it.
    """
    if path.exists() and not path.is_file():
        return [f"{path}: expected a zip, got no regular file"]
    try:
        with zipfile.ZipFile(path) as archive:
            problems = list(_member_problems(archive, allow_subset=allow_subset))
            names = {_base_name(member.filename) for member in archive.infolist()}
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return [f"{path}: expected a zip, got none that can be read: {reason}"]
    if not allow_missing:
        problems += missing_problems(names)
    return [f"{path}: {problem}" for problem in problems]


def _base_name(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).name


def _member_problems(archive: zipfile.ZipFile, *, allow_subset: bool) -> Iterator[str]:
    members = archive.infolist()
    for name, count in Counter(member.filename for member in members).items():
        if count > 1:
            yield f"{name}: expected one file of that name, got {count}"
    for member in members:
        if member.is_dir():
            yield f"{member.filename}: expected files alone, got a folder; zip the files in it"
            continue
        yield from _place_problems(member)
        name = _base_name(member.filename)
        if name in FORMS:
            yield from _content_problems(archive, member, name, allow_subset=allow_subset)


def _place_problems(member: zipfile.ZipInfo) -> Iterator[str]:
    """What is wrong with a member before its content is looked at."""
    path = PurePosixPath(member.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", member.filename):
        yield f"{member.filename}: expected a plain file name, got a path out of the archive"
    elif len(path.parts) > 1:
        yield f"{member.filename}: expected the file at the top of the zip, got it in a folder"
    if stat.S_ISLNK(member.external_attr >> 16):
        yield f"{member.filename}: expected a file, got a link"
    if path.name not in FORMS:
        yield (
            f"{member.filename}: expected no file beside the leaderboard's eleven; "
            f"{nearest(path.name, FORMS)}"
        )


def _content_problems(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, *, allow_subset: bool
) -> Iterator[str]:
    try:
        with archive.open(member) as file:
            content = file.read(LARGEST_FILE + 1)
    # An encrypted member is a RuntimeError, an unknown compression a NotImplementedError.
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        yield f"{member.filename}: expected a readable file, got: {error}"
        return
    if len(content) > LARGEST_FILE:
        yield f"{member.filename}: expected some {FORMS[name].rows:,} rows, got over 64 MiB"
        return
    yield from file_problems(name, content, allow_subset=allow_subset)


def write_zip(path: Path, files: Mapping[str, str]) -> None:
    """Write files into a zip, whole or not at all; the same files give the same bytes.

    Args:
        path: The zip; its folder is made, a file of that name is replaced.
        files: Name -> content.
    """
    with new_file(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name in sorted(files, key=list(FORMS).index):
            archive.writestr(_member(name), files[name].encode())


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, date_time=EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3  # Unix, wherever it is written: the system is part of the bytes
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    return member


def average_metrics(row: GlueRow) -> list[str]:
    """The metrics of a task that its part of the GLUE average is the mean of, as results name them.

    A further validation split stands before its metrics: `validation_mismatched/accuracy`.
    """
    first, *more = [split for split in row.splits if split.startswith("validation")]
    further = [f"{split}/{metric}" for split in more for metric in row.metrics]
    return [*row.metrics, *further]


def missing_metrics(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What the GLUE average lacks: tasks, or metrics of a task (`mnli validation_…/accuracy`)."""
    lacking = []
    for row in _averaged():
        if row.name not in scores:
            lacking.append(row.name)
            continue
        wanted = average_metrics(row)
        lacking += [f"{row.name} {name}" for name in wanted if name not in scores[row.name]]
    return lacking


def glue_average(scores: Mapping[str, Mapping[str, float]]) -> float | None:
    """The mean over the nine tasks of the mean over a task's metrics (Wang et al., 2019, table 4).

    Args:
        scores: Task (`cola`) -> its metrics, as fractions; those of MNLI are of both its splits.
            Other tasks and metrics are passed over.

    Returns:
        A fraction; None while a task or a metric is missing (`missing_metrics` names them).
    """
    if missing_metrics(scores):
        return None
    return statistics.fmean(
        statistics.fmean(scores[row.name][name] for name in average_metrics(row))
        for row in _averaged()
    )


def _averaged() -> list[GlueRow]:
    """The nine tasks: those that have something to train on."""
    return [row for row in GLUE.values() if "train" in row.splits]
