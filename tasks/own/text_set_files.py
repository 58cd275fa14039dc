r"""The official files of IMDb, TREC and AG's News, and the part of their training texts held out.

What is changed in the texts: IMDb's `<br />`, which is there for a line break, becomes one; AG's
News has a lone backslash where its source had a line break (`second\team` for two lines; the `n`
that its readme speaks of is not in the files) or before a `$`: each backslash becomes a space.
Broken HTML escapes (`#39;`) stay as the files have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.text.features.rows import read_records
from tasks.own.columns import id_column
from tasks.own.labelled_texts import LabelledText, held_out
from tasks.own.own_table import SPLITS, row_id
from tasks.sources.archives import ENDINGS, read_members
from tasks.sources.reader import BY_DATA, BadRows, decode, first_of, plain_or_gzipped, read_bytes

HELD_OUT = 10
"""One in so many training texts of a class is held out for validation."""
HELD_OUT_SEED = 20180118
"""Keys which ones: the same for every run, whatever its own seed."""


@dataclass(frozen=True)
class TextSet:
    """Two official parts, train and test; a part of train is held out."""

    data: Path
    """The folder that holds the set's own folder."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file, before any other place."""

    name = ""
    splits = SPLITS
    columns = None
    decimal_commas = False

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes in their official or alphabetical order."""
        raise NotImplementedError

    def places(self, part: str) -> list[Path]:
        """Where the files of a part may be, the best first."""
        raise NotImplementedError

    def official(self, part: str) -> Iterator[LabelledText]:
        """The rows of `train` or `test` in their official order."""
        raise NotImplementedError

    @cached_property
    def _train(self) -> tuple[list[LabelledText], list[bool]]:
        rows = list(self.official("train"))
        if not rows:
            raise DataError(f"{self.files('train')[0]}: expected rows of examples, got none")
        labels = [row.label for row in rows]
        return rows, held_out(rows, labels, fraction=1 / HELD_OUT, seed=HELD_OUT_SEED)

    def files(self, split: str) -> list[Path]:
        """The file, folder or archive of a split.

        Raises:
            DataError: There is none.
        """
        part = "test" if split == "test" else "train"
        paths = [self.paths[part]] if part in self.paths else self.places(part)
        missing = (
            f"expected the {part} part of {self.name} at {paths[0]} (or packed), got none; "
            f"{BY_DATA} it"
        )
        return [first_of(paths, missing, Path.exists)]

    def rows(self, split: str, bad: BadRows) -> Iterator[LabelledText]:
        """The rows of a split in their official order."""
        if split == "test":
            yield from self.official("test")
            return
        for row, is_out in zip(*self._train, strict=True):
            if is_out == (split == "validation"):
                yield row

    def read(self, row: Mapping[str, Any], where: str, number: int) -> LabelledText:
        """Read one row of a user's input: its field `text`."""
        text = row.get("text")
        if not isinstance(text, str):
            fields = ", ".join(f"'{name}'" for name in row) or "none"
            raise DataError(f"{where}: expected a field 'text' with text, got {fields}")
        ids = id_column(row)
        identity = number if ids is None else row_id(row[ids], where)
        return LabelledText(where, identity, (text,), None)

    def unlabelled(self) -> Iterator[str]:
        """Texts without a class; none unless the set has some."""
        yield from ()

    def _class(self, name: str, where: str) -> str:
        if self.classes is not None and name not in self.classes:
            raise DataError(f"{where}: expected a class of {_listed(self.classes)}, got '{name}'")
        return name


class Imdb(TextSet):
    """The Large Movie Review Dataset (Maas et al., 2011): a review a file, pos or neg.

    Folders (`aclImdb/train/pos/0_9.txt`), the official archive `aclImdb_v1.tar.gz`, or an archive a
    part: `aclImdb_train.tar.gz`, `aclImdb_test.tar.gz`, `aclImdb_unsup.tar.gz`. An id is the class
    and the file's name.
    """

    name = "classify/imdb"
    classes = ("neg", "pos")

    def places(self, part: str) -> list[Path]:
        """A folder with the part in it, or an archive."""
        homes = (self.data / "imdb", self.data)
        folder = "train" if part == "unsup" else part
        inside = "unsup" if part == "unsup" else "pos"
        folders = [home / "aclImdb" for home in homes] + [self.data]
        unpacked = [home for home in folders if (home / folder / inside).is_dir()]
        names = (f"aclImdb_{part}", "aclImdb_v1", "aclImdb")
        archives = [
            home / f"{name}{ending}" for home in homes for name in names for ending in ENDINGS
        ]
        return [*unpacked, *archives]

    def official(self, part: str) -> Iterator[LabelledText]:
        """The reviews of a part, by the names of their files."""
        for where, name, text in self._reviews(part, "neg|pos"):
            label, stem = name.rsplit("/", 2)[-2:]
            yield LabelledText(where, f"{label}/{stem.removesuffix('.txt')}", (text,), label)

    def unlabelled(self) -> Iterator[str]:
        """The 50,000 reviews without a rating."""
        homes = self.places("unsup")
        missing = f"expected unlabelled reviews at {homes[0]}, got none; {BY_DATA} them"
        home = first_of(homes, missing, Path.exists)
        return (text for _, _, text in _reviews(home, "train", "unsup"))

    def _reviews(self, part: str, kinds: str) -> Iterator[tuple[str, str, str]]:
        (home,) = self.files(part)
        reviews = _reviews(home, part, kinds)
        first = next(reviews, None)
        if first is None:
            raise DataError(f"{home}: expected reviews in {part}/pos and {part}/neg, got none")
        yield first
        yield from reviews


def _reviews(home: Path, part: str, kinds: str) -> Iterator[tuple[str, str, str]]:
    wanted = re.compile(rf"(?:^|/){part}/(?:{kinds})/[^/]+\.txt$")
    for where, name, content in read_members(home, lambda name: bool(wanted.search(name))):
        yield where, name, decode(content, where).replace("<br />", "\n")


class Trec(TextSet):
    """TREC questions (Li and Roth, 2002), a line each: `COARSE:fine text`."""

    FILES = {"train": "train_5500.label", "test": "TREC_10.label"}

    def places(self, part: str) -> list[Path]:
        """The official file, below `trec/` or not, plain or packed."""
        return _packed_too(self.data, "trec", self.FILES[part])

    def label_of(self, written: str) -> str:
        """The class that `COARSE:fine` stands for."""
        raise NotImplementedError

    def official(self, part: str) -> Iterator[LabelledText]:
        """The questions in the file's order."""
        (path,) = self.files(part)
        for number, line in enumerate(_lines(path)):
            where = f"{path}:{number + 1}"
            written, space, text = line.partition(" ")
            coarse, colon, fine = written.partition(":")
            if not (space and coarse and colon and fine):
                raise DataError(f"{where}: expected 'COARSE:fine text', got '{line[:60]}'")
            yield LabelledText(where, number, (text,), self._class(self.label_of(written), where))


class Trec6(Trec):
    """TREC with its six coarse classes."""

    name = "classify/trec6"
    classes = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

    def label_of(self, written: str) -> str:
        """The part before the colon."""
        return written.partition(":")[0]


class Trec50(Trec):
    """TREC with its fifty fine classes, such as `DESC:manner`: `other` alone would be several."""

    name = "classify/trec50"
    classes = None

    def label_of(self, written: str) -> str:
        """Both parts."""
        return written


class AgNews(TextSet):
    """AG's News (Zhang et al., 2015): class number, title, description; read as one text."""

    name = "classify/agnews"
    classes = ("World", "Sports", "Business", "Sci/Tech")

    def places(self, part: str) -> list[Path]:
        """The official file, or a named part of it such as train.part5000.csv, plain or packed."""
        folder = self.data / "ag_news_csv"
        parts = sorted(folder.glob(f"{part}.part*.csv*"))
        return [*_packed_too(self.data, "ag_news_csv", f"{part}.csv"), *parts]

    def official(self, part: str) -> Iterator[LabelledText]:
        """The articles in the file's order."""
        (path,) = self.files(part)
        for number, (where, cells) in enumerate(read_records(path)):
            if len(cells) != 3:
                raise DataError(
                    f"{where}: expected class, title and description, got {len(cells)} cells"
                )
            label = self._numbered(cells[0], where)
            yield LabelledText(where, number, (_article(*cells[1:]),), label)

    def _numbered(self, cell: str, where: str) -> str:
        numbers = [str(number) for number in range(1, len(self.classes) + 1)]
        if cell not in numbers:
            raise DataError(f"{where}: expected a class from 1 to {numbers[-1]}, got '{cell}'")
        return self.classes[numbers.index(cell)]

    def read(self, row: Mapping[str, Any], where: str, number: int) -> LabelledText:
        """Read one row of a user's input: its `text`, or its `title` and `description`."""
        parts = [row.get("title"), row.get("description")]
        if all(isinstance(part, str) for part in parts):
            row = {**row, "text": _article(*map(str, parts))}
        return super().read(row, where, number)


def _article(title: str, description: str) -> str:
    return f"{title} {description}".replace("\\", " ")


def _packed_too(data: Path, folder: str, name: str) -> list[Path]:
    return plain_or_gzipped((data / folder / name, data / name))


def _lines(path: Path) -> list[str]:
    """The lines of a file; one that is not UTF-8 is ISO-8859-1, as one of upstream's TREC is."""
    content = read_bytes(path)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    return [_utf8_or_latin(line).removesuffix("\r") for line in lines]


def _utf8_or_latin(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("iso-8859-1")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
