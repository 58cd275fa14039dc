"""Every number that is set has a range, and a value outside it is one line wherever it is set."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError
from finetune.inspection.probes import ProbeConfig
from finetune.ranges import Range, check_values, within
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun, TokenizerRun
from finetune.settings import fields as settings
from finetune.settings.values import without_none
from finetune.training.optimizer import OptimizerConfig
from tasks.families import FAMILIES

RUNS = [TokenizerRun, PretrainRun, AdaptRun, FitRun]
RUNS += [cls for family in FAMILIES.values() if (cls := family.settings()) not in RUNS]
NEEDED = {"corpus": ["corpus"], "out": "out", "encoder_from": "none"}
TOO_LARGE = ["9223372036854775808", "18446744073709551616", "1e308", "1" + "0" * 400]
NO_NUMBERS = ["nan", "inf", "-inf", ".nan", ".inf", "", "\0", "\ud800", "x", "[1]"]
EDGES = ["0", "1000000000", "-1e-9", "1e-320", "0.5"]
NO_TEXTS = ["\0", "a\0b", "\ud800", "caf\udce9"]


def sections(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, type[Any]]]:
    yield prefix, cls
    kinds = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = without_none(kinds[field.name])
        if dataclasses.is_dataclass(kind):
            yield from sections(typing.cast(type[Any], kind), f"{prefix}{field.name}.")


def leaves(cls: type[Any]) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Key, field and annotation of each setting, those of sections too, hidden or not."""
    for prefix, section in sections(cls):
        kinds = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            annotation = kinds[field.name]
            if not dataclasses.is_dataclass(without_none(annotation)):
                yield prefix + field.name, field, annotation


def parts(annotation: Any) -> set[Any]:
    """The plain types in an annotation: `list[int] | None` has int and None."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or not inner:
        return {annotation}
    return {part for each in inner for part in parts(each)}


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def is_number(annotation: Any) -> bool:
    return bool(parts(annotation) & {int, float})


def read(cls: type[Any], name: str, value: object) -> None:
    names = {field.name for field in dataclasses.fields(cls)}
    given = {needed: value for needed, value in NEEDED.items() if needed in names}
    settings.read(cls, None, {**given, name: value})


def owners(wanted: set[type[Any]]) -> list[tuple[type[Any], str]]:
    """Each class of settings with its own values of these types: a section is read alone."""
    every = {section: None for cls in RUNS for _, section in sections(cls)}
    return [
        (cls, field.name)
        for cls, kinds in ((cls, typing.get_type_hints(cls)) for cls in every)
        for field in dataclasses.fields(cls)
        if field.name in vars(cls).get("__annotations__", {}) and parts(kinds[field.name]) & wanted
    ]


@pytest.mark.parametrize("cls", [*RUNS, EncoderConfig, ProbeConfig])
def test_each_number_has_a_range_and_each_class_checks_its_values(cls: type[Any]) -> None:
    for key, field, annotation in leaves(cls):
        if is_number(annotation):
            assert isinstance(field.metadata.get("range"), Range), f"{key}: give it a range"
            allowed = field.metadata["range"]
            assert -math.inf < allowed.least < allowed.most < 2**63
    for prefix, section in sections(cls):
        assert "__post_init__" in vars(section) or prefix == "", f"{prefix} checks nothing"


@pytest.mark.parametrize(("cls", "key"), owners({int, float}), ids=name_of)
def test_a_number_that_means_nothing_is_refused(cls: type[Any], key: str) -> None:
    for value in ["-1", *TOO_LARGE, *NO_NUMBERS]:
        with pytest.raises(ConfigError) as refused:
            read(cls, key, value)
        assert key in str(refused.value).replace("-", "_")
        assert len(str(refused.value)) < 1000
    for value in EDGES:  # some are allowed, and none is an error of ours
        with contextlib.suppress(ConfigError):
            read(cls, key, value)


@pytest.mark.parametrize("cls", RUNS)
def test_a_word_of_no_table_names_the_flag_and_every_choice(cls: type[Any]) -> None:
    flags = {one.key: one.flag or one.key for one in settings.settings_of(cls)}
    for key, field, _ in leaves(cls):
        if words := field.metadata.get("words"):
            with pytest.raises(ConfigError) as refused:
                settings.read(cls, None, {key: words[0][:-1] + "#"})
            text = str(refused.value)
            assert text.startswith(f"{flags[key]}: expected one of {', '.join(words)}"), text


@pytest.mark.parametrize(("cls", "key"), owners({str, Path}), ids=name_of)
def test_a_text_that_no_file_can_hold_is_refused(cls: type[Any], key: str) -> None:
    for value in NO_TEXTS:
        with pytest.raises(ConfigError):
            read(cls, key, value)


def test_a_yaml_file_meets_the_same_check(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for line, pattern in [
        ("optimizer: {learning_rate: .inf}", "optimizer: learning_rate must be .* got inf"),
        ("seed: -1", "seed must be a whole number from 0 to .*, got -1"),
        (f"seed: {10**400}", "seed must be .*, got about 1e400"),
        ("seed: " + "9" * 5000, "not readable as YAML: expected a value of type int"),
        (f"optimizer: {{learning_rate: {10**400}}}", "learning_rate: expected a number, got .*"),
        ('out: "a\\0b"', r"out must be text without NUL .* got 'a\\x00b'"),
        ('out: "\\uD800"', r"out must be text without NUL .* got '\\ud800'"),
        ("trainer: {devices: 1000000000}", "devices must be .* from 1 to 1,024, got 1000000000"),
    ]:
        file.write_text(line)
        with pytest.raises(ConfigError, match=f"^{file}.*{pattern}"):
            settings.read(
                PretrainRun, file, {"corpus": ["c"]} | ({} if "out" in line else {"out": "o"})
            )


def test_python_meets_the_same_check() -> None:
    with pytest.raises(ConfigError, match="learning_rate must be a number .*; try 1e-3"):
        OptimizerConfig(learning_rate=math.nan)
    with pytest.raises(ConfigError, match="learning_rate must be a number .*, got 'fast'"):
        OptimizerConfig(learning_rate="fast")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seeds must be a list, each a whole .*, got \\[1, -1\\]"):
        FitRun("none", seeds=[1, -1])
    with pytest.raises(ConfigError, match="seed must be a whole number .*, got true"):
        PretrainRun(["c"], "o", seed=True)
    assert PretrainRun([Path("c")], Path("o")).seed == 1  # type: ignore[list-item, arg-type]


def test_a_range_is_told_in_words() -> None:
    assert str(Range(0, 1, below=True)) == "from 0 to below 1"
    assert str(Range(0, 1, above=True)) == "above 0 and at most 1"
    assert str(Range(0, 1, above=True, below=True)) == "above 0 and below 1"
    assert str(Range(1, 2**63 - 1)) == "from 1 to 9,223,372,036,854,775,807"
    assert str(Range(0, 1e12)) == "from 0 to 1e+12"


def test_nan_is_in_no_range() -> None:
    assert not Range(-math.inf, math.inf).allows(math.nan)


def test_a_field_within_a_range_keeps_its_other_metadata() -> None:
    @dataclasses.dataclass
    class Toy:
        heads: int = within(1, 4, default=2, hint="choose 2", hidden=True)

        def __post_init__(self) -> None:
            check_values(self)

    (field,) = dataclasses.fields(Toy)
    assert field.metadata["hidden"]
    assert Toy().heads == 2
    with pytest.raises(ConfigError, match="heads must be .* from 1 to 4, got 5; choose 2"):
        Toy(heads=5)


def test_a_word_that_is_not_in_the_table_is_refused_with_the_choices() -> None:
    @dataclasses.dataclass
    class Toy:
        pooling: str | None = dataclasses.field(default=None, metadata={"words": ("cls", "mean")})

        def __post_init__(self) -> None:
            check_values(self)

    assert Toy().pooling is None
    with pytest.raises(ConfigError, match="^pooling must be one of cls, mean, got 'x'$"):
        Toy("x")
    with pytest.raises(ConfigError, match="got 'meen'; did you mean 'mean'\\?$"):
        Toy("meen")
