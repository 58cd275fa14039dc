"""The settings of a table of texts: which columns are read, and what its labels are."""

from __future__ import annotations

from dataclasses import dataclass, field

from finetune.errors import ConfigError
from finetune.ranges import MOST_SEED, check_values, within
from tasks.own.label_column import MISSING
from tasks.own.label_kinds import KINDS, MULTI_LABEL

CLASS_WEIGHTS = ("none", "balanced")
UNKNOWN_LABEL = ("error", "drop")
TUNED = "tuned"
THRESHOLDS = (TUNED, "fixed")


@dataclass(frozen=True)
class ClassifyConfig:
    """Columns of the table, and the kind of its labels.

    Raises:
        ConfigError: A name is unknown, or two settings contradict each other.
    """

    text_column: str | None = None
    """Column of the text, or the first text of a pair; none = detected by its usual names. Several,
    such as title,body, are joined by a space."""
    pair_column: str | None = None
    """Column of the second text of a pair; with only --text-column, rows are single texts."""
    label_column: str | None = None
    """Column of the label; none = detected by its usual names. Several, such as toxic,insult, are
    columns of 0 and 1, one per class, of which any number may apply (multi_label)."""
    kind: str = field(default="auto", metadata={"words": ("auto", *KINDS)})
    """Kind of task: auto, classes (one per row), multi_label (several per row) or regression."""
    separator: str | None = None
    """Separator between the classes of a row in a multi-label table, such as ';'."""
    class_weights: str = field(default="none", metadata={"words": CLASS_WEIGHTS})
    """none, or balanced: each class is weighted by N / (classes x examples of the class)."""
    missing: str = field(default="error", metadata={"words": MISSING})
    """Rows without a label (an empty cell, null, nan, '-', or -1 beside 0, 1, 2 …) or whose text is
    null: error; drop, which leaves them out and counts them; or class, where '-', -1 and nan are
    names of classes."""
    id_column: str | None = None
    """Column of the row's id; none = detected by its usual names, or the row's number."""
    unknown_label: str = field(default="error", metadata={"words": UNKNOWN_LABEL})
    """Rows to validate or test on whose class the training data lack: error; or drop, which leaves
    them out and counts them."""
    thresholds: str = field(default=TUNED, metadata={"words": THRESHOLDS})
    """How probable a class must be to be given (multi_label): tuned, the threshold of its best F1
    on the validation split; or fixed, 0.5 for every class."""
    positive_class: str | None = None
    """Class whose precision, recall and F1 are metrics too, such as spam."""
    holdout: float | None = within(0, 1, above=True, below=True, default=None)
    """Fraction of the training rows to validate on instead of a file, such as 0.2: drawn within
    each class; rows with equal texts stay together, mirrored pairs too."""
    holdout_seed: int = within(0, MOST_SEED, default=1)
    """Random seed of the rows held out; the same for all seeds of a run, to compare them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        check_values(self)
        if self.separator == "":
            raise ConfigError("separator is empty; name the text between two classes, such as ';'")
        if self.separator is not None and self.kind not in ("auto", MULTI_LABEL):
            raise ConfigError(
                f"separator '{self.separator}' joins the classes of a multi_label table, got "
                f"kind {self.kind}; remove one of the two"
            )
