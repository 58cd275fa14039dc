"""Settings: a YAML file and command-line flags, read into one nested dataclass.

A field of the dataclass is a YAML key and a flag; the line under the field is its `--help`. A field
that is itself a dataclass is a *section*: a mapping in the YAML, a heading in `--help`. Flags win
over the YAML, the YAML over the dataclass's defaults.

What a field's metadata may say:

- `{"flag": "--encoder"}` names its flag otherwise than by the field;
- `{"hidden": True}` gives it (or, for a section, all that is in it) no flag, only a YAML key;
- `{"alone": "1"}` is what its flag means where no value follows;
- `{"words": ("cls", "mean")}`: the texts that it may be; `finetune.ranges` checks them, too;
- `{"offers": ("cpu", "gpu")}`: some that it may be, which a shell offers; or what gives them;
- `{"instead_of": ("max_epochs",)}`: where the file or a flag sets it, the settings named (of the
  same section) that a lower layer had set become none;
- `{"range": Range(1, 64)}`: the numbers that it may have, see `finetune.ranges`, which checks them.

Old names of settings are still read (`finetune.settings.renames`). This module knows no setting by
name and imports no dataclass: `finetune --help` stays fast.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from finetune.console.output import quoted
from finetune.errors import ConfigError, nearest
from finetune.settings.renames import add_old_flags, new_value, our_flag, with_new_names
from finetune.settings.values import converted, is_list, load, narrowed, show, without_none, write

T = TypeVar("T")
_MISSING = dataclasses.MISSING


def add_flags(parser: argparse.ArgumentParser, cls: type[Any], skip: Container[str] = ()) -> None:
    """Give the parser one flag for each setting of a dataclass, with a heading for each section.

    Only flags that the user wrote appear in the namespace, under their dotted key
    (`optimizer.learning_rate`); `given` collects them for `read`.

    Args:
        parser: Gets the flags.
        cls: The dataclass, with its sections.
        skip: Fields of the dataclass, sections among them, that get no flag.

    Raises:
        TypeError: Two settings would have the same flag; name one of them by its metadata.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    owners: dict[str, str] = {}
    for setting in settings_of(cls):
        if setting.flag is None or setting.key.partition(".")[0] in skip:
            continue
        if setting.flag in owners:
            raise TypeError(f"{owners[setting.flag]} and {setting.key} both ask for {setting.flag}")
        owners[setting.flag] = setting.key
        if setting.section not in groups:
            title = setting.section or "settings"
            groups[setting.section] = parser.add_argument_group(title, setting.section_doc or None)
        _add_flag(groups[setting.section], setting)


def given(cls: type[Any], namespace: argparse.Namespace) -> dict[str, object]:
    """Pick the settings of `cls` from parsed arguments: dotted key → what was written."""
    keys = {setting.key for setting in settings_of(cls)}
    return {key: value for key, value in vars(namespace).items() if key in keys}


def read(
    cls: type[T],
    yaml_file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    *,
    warn: bool = True,
) -> T:
    """Build the settings from defaults, then a YAML file, then flags.

    Args:
        cls: The dataclass to build.
        yaml_file: A mapping of keys and sections; None for defaults and flags alone.
        flags: Dotted key → the text of the flag, or a value already of the setting's type.
        warn: Warn of names that the file writes in their old form.

    Returns:
        An instance of `cls`.

    Raises:
        ConfigError: The file is missing or no YAML mapping; a key is unknown or given twice; a
            value is of the wrong type; a setting without a default is not given; or the dataclass
            itself refuses the values.
    """
    from_file: dict[str, Any] = {}
    if yaml_file is not None:
        content = with_new_names(load(yaml_file), warn=warn, source=str(yaml_file))
        from_file = _checked(cls, content, "", _Source(cls, str(yaml_file)))
    from_flags = _nest_flags(cls, flags or {})
    return typing.cast(T, _build(cls, _Layers(yaml_file, from_file, from_flags)))


def dump(instance: object) -> str:
    """Write settings as YAML text, defaults included; `read` gives back an equal instance."""
    return write(plain(instance))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field that holds a value, as the YAML and the command line see it."""

    key: str
    type: Any
    default: Any
    doc: str
    flag: str | None
    section_doc: str
    alone: str | None = None
    words: tuple[str, ...] = ()
    allowed: Any = None
    """The type, narrowed to the words where it may be nothing else."""

    @property
    def section(self) -> str:
        """Dotted key of the section; empty at the top level."""
        return self.key.rpartition(".")[0]


def settings_of(
    cls: type[Any], prefix: str = "", default: object = None, hidden: bool = False, doc: str = ""
) -> Iterator[Setting]:
    """Walk over the settings of a dataclass, those of its sections last."""
    docs, types = _field_docs(cls), typing.get_type_hints(cls)
    sections = []
    for field in _fields(cls):
        key, hide = prefix + field.name, hidden or bool(field.metadata.get("hidden"))
        value = getattr(default, field.name) if default is not None else _default(field)
        inner = _section(types[field.name])
        if inner is None:
            flag = None if hide else _flag(field)
            alone = field.metadata.get("alone")
            kind, text = types[field.name], docs.get(field.name, "")
            more = alone, _words(field, kind), narrowed(kind, field.metadata.get("words"))
            yield Setting(key, kind, value, text, flag, doc, *more)
        else:
            heading = docs.get(field.name) or (inner.__doc__ or "").partition("\n")[0]
            start = None if value is _MISSING else value
            sections.append((inner, key + ".", start, hide, heading))
    for section in sections:
        yield from settings_of(*section)


def _words(field: dataclasses.Field[Any], annotation: Any) -> tuple[str, ...]:
    """The values among which one chooses, as text; () where there are no such."""
    value = without_none(annotation)
    if typing.get_origin(value) is typing.Literal:
        return tuple(map(show, typing.get_args(value)))
    words = field.metadata.get("words") or field.metadata.get("offers", ())
    return tuple(words() if callable(words) else words)


def _fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _section(annotation: Any) -> type[Any] | None:
    """Return the dataclass that an annotation names, or None for a plain setting."""
    inner = without_none(annotation)
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is _MISSING else field.default_factory()


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """Read the docstring under each field, from the source of the class and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base) and (file := inspect.getsourcefile(base)):
            docs |= _docs_in(_classes_in(file)[base.__name__])
    return docs


@functools.cache
def _classes_in(file: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _docs_in(body: list[ast.stmt]) -> dict[str, str]:
    docs = {}
    for field, doc in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    # Values stay text here: `read` converts them with the words it uses for the YAML.
    value = without_none(setting.type)
    shown = "required" if setting.default is _MISSING else f"default: {show(setting.default)}"
    options: dict[str, Any] = {
        "dest": setting.key,
        "default": argparse.SUPPRESS,
        "help": f"{setting.doc} ({shown})".strip().replace("%", "%%"),
    }
    if value is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["metavar"] = _metavar(value)
        # `--corpus A B`, but `--seeds 1,2,3`: numbers need no blank, and a path may hold a comma.
        options["nargs"] = "+" if is_list(value) and _item(value) in (str, Path) else None
    if setting.alone is not None:
        options |= {"nargs": "?", "const": setting.alone}
    action = group.add_argument(typing.cast(str, setting.flag), **options)
    vars(action)["words"] = setting.words  # for the completion of shells
    vars(action)["numbers"] = is_list(value) and _item(value) in (int, float)  # for the parser
    add_old_flags(group, setting.key, typing.cast(str, setting.flag))


def _item(annotation: Any) -> Any:
    return typing.get_args(annotation)[0]


def _metavar(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "{" + ",".join(map(show, typing.get_args(annotation))) + "}"
    if is_list(annotation):
        name = _metavar(_item(annotation))
        return name if _item(annotation) in (str, Path) else f"{name},{name},…"
    return {int: "N", float: "X", Path: "PATH"}.get(annotation, "TEXT")


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where values came from, for the messages."""

    cls: type[Any]
    name: str

    def unknown(self, key: str, legal: list[str]) -> ConfigError:
        """Name the key that was meant: one of the same section, or one that belongs elsewhere."""
        name = key.rpartition(".")[2]
        by_flag = {setting.flag: setting.key for setting in settings_of(self.cls) if setting.flag}
        if (flag := our_flag(name, by_flag)) is not None:
            return ConfigError(f"{self.name}: unknown key '{key}'; it is '{by_flag[flag]}' here")
        hint = nearest(name, legal)
        settings = reversed(list(settings_of(self.cls)))  # of two with one name the first is kept
        elsewhere = {setting.key.rpartition(".")[2]: setting for setting in settings}
        close = difflib.get_close_matches(name, elsewhere, n=1)
        if close and (name in elsewhere or not hint.startswith("did you mean")):
            setting = elsewhere[close[0]]
            place = f"in the section '{setting.section}'" if setting.section else "at the top level"
            hint = f"did you mean '{setting.key}', {place}?"
        return ConfigError(f"{self.name}: unknown key '{key}'; {hint}")


def _checked(cls: type[Any], mapping: Any, prefix: str, source: _Source) -> dict[str, Any]:
    """Convert a mapping read from a file, section by section."""
    if not isinstance(mapping, dict):
        where = f"{prefix[:-1]}: " if prefix else ""
        raise ConfigError(f"{source.name}: {where}expected keys with values, got {quoted(mapping)}")
    hints = typing.get_type_hints(cls)
    types = {
        field.name: narrowed(hints[field.name], field.metadata.get("words"))
        for field in _fields(cls)
    }
    checked: dict[str, Any] = {}
    for name, value in mapping.items():
        if name not in types:
            raise source.unknown(f"{prefix}{name}", list(types))
        annotation, key = types[name], f"{prefix}{name}"
        inner = _section(annotation)
        if inner is None:
            checked[name] = converted(value, annotation, f"{source.name}: {key}")
        elif value is None:
            checked[name] = None if inner is not annotation else {}
        else:
            checked[name] = _checked(inner, value, key + ".", source)
    return checked


def _nest_flags(cls: type[Any], flags: Mapping[str, object]) -> dict[str, Any]:
    """Convert the text of flags, and put each into its section."""
    settings = {setting.key: setting for setting in settings_of(cls)}
    nested: dict[str, Any] = {}
    for key, text in flags.items():
        if key not in settings:
            raise ConfigError(f"unknown setting '{key}'; {nearest(key, settings)}")
        setting = settings[key]
        *sections, name = key.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        value = new_value(key, text, warn=True)
        section[name] = converted(value, setting.allowed, setting.flag or key)
    return nested


@dataclasses.dataclass(frozen=True)
class _Layers:
    """What a file and the flags give for one dataclass of the tree, flags above the file."""

    file: Path | None
    from_file: Mapping[str, Any]
    from_flags: Mapping[str, Any]
    prefix: str = ""

    def of_section(self, name: str) -> _Layers:
        """Go down into a section."""
        parts = (self.from_file.get(name) or {}, self.from_flags.get(name) or {})
        return _Layers(self.file, *parts, f"{self.prefix}{name}.")

    def merged(self, cls: type[Any]) -> dict[str, Any]:
        """Lay the flags over the file; each layer displaces what it stands instead of."""
        values: dict[str, Any] = {}
        for layer in (self.from_file, self.from_flags):
            written = [field for field in _fields(cls) if layer.get(field.name) is not None]
            values |= {name: None for f in written for name in f.metadata.get("instead_of", ())}
            values |= layer
        return values


def _build(cls: type[Any], layers: _Layers, start: Any = None) -> Any:
    """Build one dataclass, its sections first, from its defaults or else from an instance."""
    values, types = layers.merged(cls), typing.get_type_hints(cls)
    for field in _fields(cls):
        inner = _section(types[field.name])
        default = _default(field) if start is None else getattr(start, field.name)
        if inner is None:
            if default is _MISSING and field.name not in values:
                raise _not_given(layers.prefix + field.name, field)
        elif values.get(field.name, default) is None:
            values[field.name] = None
        else:
            # A default that the class itself makes is built from the values given here, so that
            # what it derives from other fields follows them.
            factory: object = field.default_factory
            is_new = default is _MISSING or (start is None and factory is inner)
            inner_start = None if is_new else default
            values[field.name] = _build(inner, layers.of_section(field.name), inner_start)
    return _make_or_blame(cls, layers, start, values)


def _make_or_blame(cls: type[Any], layers: _Layers, start: Any, values: dict[str, Any]) -> Any:
    try:
        return _make(cls, start, values)
    except ConfigError as error:
        if not _file_is_to_blame(cls, layers, start, values, error):
            raise
        place = f"{layers.prefix[:-1]}: " if layers.prefix else ""
        raise ConfigError(f"{layers.file}: {place}{error}") from None


def _make(cls: type[Any], start: Any, values: Mapping[str, Any]) -> Any:
    return cls(**values) if start is None else dataclasses.replace(start, **values)


def _file_is_to_blame(
    cls: type[Any], layers: _Layers, start: Any, values: dict[str, Any], error: ConfigError
) -> bool:
    """Whether the file gives values here, and they are refused without the flags too."""
    types = typing.get_type_hints(cls)
    without_flags = {name: value for name, value in values.items() if _section(types[name])}
    only_file = dataclasses.replace(layers, from_flags={}).merged(cls)
    without_flags |= {name: value for name, value in only_file.items() if not _section(types[name])}
    if not only_file:
        return False
    try:
        _make(cls, start, without_flags)
    except ConfigError:
        return True
    except TypeError:  # a flag gives what has no default: the message begins with the name
        return str(error).partition(" ")[0] in only_file
    return False


def _not_given(key: str, field: dataclasses.Field[Any]) -> ConfigError:
    return ConfigError(f"{_flag(field)} is missing; give it, or set '{key}' in the YAML file")


def _flag(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("flag", "--" + field.name.replace("_", "-")))


def plain(value: object) -> Any:
    """Settings as mappings, lists and scalars, defaults included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
