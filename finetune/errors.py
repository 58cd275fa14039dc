"""The errors that a user can cause; each is shown as one line and exit status 2.

    FinetuneError
    ├── ConfigError        a setting, a YAML key or a flag
    ├── DataError          a corpus, a task's file, a row
    └── CheckpointError    a checkpoint folder, a weight, a tokenizer that does not fit

A message says what was expected, what came instead (file and line, key or field) and how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FinetuneError(Exception):
    """Anything that the person at the keyboard can fix.

    >>> import finetune
    >>> try:
    ...     finetune.load("runs/no-such-run")
    ... except finetune.FinetuneError as error:
    ...     print(type(error).__name__)
    ConfigError
    """


class ConfigError(FinetuneError):
    """A setting is unknown, of the wrong type, or does not fit another one.

    >>> from finetune import HeadConfig
    >>> HeadConfig(pooling="meen")
    Traceback (most recent call last):
    finetune.errors.ConfigError: pooling must be one of ..., got 'meen'; did you mean 'mean'?
    """


class DataError(FinetuneError):
    """A file or a row is missing, unreadable or not in its official form.

    >>> from finetune import find_task
    >>> find_task("classify", train="data/trian.csv").examples("train")
    Traceback (most recent call last):
    finetune.errors.DataError: data/trian.csv: expected the train file, got none; ...
    """


class CheckpointError(FinetuneError):
    """A checkpoint is missing, incomplete, or does not fit what it is used for.

    >>> from finetune import Tokenizer
    >>> Tokenizer.load("data")
    Traceback (most recent call last):
    finetune.errors.CheckpointError: data: expected a tokenizer ...
    """


def nearest(word: str, choices: Iterable[str]) -> str:
    """Say which legal word was probably meant.

    Args:
        word: What was found.
        choices: What would have been legal.

    Returns:
        `did you mean 'x'?` if one is close, otherwise `choose one of a, b, c`.
    """
    legal = sorted(choices)
    close = difflib.get_close_matches(word, legal, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(legal)}"
