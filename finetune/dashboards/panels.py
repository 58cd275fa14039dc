"""The arrangement of the workspace and of the report, as plain data.

Its names are those that runs log (`SECTION/NAME`, see `training.monitor`) and the keys of their
summary and settings; a test holds them against a run's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finetune.metrics.semantics import MEANINGS

SCORES = tuple(name for name, of in MEANINGS.items() if of.better == "higher")
"""Last words of the names of scores; the app's patterns cannot say "all but the losses"."""

Kind = Literal["lines", "bars", "scatter", "table", "chart", "columns", "importance", "differences"]


@dataclass(frozen=True)
class Panel:
    """A plot or table."""

    title: str
    """What is above it."""
    names: tuple[str, ...] = ()
    """What it shows: logged values, keys of the summary or settings, a table's name."""
    kind: Kind = "lines"
    """Lines over steps, bars, a scatter of two names, a table, a confusion matrix, parallel
    columns, the importance of settings for one name, or the differences of settings."""
    pattern: str | None = None
    """In place of names: a pattern of theirs (no look-ahead: the app's server has none)."""
    log: bool = False
    """A logarithmic axis."""
    bands: bool = False
    """Areas in place of lines: what is frozen, as bands."""
    over: str = "step"
    """The axis of lines."""
    group: str | None = None
    """The key by which its runs are put together, as mean and standard deviation."""


@dataclass(frozen=True)
class Section:
    """Panels that belong together."""

    title: str
    """Its heading."""
    panels: tuple[Panel, ...]
    """In their order."""
    is_open: bool = True
    """Whether the workspace shows it unfolded."""


@dataclass(frozen=True)
class Chapter:
    """A part of the report: text, the runs that it is about, and panels."""

    title: str
    """Its heading."""
    text: str
    """What to look for."""
    panels: tuple[Panel, ...]
    """In their order."""
    jobs: tuple[str, ...] = ("fine-tune",)
    """Job types of its runs."""
    group: tuple[str, ...] = ()
    """Keys by which the table of runs is grouped."""
    columns: tuple[str, ...] = ()
    """Columns of the table of runs."""


_VAL_SCORES = f"^val/.*({'|'.join(SCORES)})$"
_BOUNDARY = Panel("Frozen layer groups", ("frozen/boundary",), bands=True)
_PHASE = Panel("Phase of the plan", ("frozen/phase",), bands=True)
_RATES = Panel("Learning rate of each layer group", pattern="^lr/", log=True)
_NORMS = Panel("Gradient norm of each layer group", pattern="^train/gradient_norm/", log=True)
_ENTROPY = Panel(
    "Training loss and the corpus's unigram entropy", ("train/loss", "train/unigram_entropy")
)

SECTIONS = (
    Section(
        "Validation",
        (
            Panel("Scores", pattern=_VAL_SCORES),
            Panel("Validation loss", ("val/loss",)),
            Panel("Perplexity", ("val/perplexity",), log=True),
            Panel("Best checkpoint: the headline metric", ("best/headline",), "bars"),
        ),
    ),
    Section(
        "Training",
        (
            _ENTROPY,
            Panel("Tokens predicted correctly", pattern=r"^train/(masked|next_token)_accuracy$"),
            Panel("Gradient norm", ("train/gradient_norm",), log=True),
            _NORMS,
        ),
    ),
    Section("Learning rates", (_RATES,)),
    Section("Unfreezing", (_BOUNDARY, _PHASE)),
    Section(
        "Performance",
        (
            Panel("Tokens a second", ("perf/tokens_per_second",)),
            Panel("Examples a second", ("perf/examples_per_second",)),
            Panel("Padding, fraction of positions", ("perf/padding",)),
            Panel("Fraction of the matrix-product ceiling", ("perf/ceiling_share",)),
            Panel("Peak memory, GiB", ("perf/peak_gib",)),
        ),
        is_open=False,
    ),
    Section(
        "Data",
        (
            Panel("Examples seen", ("data/examples_seen",)),
            Panel("Tokens seen", ("data/tokens_seen",)),
            Panel("Epochs", ("epoch",)),
        ),
        is_open=False,
    ),
    Section(
        "Answers",
        (
            Panel("Hardest examples", ("predictions/validation",), "table"),
            Panel("Confusion matrix", ("confusion/validation",), "chart"),
            Panel("Scores of each class", ("classes/validation",), "table"),
            Panel("Spans, the best first", ("nbest/validation",), "table"),
            Panel("Options", ("options/validation",), "table"),
        ),
        is_open=False,
    ),
)
"""The workspace; panels of names that no run has stay empty, and others are made by the app."""

CHAPTERS = (
    Chapter(
        "Pretraining",
        "The loss must fall below the entropy of the corpus's token frequencies: above it the "
        "encoder has learnt how frequent tokens are and nothing else. Over tokens, runs of "
        "different batch sizes can be compared.",
        (
            _ENTROPY,
            Panel("Training loss over tokens", ("train/loss",), over="data/tokens_seen"),
            Panel("Tokens predicted correctly", pattern=r"^val/(masked|next_token)_accuracy$"),
            Panel("Tokens a second", ("perf/tokens_per_second",)),
            Panel("Fraction of the matrix-product ceiling", ("perf/ceiling_share",)),
            Panel("Learning rate of each layer group", pattern="^lr/"),
        ),
        jobs=("pretrain", "adapt"),
        columns=("summary:best/loss", "summary:best/perplexity", "summary:train_seconds"),
    ),
    Chapter(
        "Tasks",
        "The headline metric of each run's best checkpoint, scored again on the validation split; "
        "a bar is the mean of a group of seeds. A degenerate run, which gives every example the "
        "same answer, has `collapsed` true.",
        (
            Panel("Headline metric", ("best/headline",), "bars", group="run.group"),
            Panel("Scores while training", pattern=_VAL_SCORES),
            Panel(
                "Minutes and score", ("summary.train_seconds", "summary.best/headline"), "scatter"
            ),
            Panel("Hardest examples", ("predictions/validation",), "table"),
            Panel("Confusion matrix", ("confusion/validation",), "chart"),
        ),
        group=("config.task", "run.group"),
        columns=("summary:best/headline", "summary:collapsed", "summary:train_seconds"),
    ),
    Chapter(
        "Seeds and comparisons",
        "Runs of one group differ in their seed alone: the line is their mean, the band one "
        "standard deviation. Whether a difference between groups is more than chance, "
        "`finetune compare` tests.",
        (
            Panel("Scores, mean and deviation of seeds", pattern=_VAL_SCORES, group="run.group"),
            Panel("Training loss, mean and deviation", ("train/loss",), group="run.group"),
            Panel(
                "Settings and headline metric",
                (
                    "config.optimizer.learning_rate",
                    "config.optimizer.rate_decay",
                    "config.unfreezing.unfreeze",
                    "config.head.pooling",
                    "summary.best/headline",
                ),
                "columns",
            ),
            Panel("What matters for the headline metric", ("best/headline",), "importance"),
            Panel("Settings that differ", (), "differences"),
        ),
        group=("run.group",),
        columns=("summary:best/headline", "config:seed.value"),
    ),
    Chapter(
        "Unfreezing",
        "The boundary is the number of layer groups that are frozen, from the embeddings up; "
        "groups below it have no gradient. Where the score rises before the boundary falls, the "
        "head alone has learnt it.",
        (
            _BOUNDARY,
            Panel("Scores", pattern=_VAL_SCORES),
            _RATES,
            _NORMS,
            Panel(
                "Headline metric by policy",
                ("best/headline",),
                "bars",
                group="config.unfreezing.unfreeze",
            ),
            Panel(
                "Examples a second by policy",
                ("perf/examples_per_second",),
                group="config.unfreezing.unfreeze",
            ),
        ),
        group=("config.unfreezing.unfreeze",),
        columns=("summary:best/headline", "config:unfreezing.value.unfreeze"),
    ),
)
"""The report."""
