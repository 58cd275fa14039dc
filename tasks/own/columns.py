"""Which columns of a table hold the text, its pair and the label: named, or found by usual names.

The choice is printed. Where two columns would do, nothing is chosen: the error asks
for the flag that names one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finetune.errors import DataError, nearest

TEXTS = (
    *("text", "sentence", "review", "content", "body", "document", "comment", "message", "tweet"),
    *("post", "utterance", "query", "question", "article", "title"),
)
"""Usual names of a single text; the first one goes before all others."""

PAIRS = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("text", "textpair"),
    ("text", "pair"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("question", "passage"),
    ("query", "document"),
    ("query", "passage"),
    ("#1string", "#2string"),
    ("sent1", "sent2"),
)
"""Usual names of a text and its pair."""

LABELS = (
    *("label", "labels", "goldlabel", "class", "category", "categories", "target", "sentiment"),
    *("intent", "topic", "topics", "tag", "tags", "score", "rating", "stars", "similarity"),
    *("quality", "isduplicate", "emotion", "y"),
)
"""Usual names of the label; the first one goes before all others."""

IDS = ("id", "idx", "index", "guid", "uid")
"""Usual names of a row's id."""


_INDICATORS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def as_indicator(raw: Any) -> bool | None:
    """Whether a cell says that a class applies, by 1 or 0; None where it says neither."""
    return _INDICATORS.get(str(raw).strip().lower())


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a task reads, by their names in the file."""

    text: str
    """The text, or the first of a pair."""
    pair: str | None = None
    """The second text; None where there is one text a row."""
    label: str | None = None
    """What is to be answered; None where the table does not say."""

    def chosen(self) -> dict[str, str]:
        """What was chosen, by role, for the report."""
        return {role: name for role, name in asdict(self).items() if name is not None}


def find_columns(
    header: Iterable[str],
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    *,
    where: str,
    labelled: bool = True,
    identity: str | None = None,
) -> Columns:
    """Choose columns: those that are named, and for the others the ones with usual names.

    Case, spaces, `_` and `-` do not matter in a usual name. A pair is looked for only where no text
    column is named. If no usual name is there, the one column left (ids aside) is taken.

    Args:
        header: The columns of the table, or the fields of its first row.
        text: The text column, where the user names it; or several, joined by commas.
        pair: The column of the second text, likewise.
        label: The label column, likewise; or several, one a class.
        where: `FILE:LINE` of the header, for messages.
        labelled: False where the table need not have a label.
        identity: The column of the id, where the user names it.

    Returns:
        The columns; without a label if there is none and it need not be there.

    Raises:
        DataError: A named column is missing or named twice, or none or several would do.
    """
    search = _Search(header, where)
    for name in (text, pair, label, identity):
        search.take_named(name)
    label = label or search.one_of(LABELS, needed=labelled)
    if text is None and pair is None:
        text, pair = search.pair(label)
    text = text or search.one_of(TEXTS) or search.left()
    if text is None:
        raise search.unclear("text", TEXTS)
    search.taken.append(text)
    if label is None and labelled:
        label = search.left()
        if label is None:
            raise search.unclear("label", LABELS)
    return Columns(text, pair, label)


def id_column(header: Iterable[str]) -> str | None:
    """The column that holds the rows' ids, by its usual name."""
    return next((name for name in header if plain(name) in IDS), None)


def names_in(named: str, header: Collection[str]) -> list[str]:
    """The columns that a setting names: one, or several joined by commas."""
    return [named] if named in header else [name.strip() for name in named.split(",")]


def plain(name: str) -> str:
    """A column's name without case, spaces, `_` and `-`."""
    return name.lower().replace(" ", "").replace("_", "").replace("-", "")


class _Search:
    """A header, and what of it has a role already."""

    def __init__(self, header: Iterable[str], where: str) -> None:
        self.row: Mapping[str, Any] = header if isinstance(header, Mapping) else {}
        self.header, self.where = tuple(header), where
        self.taken: list[str] = []

    def take_named(self, named: str | None) -> None:
        for name in () if named is None else names_in(named, self.header):
            self._take(name)

    def _take(self, name: str) -> None:
        if name not in self.header:
            raise DataError(
                f"{self.where}: expected a column '{name}', got {self._listed()}; "
                f"{nearest(name, self.header)}"
            )
        if name in self.taken:
            raise DataError(
                f"{self.where}: expected a column of its own for each of text, pair "
                f"and label, got '{name}' named twice"
            )
        self.taken.append(name)

    def free(self) -> list[str]:
        return [name for name in self.header if name not in self.taken]

    def one_of(self, usual: Sequence[str], *, needed: bool = True) -> str | None:
        """The column with the first of the usual names, or the only one with any of them."""
        matches = [name for name in self.free() if plain(name) in usual]
        first = [name for name in matches if plain(name) == usual[0]]
        if len(chosen := first or matches) > 1 and needed:
            role = "label" if usual is LABELS else "text"
            raise DataError(
                f"{self.where}: expected one {role} column, got {', '.join(chosen)}; "
                f"say which by --{role}-column"
            )
        self.taken.extend(chosen)
        return chosen[0] if len(chosen) == 1 else None

    def pair(self, label: str | None) -> tuple[str | None, str | None]:
        """The first usual pair that is there whole, unless a plain text stands beside it."""
        columns = {plain(name): name for name in self.free() if name != label}
        for first, second in PAIRS:
            if first in columns and second in columns:
                if TEXTS[0] in columns and TEXTS[0] != first:
                    raise DataError(
                        f"{self.where}: expected a text or a pair of texts, got both "
                        f"({self._listed()}); say which by --text-column and --pair-column"
                    )
                self.taken.extend((columns[first], columns[second]))
                return columns[first], columns[second]
        return None, None

    def left(self) -> str | None:
        """The only column without a role, ids aside."""
        names = [name for name in self.free() if name and plain(name) not in IDS]
        return names[0] if len(names) == 1 else None

    def unclear(self, role: str, usual: Sequence[str]) -> DataError:
        return DataError(
            f"{self.where}: expected a {role} column ({', '.join(usual[:4])}, …), got "
            f"{self._listed()}; say which by --{role}-column{self._one_hot(role)}"
        )

    def _one_hot(self, role: str) -> str:
        """How to read several columns of 0 and 1 as classes, where there are such."""
        names = [name for name in self.free() if as_indicator(self.row.get(name)) is not None]
        if role != "label" or len(names) < 2:
            return ""
        return (
            f", or, if each of {', '.join(names)} says by 0 or 1 whether a class applies, by "
            f"--label-column {','.join(names)}"
        )

    def _listed(self) -> str:
        listed = ", ".join(f"'{name}'" for name in self.header) or "none"
        return f"the columns {listed}"
