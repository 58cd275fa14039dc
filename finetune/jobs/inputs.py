"""The inputs of each kind of run, by content; `run_inputs` keeps and compares them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from finetune.checkpoints.folder import WEIGHTS, Checkpoint
from finetune.encoder import EncoderConfig
from finetune.runs.inputs import Input, Inputs
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
