"""The GLUE table: a row a task; a new row is a new task.

It holds what differs between the tasks and nothing that is done with it; `tasks/glue/task.py`
reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finetune.metrics.semantics import label


@dataclass(frozen=True)
class Split:
    """One file of a task."""

    file: str
    """Its official name in the task's folder."""
    rows: int
    """Examples in the official release; a file with fewer is a subset."""
    submission: str | None = None
    """The leaderboard's file of answers; None where the labels are published."""


@dataclass(frozen=True)
class GlueRow:
    """All in which one GLUE task differs from another."""

    name: str
    """The name on the command line, `sst2`."""
    folder: str
    """The name in the paper and of the folder, `SST-2`."""
    texts: tuple[str, ...]
    """The columns of the text, or of the two texts of a pair."""
    metrics: tuple[str, ...]
    """The official metrics; the first one chooses the checkpoint."""
    splits: Mapping[str, Split]
    """Our name of the split -> its file."""
    label: str = "label"
    """The column of the label."""
    labels: tuple[str, ...] = ()
    """Class names in the hub's order; empty for the one regression task."""
    written: tuple[str, ...] = ()
    """The classes as files write them, in the same order; empty: by their names."""
    index: str = "index"
    """The column of the id, where there is one; otherwise the id is the row's number."""
    headerless: tuple[str, ...] = ()
    """The columns of a file that has no header line."""
    optional: tuple[str, ...] = ()
    """Columns that may follow those of `headerless`, all or none."""
    hub_texts: tuple[str, ...] = ()
    """The columns of the text on the hub where they have other names."""
    short_rows: bool = False
    """The official files hold rows with too few cells, which are skipped and counted."""
    untrained: bool = False
    """Answered by the majority class of the training labels unless training is asked for."""


def _splits(folder: str, train: int, validation: int, test: int) -> dict[str, Split]:
    return {
        "train": Split("train.tsv", train),
        "validation": Split("dev.tsv", validation),
        "test": Split("test.tsv", test, submission=f"{folder}.tsv"),
    }


LOWEST_SCORE, HIGHEST_SCORE = 0.0, 5.0
"""The range of STS-B, the one regression among the tasks."""

_BINARY = ("0", "1")
_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")

GLUE: dict[str, GlueRow] = {
    row.name: row
    for row in (
        GlueRow(
            name="cola",
            folder="CoLA",
            texts=("sentence",),
            metrics=("matthews_correlation",),
            splits=_splits("CoLA", 8_551, 1_043, 1_063),
            labels=("unacceptable", "acceptable"),
            written=_BINARY,
            headerless=("source", "label", "mark", "sentence"),
        ),
        GlueRow(
            name="sst2",
            folder="SST-2",
            texts=("sentence",),
            metrics=("accuracy",),
            splits=_splits("SST-2", 67_349, 872, 1_821),
            labels=("negative", "positive"),
            written=_BINARY,
        ),
        GlueRow(
            name="mrpc",
            folder="MRPC",
            texts=("#1 String", "#2 String"),
            metrics=("accuracy", "f1"),
            splits=_splits("MRPC", 3_668, 408, 1_725),
            label="Quality",
            labels=("not_equivalent", "equivalent"),
            written=_BINARY,
            hub_texts=_PAIR,
        ),
        GlueRow(
            name="stsb",
            folder="STS-B",
            texts=_PAIR,
            metrics=("pearson", "spearman"),
            splits=_splits("STS-B", 5_749, 1_500, 1_379),
            label="score",
            headerless=("genre", "filename", "year", "old_index", "score", *_PAIR),
            optional=("source1", "source2"),
        ),
        GlueRow(
            name="qqp",
            folder="QQP",
            texts=("question1", "question2"),
            metrics=("accuracy", "f1"),
            splits=_splits("QQP", 363_846, 40_430, 390_965),
            label="is_duplicate",
            labels=("not_duplicate", "duplicate"),
            written=_BINARY,
            index="id",
            short_rows=True,
        ),
        GlueRow(
            name="mnli",
            folder="MNLI",
            texts=_PAIR,
            metrics=("accuracy",),
            splits={
                "train": Split("train.tsv", 392_702),
                "validation_matched": Split("dev_matched.tsv", 9_815),
                "validation_mismatched": Split("dev_mismatched.tsv", 9_832),
                "test_matched": Split("test_matched.tsv", 9_796, submission="MNLI-m.tsv"),
                "test_mismatched": Split("test_mismatched.tsv", 9_847, submission="MNLI-mm.tsv"),
            },
            label="gold_label",
            labels=_NLI,
            hub_texts=("premise", "hypothesis"),
        ),
        GlueRow(
            name="qnli",
            folder="QNLI",
            texts=("question", "sentence"),
            metrics=("accuracy",),
            splits=_splits("QNLI", 104_743, 5_463, 5_463),
            labels=_ENTAILMENT,
        ),
        GlueRow(
            name="rte",
            folder="RTE",
            texts=_PAIR,
            metrics=("accuracy",),
            splits=_splits("RTE", 2_490, 277, 3_000),
            labels=_ENTAILMENT,
        ),
        GlueRow(
            name="wnli",
            folder="WNLI",
            texts=_PAIR,
            metrics=("accuracy",),
            splits=_splits("WNLI", 635, 71, 146),
            labels=("not_entailment", "entailment"),
            written=_BINARY,
            untrained=True,
        ),
        GlueRow(
            name="ax",
            folder="diagnostic",
            texts=_PAIR,
            metrics=("matthews_correlation",),
            splits={"ax": Split("diagnostic.tsv", 1_104, submission="AX.tsv")},
            labels=_NLI,
            hub_texts=("premise", "hypothesis"),
        ),
    )
}


def glue_table_text() -> str:
    """The table for a reader: name, official metrics and sizes of each task, 80 columns wide."""
    lines = [_line("task", "metric", "train", "validation", "test")]
    lines += [_line(row.name, _metrics(row), *_sizes(row)) for row in GLUE.values()]
    notes = (
        "",
        "Number of rows in the official files; two numbers: matched and mismatched.",
        "The best checkpoint is chosen by the first metric.",
        "wnli: predicts the most frequent training label, unless --train-wnli is given.",
        "ax: no labels; predicted by a finished run of mnli (--encoder RUN).",
    )
    return "\n".join([*lines, *notes])


def _line(name: str, metric: str, *sizes: str) -> str:
    widths = (8, 14, 14)
    cells = (size.rjust(width) for size, width in zip(sizes, widths, strict=True))
    return "  ".join((name.ljust(5), metric.ljust(22), *cells)).rstrip()


def _metrics(row: GlueRow) -> str:
    return ", ".join(map(label, row.metrics))


def _sizes(row: GlueRow) -> tuple[str, str, str]:
    """Rows of the training, validation and test files."""
    rows: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for name, split in row.splits.items():
        kind = name.partition("_")[0]
        rows[kind if kind in rows else "test"].append(f"{split.rows:,}")
    train, validation, test = (" ".join(sizes) or "-" for sizes in rows.values())
    return train, validation, test
