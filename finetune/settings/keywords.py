"""Settings as keyword arguments of a Python function: the names of flags with `_` for `-`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from finetune.errors import ConfigError, nearest
from finetune.settings.fields import Setting, plain, settings_of
from finetune.settings.renames import new_value, our_flag
from finetune.settings.values import converted


def from_keywords(cls: type[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as settings by their dotted key, for `fields.read`.

    Args:
        cls: The dataclass of settings.
        keywords: Name of a flag (`learning_rate`) or key -> value; or name of a section
            (`optimizer`) -> an instance of its dataclass. A single setting overrides its section.

    Raises:
        ConfigError: A name is unknown, and the message has the nearest one; or a value is of
            another type.
    """
    names = _names(cls)
    sections: dict[str, Any] = {}
    single: dict[str, Any] = {}
    for name, value in keywords.items():
        if _is_section(cls, name, value):
            sections |= _flat(plain(value), f"{name}.")
        elif name in names:
            setting = names[name]
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            value = new_value(setting.key, value, warn=True)
            single[setting.key] = converted(value, setting.allowed, name)
        else:
            raise _unknown(name, names)
    return {**sections, **single}


def keys_of(instance: Any) -> dict[str, Any]:
    """All settings of an instance by their dotted key."""
    return _flat(plain(instance), "")


def _names(cls: type[Any]) -> dict[str, Setting]:
    """Name of a keyword -> setting: each by its key, and by its flag."""
    settings = list(settings_of(cls))
    return {each.key: each for each in settings} | {_word(each): each for each in settings}


def _word(setting: Setting) -> str:
    return setting.key if setting.flag is None else setting.flag.lstrip("-").replace("-", "_")


def _is_section(cls: type[Any], name: str, value: Any) -> bool:
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_instance and name in {field.name for field in dataclasses.fields(cls)}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


def _unknown(name: str, names: Iterable[str]) -> ConfigError:
    flags = {f"--{word.replace('_', '-')}": word for word in names if "." not in word}
    ours = our_flag(name, flags)
    hint = nearest(name, flags.values()) if ours is None else f"it is {flags[ours]} here"
    return ConfigError(f"unknown setting '{name}'; {hint}")
