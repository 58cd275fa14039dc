"""What is printed about a label column before training: classes with their counts, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from finetune.task.interface import Label
from tasks.own.classify_config import ClassifyConfig
from tasks.own.columns import Columns
from tasks.own.label_column import MARKS, LabelColumn, Rows
from tasks.own.label_kinds import (
    CLASSES,
    MULTI_LABEL,
    REGRESSION,
    class_order,
    is_code,
    whole_name,
)

MOST_CLASSES = 20
"""So many classes are listed; results.json has the counts of all."""


def notes_of(
    labels: Mapping[str, Sequence[Label | None]],
    rows: Rows,
    column: LabelColumn,
    config: ClassifyConfig,
    *,
    classes: Sequence[str],
    columns: Columns | None,
) -> list[str]:
    """Say which columns are read, what the labels of each split are, and what may be a misreading.

    Args:
        labels: Split -> the labels of its rows; None where a test file withholds them.
        rows: The training rows, each with a label.
        column: How labels are read.
        config: What the user says of them.
        classes: Their names; none for numbers.
        columns: Those of the texts and the label; None for a public set.
    """
    label_column = "" if columns is None else columns.label or ""
    known = {split: own for split, own in labels.items() if None not in own}
    if column.kind == REGRESSION:
        lines = {split: _numbers(own, column) for split, own in known.items()}
    else:
        counts = {split: class_counts(own, classes) for split, own in known.items()}
        lines = {split: _classes(own, column) for split, own in counts.items()}
    notices = [f"labels: {lines.pop('train')}"]
    notices += [f"labels of {split}: {line}" for split, line in lines.items()]
    if columns is None:
        return notices
    parts = {"text": columns.text, "pair": columns.pair, "label": label_column}
    read = ", ".join(f"{part} = {name}" for part, name in parts.items() if name)
    notices.insert(0, f"columns: {read}")
    if column.kind == REGRESSION:
        return notices
    warnings = _warnings(counts["train"], rows, column, config, label_column)
    return notices + [f"warning: {warning}" for warning in warnings]


def _warnings(
    counts: Mapping[str, int],
    rows: Rows,
    column: LabelColumn,
    config: ClassifyConfig,
    label_column: str,
) -> list[str]:
    raw = {row.label for row in rows if isinstance(row.label, str | float)}
    warnings = [*_singles(counts), *_like_the_header(counts, label_column), *_twins(counts)]
    if column.kind == CLASSES and config.kind == "auto":
        warnings += [*_decimals(raw, column), *_codes(raw), *_joined(counts)]
    if config.missing != "class" and (present := [mark for mark in MARKS if mark in counts]):
        warnings.append(
            f"'{present[0]}' is read as a class; if it marks rows without a label, --missing "
            "drop leaves them out"
        )
    return warnings


def class_counts(labels: Iterable[Label | None], classes: Sequence[str]) -> dict[str, int]:
    """Count the rows of each class.

    Args:
        labels: A class or several of each row; None where there is none.
        classes: All names.
    """
    counts = dict.fromkeys(classes, 0)
    for label in labels:
        names = label if isinstance(label, tuple) else (label,) if isinstance(label, str) else ()
        for name in names:
            counts[str(name)] += 1
    return counts


def _singles(counts: Mapping[str, int]) -> list[str]:
    names = [name for name, count in counts.items() if count == 1]
    if not names:
        return []
    if len(names) == 1:
        return [f"class '{names[0]}' has one example"]
    listed = ", ".join(f"'{name}'" for name in names[:5]) + (", …" if len(names) > 5 else "")
    return [f"{len(names):,} classes have one example each: {listed}"]


def _like_the_header(counts: Mapping[str, int], label_column: str) -> list[str]:
    same = [name for name in counts if name.casefold() == label_column.strip().casefold()]
    return [f"class '{name}' is named as the column '{label_column}' is" for name in same]


def _twins(counts: Mapping[str, int]) -> list[str]:
    """Classes that differ in capitals, spaces or the spelling of a number only."""
    by_form: dict[str, list[str]] = {}
    for name in counts:
        form = whole_name(name) or " ".join(name.casefold().split())
        by_form.setdefault(form, []).append(name)
    return [
        f"classes {' and '.join(repr(name) for name in names)} differ in spelling only"
        for names in by_form.values()
        if len(names) > 1
    ]


def _decimals(raw: Iterable[str | float], column: LabelColumn) -> list[str]:
    decimals = sorted(str(one) for one in raw if isinstance(one, float) or set(".,") & set(one))
    if not column.is_whole or not decimals:
        return []
    return [
        f"labels are whole numbers with decimals, such as {decimals[0]}, and are read as classes; "
        "--kind regression reads them as amounts"
    ]


def _codes(raw: Iterable[object]) -> list[str]:
    codes = sorted(str(one) for one in raw if is_code(one))
    if not codes:
        return []
    return [
        f"labels such as '{codes[0]}' are read as names of classes; --kind regression reads them "
        "as numbers"
    ]


def _joined(counts: Mapping[str, int]) -> list[str]:
    """Classes that look like several others, joined."""
    for separator in (",", ";", "|"):
        for name in counts:
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and all(part in counts for part in parts):
                return [
                    f"class '{name}' looks like {len(parts)} classes; --separator "
                    f"'{separator}' reads it so"
                ]
    return []


def _classes(counts: Mapping[str, int], column: LabelColumn) -> str:
    """The classes and their counts in words, in `class_order`."""
    names = class_order(counts)
    listed = ", ".join(f"{name} {counts[name]:,}" for name in names[:MOST_CLASSES])
    more = f", … ({len(names) - MOST_CLASSES:,} more)" if len(names) > MOST_CLASSES else ""
    several = ", several a row" if column.kind == MULTI_LABEL else ""
    return f"{len(names):,} classes{several}: {listed}{more}"


def _numbers(labels: Iterable[Label | None], column: LabelColumn) -> str:
    """The range and the mean of a regression's labels in words."""
    numbers = [label for label in labels if isinstance(label, float)]
    commas = ", with the comma as decimal sign" if column.decimal_commas else ""
    return (
        f"numbers from {min(numbers):g} to {max(numbers):g}, mean {fmean(numbers):.4g} "
        f"(regression{commas})"
    )
