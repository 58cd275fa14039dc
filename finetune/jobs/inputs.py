"""The inputs of each kind of run, by content; `runs.inputs` stores and compares them.

And the encoder's shape, which is that of the checkpoint that a run starts from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from finetune.checkpoints.folder import WEIGHTS, Checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError
from finetune.runs.inputs import Input, Inputs
from finetune.runs.settings import FitRun
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.task_data import TaskData


def encoder_inputs(checkpoint: Checkpoint, place: str) -> Inputs:
    """The weights, shape and tokenizer that a run starts from.

    Args:
        checkpoint: The encoder.
        place: How the run's settings name it.
    """
    return {
        "encoder weights": Input(checkpoint.digests()[WEIGHTS], place),
        "encoder config": Input(_shape_digest(checkpoint.encoder_config), place),
        **tokenizer_input(checkpoint.tokenizer(), place),
    }


def _shape_digest(config: EncoderConfig) -> str:
    # Defaults are left out: a later version may have settings more.
    usual = EncoderConfig().to_dict()
    special = {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
    return hashlib.sha256(json.dumps(special, sort_keys=True).encode()).hexdigest()


def tokenizer_input(tokenizer: Tokenizer, place: str) -> Inputs:
    """The tokenizer that a run's texts are split by."""
    return {"tokenizer": Input(tokenizer.fingerprint, place)}


def corpus_inputs(digests: Mapping[str, str]) -> Inputs:
    """The files of a corpus; see `source_digests`."""
    return {f"corpus file {name}": Input(digest, name) for name, digest in digests.items()}


def example_inputs(data: TaskData, splits: Iterable[str]) -> Inputs:
    """The examples of some splits."""
    return {
        f"{split} examples": Input(data.digest(split), _first(data.task.data_files(split)))
        for split in splits
    }


def _first(files: list[Path]) -> str:
    return ", ".join([*map(str, files[:1]), *(["…"] if len(files) > 1 else [])])


def with_shape(run: FitRun, start: Checkpoint | None, tokenizer: Tokenizer) -> FitRun:
    """The settings with the shape of the encoder that is used, to be recorded with the run.

    Args:
        run: The settings.
        start: The checkpoint that the encoder is read from; None for random weights.
        tokenizer: Its vocabulary is that of an encoder of random weights.
    """
    if start is not None:
        return dataclasses.replace(run, encoder=start.encoder_config)
    encoder = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(run, encoder=encoder)


def other_shape(given: EncoderConfig, start: Checkpoint) -> str:
    """Say which settings of an `encoder` section are not used; "" where none is lost.

    The section may be that of a config.yaml which is used again with another encoder, so it is no
    error. Defaults cannot be distinguished from settings that were left out.
    """
    used, usual = start.encoder_config.to_dict(), EncoderConfig().to_dict()
    lost = [
        f"{name} {value} (the checkpoint has {used[name]})"
        for name, value in given.to_dict().items()
        if value not in (used[name], usual[name]) and name != "vocab_size"
    ]
    return f"encoder: settings that are not used: {', '.join(lost)}" if lost else ""


def flag(name: str) -> str:
    """A setting as it is named on the command line."""
    return f"--{name.replace('_', '-')}"


def refuse_shape(run: FitRun, keys: Iterable[str], written: Callable[[str], str] = flag) -> None:
    """Refuse settings of the encoder's shape beside a checkpoint, which has its own.

    Args:
        run: The settings.
        keys: Those that were given, such as `encoder.hidden_size`.
        written: How the user writes the name of a setting, by default as a flag.

    Raises:
        ConfigError: One of them is of the encoder, and the encoder is no new one.
    """
    names = [key.removeprefix("encoder.") for key in keys if key.startswith("encoder.")]
    if not names or run.encoder_from == "none":
        return
    config = find_checkpoint(run.encoder_from, run.cache_dir).encoder_config.to_dict()
    given = ", ".join(map(written, names))
    values = ", ".join(f"{name} {config[name]}" for name in names)
    encoder, dropout = written("encoder"), f"; {written('dropout')} sets the encoder's dropout"
    raise ConfigError(
        f"{given}: expected no settings of the encoder beside {encoder} {run.encoder_from}, which "
        f"has {values}; leave them out, or start from {encoder} none"
        f"{dropout if 'dropout' in given else ''}"
    )
