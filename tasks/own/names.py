"""Names of a user's own data: `reviews-sentiment` of reviews.csv and its column `sentiment`.

Without them all tables would be one task, `classify/own`, and stand beside each other in reports.
"""

from __future__ import annotations

import re
from pathlib import Path

OWN = "own"
"""The name of data that have none, as earlier versions recorded them."""
GENERIC = ("data", "dataset")
"""Names of files that say nothing: the folder's name is taken."""
SPLIT = re.compile(r"(^|[-_. ])train(ing)?$|^train(ing)?[-_. ]", re.IGNORECASE)
"""The split in a file's name: `reviews_train.csv`, `train-reviews.csv`."""
LONGEST = 50
"""Characters of a name: twenty label columns make no name that anybody reads."""
USUAL_LABELS = ("label", "labels")
"""Names of label columns that say nothing."""


def slug(text: str) -> str:
    """A text as a name: letters, digits, `.`, `-` and `_`, at most `LONGEST` of them."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:LONGEST].strip("-.") or OWN


def name_of(file: Path, label_column: str | None = None) -> str:
    """The name of data that the user has not named.

    >>> name_of(Path("reviews.csv"), "sentiment"), name_of(Path("data/spam/train.jsonl"), "label")
    ('reviews-sentiment', 'spam')

    Args:
        file: The training file.
        label_column: Its column of labels, if it is a table.
    """
    stem = SPLIT.sub("", file.name.split(".")[0], count=1)
    if not stem or stem.lower() in GENERIC:
        stem = file.absolute().parent.name
    parts = [stem] if label_column in (None, *USUAL_LABELS) else [stem, str(label_column)]
    return slug("-".join(parts))
