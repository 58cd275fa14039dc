"""What is looked at: the encoders of runs, and the texts that they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.checkpoints.hub import find_checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.jobs.scoring import task_data
from finetune.runs.families import family_of, make_task
from finetune.runs.fits import read_fit
from finetune.runs.folder import RunFolder
from finetune.runs.settings import FitRun, fit_settings
from finetune.text.features.long_texts import CUT
from finetune.text.features.pairs import Features, encode_pairs
from finetune.text.features.rows import read_rows
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.task_data import TaskData
from finetune.training.ranks import pick_device

LONGEST = 512
"""Tokens of a text at most, where the encoder's positions have no end of their own."""


@dataclass(frozen=True)
class Model:
    """An encoder in eval mode on its device, its tokenizer, and where they came from."""

    place: Path
    encoder: Encoder
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Sequences:
    """Texts as an encoder takes them, without labels."""

    about: str
    """In words: task and split, or the file."""
    features: list[Features]
    """N of them."""

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Tokens of each (N,)."""
        return np.array([len(feature.input_ids) for feature in self.features], dtype=np.int64)


def load_model(source: str | Path) -> Model:
    """The encoder and tokenizer of one run or checkpoint; of several seeds, of the best one.

    Raises:
        ConfigError: The folder contains a run of several seeds that has not ended.
        CheckpointError: There is no checkpoint.
    """
    folder = RunFolder(Path(source)).one_run().path
    checkpoint = find_checkpoint(folder)
    encoder = checkpoint.encoder().to(pick_device("auto"))
    return Model(folder, encoder, checkpoint.tokenizer())


def load_language_model(folder: Path) -> tuple[Pretrainer, Tokenizer]:
    """The encoder with its language-model head, on its device and in eval mode.

    Raises:
        CheckpointError: There is no checkpoint, or its head is another one.
    """
    checkpoint = find_checkpoint(folder)
    if (kind := checkpoint.head.get("kind")) != "masked_lm":
        raise CheckpointError(
            f"{folder}: expected a pretraining run, whose head names words, got a head of the "
            f"kind {kind}; name the run that this one started from"
        )
    module = Pretrainer(Encoder(checkpoint.encoder_config))
    checkpoint.load_into(module)
    return module.to(pick_device("auto")).eval(), checkpoint.tokenizer()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a folder: those of its seeds in order, or itself where it holds one run."""
    return [run.path for run in RunFolder(folder).runs]


def longest_text(config: EncoderConfig, wanted: int | None = None) -> int:
    """Tokens that a text may have.

    Args:
        config: Of the encoder; learned positions end somewhere.
        wanted: What the user asks for; None for as many as there can be.

    Raises:
        ConfigError: More are wanted than learned positions reach.
    """
    limit = config.max_position_embeddings if config.position == "learned" else LONGEST
    if wanted is not None and config.position == "learned" and wanted > limit:
        raise ConfigError(
            f"max_length ({wanted}) must not exceed the encoder's max_position_embeddings "
            f"({limit}); lower it"
        )
    return limit if wanted is None else wanted


def longest_context(folder: Path, config: EncoderConfig) -> int:
    """Tokens that a causal encoder can predict the next one from.

    The run's own blocks decide where there is a run: behind their length no position was trained,
    and of their T tokens the last one, which is always `[SEP]`, tells nothing of the text.
    """
    settings = RunFolder(folder).read_config()
    for section in (settings.get("data"), settings.get("text")):
        if isinstance(section, Mapping) and isinstance(section.get("max_length"), int):
            return max(1, int(section["max_length"]) - 2)
    return longest_text(config)


@dataclass(frozen=True)
class TextChoice:
    """Which texts to read: a task's, or those of a file."""

    task: str | None = None
    """Family and name, such as `glue/sst2`; None for that of a run."""
    run: Path | None = None
    """The fine-tuning run whose task it is, where none is named; None for the model's own."""
    data: str | None = None
    """Folder with the official files; None for the run's, or FINETUNE_DATA."""
    split: str | None = None
    """None for the first validation split."""
    file: str | None = None
    """A file of texts in place of a task."""
    limit: int | None = None
    """Sequences to read at most, drawn by the seed."""
    max_length: int | None = None
    """Longest sequence in tokens; None for the run's, or 128."""
    seed: int = 1
    """Draws which sequences are read, where there are more than the limit."""


def read_sequences(model: Model, choice: TextChoice) -> Sequences:
    """The texts that were asked for, as token ids of the model's own tokenizer.

    Raises:
        ConfigError: It is not said what to read, or twice.
        DataError: A file is missing, empty, or has a row without text.
    """
    if choice.file is not None and (choice.task or choice.split):
        raise ConfigError("--input names the texts, and so do --task and --split: give one of them")
    if choice.file is not None:
        sequences = _from_file(model, choice)
    else:
        sequences = _from_task(model, choice)
    rows = drawn(len(sequences.features), choice.limit, choice.seed)
    return replace(sequences, features=[sequences.features[row] for row in rows])


def drawn(count: int, limit: int | None, seed: int) -> list[int]:
    """Numbers 0 … count - 1; a seeded choice of them in rising order, where that is too many."""
    if limit is None or count <= limit:
        return list(range(count))
    chosen = np.random.default_rng(seed).choice(count, limit, replace=False)
    return [int(number) for number in np.sort(chosen)]


def _from_task(model: Model, choice: TextChoice) -> Sequences:
    data = open_task(model, choice)
    split = choice.split or (*data.task.validation_splits, *data.task.test_splits)[0]
    features = data.features(split)
    return Sequences(f"{data.task.name} {split}", [without_label(one) for one in features])


def without_label(feature: Features) -> Features:
    """The same sequence, with nothing to learn."""
    return Features(feature.input_ids, feature.token_type_ids, trimmed=feature.trimmed)


def open_task(model: Model, choice: TextChoice, *, windows: bool = True) -> TaskData:
    """The splits of the task that was named, or of the task that the run was fine-tuned on.

    Args:
        model: Has the tokenizer, and the run.
        choice: Names the task.
        windows: False to read the beginning of a long text where the run reads it in windows.

    Raises:
        ConfigError: None was named and the run was fine-tuned on none; or no such family.
    """
    run = _settings(model, choice)
    if not windows and getattr(run, "long_texts", CUT).has_windows:
        cut: dict[str, Any] = {"long_texts": CUT}
        run = replace(run, **cut)
    length = choice.max_length or run.max_length
    if choice.max_length is None and model.encoder.config.position == "learned":
        length = min(length, model.encoder.config.max_position_embeddings)
    longest_text(model.encoder.config, length)
    return task_data(replace(run, max_length=length), make_task(run), model.tokenizer)


def _settings(model: Model, choice: TextChoice) -> FitRun:
    """What the run was made with; or the defaults of the family of a task that was named."""
    if choice.task is not None:
        kind = fit_settings(choice.task)
        _check_name(choice.task)
        return kind(encoder_from=str(model.place), task=choice.task, data=choice.data)
    if (run := fine_tuning(choice.run or model.place)) is None:
        raise ConfigError(
            f"{model.place}: expected a fine-tuning run, whose task says which texts to read, "
            "got none; name a task by --task glue/sst2"
        )
    return replace(run, data=choice.data or run.data, cache_dir=None)


def fine_tuning(folder: Path) -> FitRun | None:
    """The settings of a fine-tuning run; None where the folder holds another kind, or none."""
    try:
        return read_fit(folder)
    except ConfigError:
        return None


def _check_name(task: str) -> None:
    word, _, name = task.partition("/")
    family = family_of(task)
    legal = [f"{word}/{one}" for one in family.names()]
    if not name or (family.only and task not in legal):
        choices = ", ".join(legal) if legal else "the run of such a task"
        raise ConfigError(f"task {task!r}: expected a family and a name; choose one of {choices}")


def _from_file(model: Model, choice: TextChoice) -> Sequences:
    length = longest_text(model.encoder.config, choice.max_length)
    rows = [_texts(row, where) for where, row in read_rows(str(choice.file))]
    if not rows:
        raise DataError(f"{choice.file}: expected texts, got none")
    features: list[Features | None] = [None] * len(rows)
    for size in (1, 2):
        numbers = [number for number, texts in enumerate(rows) if len(texts) == size]
        columns = [[rows[number][column] for number in numbers] for column in range(size)]
        seconds = columns[1] if size == 2 else None
        encoded = encode_pairs(model.tokenizer, columns[0], seconds, length) if numbers else []
        for number, feature in zip(numbers, encoded, strict=True):
            features[number] = feature
    return Sequences(Path(str(choice.file)).name, [one for one in features if one is not None])


def _texts(row: Mapping[str, Any], where: str) -> Sequence[str]:
    """The text of a row, or the two of a pair."""
    texts = [row[name] for name in ("text", "text1", "text2") if name in row]
    if not texts or not all(isinstance(text, str) for text in texts) or len(texts) > 2:
        raise DataError(
            f"{where}: expected the field 'text', or 'text1' and 'text2', with text in them; "
            f"got {', '.join(map(str, row)) or 'no field'}"
        )
    return texts
