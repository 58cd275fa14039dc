"""The public sets that ULMFiT was shown on (Howard and Ruder, 2018): IMDb, TREC and AG's News.

None of them has a development set. A tenth of the training texts, drawn by class with a fixed seed,
is the validation split that chooses the checkpoint, so that the official test set, which is
labelled, is scored once and chooses nothing. Equal texts stay on one side of the cut.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.errors import ConfigError, DataError
from finetune.ranges import not_among
from tasks.own.label_kinds import CLASSES
from tasks.own.text import ClassifyConfig, ClassifyTask
from tasks.own.text_set_files import AgNews, Imdb, TextSet, Trec6, Trec50
from tasks.sources.reader import data_folder

TEXT_SETS: dict[str, type[TextSet]] = {
    "imdb": Imdb,
    "trec6": Trec6,
    "trec50": Trec50,
    "agnews": AgNews,
}
"""Name of a set -> class that reads it."""


def set_key(name: str) -> str:
    """A name in any usual spelling, as `TEXT_SETS` has those of public sets."""
    return name.lower().removeprefix("classify/").replace("-", "").replace("_", "")


@dataclass(frozen=True)
class TextSetTask(ClassifyTask):
    """A public set, whose classes are known."""

    source: TextSet

    @property
    def data(self) -> Path:
        """The folder of the set."""
        return self.source.data

    def unlabelled_texts(self) -> Iterator[str]:
        """Texts of the set that have no class, to fine-tune a language model on; may be none.

        Raises:
            DataError: The set has such texts, but they are not in the data folder.
        """
        return self.source.unlabelled()

    def language_texts(self) -> Iterator[str]:
        """The training texts, and those without a class where they are in the data folder."""
        yield from super().language_texts()
        try:
            yield from self.unlabelled_texts()
        except DataError as error:
            warnings.warn(f"adapting to the labelled texts alone: {error}", stacklevel=2)


def text_set_task(
    name: str,
    data: Path | None = None,
    files: Mapping[str, Path] | None = None,
    config: ClassifyConfig | None = None,
    labels: Sequence[str] | None = None,
) -> TextSetTask:
    """Find a public set by its name: `imdb`, `trec6`, `trec50`, `agnews`.

    Args:
        name: The set, in any usual spelling (`AG-News`, `classify/imdb`).
        data: A folder with `imdb/`, `trec/`, `ag_news_csv/`; None: the folder that the variable
            FINETUNE_DATA names.
        files: Files of other names, by split: train, test.
        config: May name class weights; the rest is known.
        labels: The classes in the order of a trained head's logits.

    Returns:
        The task; no file is opened yet (of `trec50`, where labels are given).

    Raises:
        ConfigError: There is no such set or split, or a setting is for own tables only.
        CheckpointError: The labels are not those of the set.
    """
    key = set_key(name)
    if key not in TEXT_SETS:
        raise not_among("--dataset", name, TEXT_SETS)
    config = config or ClassifyConfig()
    columns = (config.text_column, config.pair_column, config.label_column, config.id_column)
    own_only = (*columns, config.separator, config.holdout)
    if config.kind not in ("auto", CLASSES) or any(own_only) or config.missing != "error":
        raise ConfigError(
            f"dataset {key}: its columns and classes are known; leave out the settings of columns, "
            "kind, separator, missing and holdout"
        )
    for split in files or {}:
        if split not in ("train", "test"):
            raise ConfigError(f"dataset {key}: its {split} split is a part of train, no file")
    source = TEXT_SETS[key](data_folder(data) or Path("data"), dict(files or {}))
    task = TextSetTask(source, config, None if labels is None else tuple(labels))
    if source.classes is not None:
        task.check_order()
    return task
