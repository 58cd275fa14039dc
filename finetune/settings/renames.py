"""Settings that had another name, and values that had another spelling: both are still read."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from typing import Any

from finetune.errors import ConfigError

NAMES = {
    "aids": "regularization",
    "unfreezing.span": "unfreezing.schedule_scope",
    "unfreezing.rewarm_fraction": "unfreezing.thaw_warmup_ratio",
    "unfreezing.moments": "unfreezing.optimizer_state",
    "table.unlabeled": "table.missing",
}
"""Old dotted key -> the key that it has now, in the same section."""
VALUES = {"unfreezing.optimizer_state": {"kept": "keep", "cleared": "reset"}}
"""Dotted key of now -> old spelling of a value -> new spelling."""


def with_new_names(content: Any, *, warn: bool = False, source: str = "", prefix: str = "") -> Any:
    """Settings under the names that they have now.

    Args:
        content: What was read from a file: a mapping; anything else is returned unchanged.
        warn: Warn of each old name.
        source: Where the content is from, for the message.
        prefix: The section that the content belongs to, with a dot at the end.

    Raises:
        ConfigError: A setting is given under its old name and under its new one.
    """
    if not isinstance(content, Mapping):
        return content
    renamed = {}
    for old, value in content.items():
        key = NAMES.get(f"{prefix}{old}", f"{prefix}{old}")
        new = key.removeprefix(prefix) if key in NAMES.values() else old
        if new != old and new in content:
            raise ConfigError(
                f"{source}: {old} is the old name of {new}, and both are given; remove {old}"
            )
        if new != old and warn:
            warn_of_rename(old, new)
        value = new_value(key, value, warn=warn)
        renamed[new] = with_new_names(value, warn=warn, source=source, prefix=f"{key}.")
    return renamed


def new_value(key: str, value: Any, *, warn: bool = False) -> Any:
    """The new spelling of the value of a setting (its dotted key); any other value as it is."""
    new = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    if warn:
        name = key.rpartition(".")[2]
        warn_of_rename(f"{name}: {value}", f"{name}: {new}")
    return new


def add_old_flags(parser: argparse._ActionsContainer, key: str, flag: str) -> None:
    """Give a parser the flags that a setting had before, which `--help` does not show.

    Args:
        parser: Gets them.
        key: Dotted key of the setting.
        flag: The flag that it has now.
    """
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for old in (old for old, new in NAMES.items() if new == key):
        name = "--" + old.rpartition(".")[2].replace("_", "-")
        parser.add_argument(name, action=_OldFlag, dest=key, metavar=flag, **hidden)


class _OldFlag(argparse.Action):
    def __call__(
        self, parser: object, space: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        warn_of_rename(str(flag), str(self.metavar))
        setattr(space, self.dest, value)


def warn_of_rename(old: str, new: str) -> None:
    """Warn that an old name was read; Python shows the same warning once."""
    warnings.warn(f"{old} is now {new}; please rename it", FutureWarning, stacklevel=2)
