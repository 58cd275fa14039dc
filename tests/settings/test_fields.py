from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Literal

import pytest

from finetune.errors import ConfigError
from finetune.settings import fields as settings
from finetune.settings.keywords import from_keywords
from finetune.settings.values import convert


@dataclasses.dataclass
class Shape:
    """Sizes of the toy."""

    width: int = 8
    """Width of the toy, in units."""
    heads: int = 2
    """Heads of the toy."""
    depth: int | None = None
    """Twice the width if none."""
    inner: int = dataclasses.field(default=-1, metadata={"hidden": True})
    """What the toy derives from its width."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"heads ({self.heads}) must divide width ({self.width})")
        if self.inner == -1:
            self.inner = 4 * self.width


@dataclasses.dataclass
class Rates:
    """How fast."""

    learning_rate: float = 1e-3
    """Highest learning rate, above 0; 50% is kept."""
    schedule: Literal["linear", "cosine", "slanted_triangular"] = "linear"
    """Shape of the learning rate."""


@dataclasses.dataclass
class Length:
    """How long."""

    max_steps: int | None = dataclasses.field(
        default=None, metadata={"instead_of": ("max_epochs",)}
    )
    """Steps of training."""
    max_epochs: int | None = dataclasses.field(default=3, metadata={"instead_of": ("max_steps",)})
    """Epochs of training."""


@dataclasses.dataclass
class Base:
    """What toys share."""

    seed: int = 1
    """Number that all random draws depend on."""


@dataclasses.dataclass
class Toy(Base):
    """A toy run."""

    corpus: list[str] = dataclasses.field(default_factory=list)
    """Files to read."""
    seeds: list[int] = dataclasses.field(default_factory=lambda: [1])
    """One run for each."""
    name: str | None = None
    """Name of the run."""
    start: str = dataclasses.field(default="none", metadata={"flag": "--encoder"})
    """Where to start."""
    out: Path = Path("runs")
    """Folder of the run."""
    wandb: bool = True
    """Whether to log."""
    devices: int | str = "auto"
    """How many devices."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two moments."""
    secret: int = dataclasses.field(default=5, metadata={"hidden": True})
    """No flag for it."""
    shape: Shape = dataclasses.field(default_factory=Shape)
    optimizer: Rates = dataclasses.field(default_factory=lambda: Rates(learning_rate=0.5))
    length: Length = dataclasses.field(default_factory=Length)
    other: Rates | None = dataclasses.field(default=None, metadata={"hidden": True})


@dataclasses.dataclass
class Strict:
    """A run with something to give."""

    corpus: str
    """What to read."""


@dataclasses.dataclass
class Clash:
    """Two sections with a key in common."""

    one: Rates = dataclasses.field(default_factory=Rates)
    two: Rates = dataclasses.field(default_factory=Rates)


@dataclasses.dataclass
class Worded:
    """Settings that are words."""

    pooling: str | None = dataclasses.field(default=None, metadata={"words": ("cls", "mean")})
    """How to pool."""
    device: str = dataclasses.field(default="auto", metadata={"offers": ("cpu", "gpu")})
    """What to compute on."""


def read(text: str, tmp_path: Path, **flags: object) -> Toy:
    return settings.read(
        Toy, write(text, tmp_path), {k.replace("__", "."): v for k, v in flags.items()}
    )


def write(text: str, tmp_path: Path) -> Path:
    file = tmp_path / "toy.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def parse(*words: str, cls: type = Toy) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="toy")
    settings.add_flags(parser, cls)
    return settings.given(cls, parser.parse_args(words))


def help_text(cls: type = Toy) -> str:
    parser = argparse.ArgumentParser(prog="toy")
    settings.add_flags(parser, cls)
    return " ".join(parser.format_help().split())


def test_flags_win_over_yaml_and_yaml_over_defaults(tmp_path: Path) -> None:
    toy = read("seed: 2\nshape: {width: 16, heads: 4}\n", tmp_path, shape__width="32")
    assert (toy.seed, toy.shape.width, toy.shape.heads) == (2, 32, 4)
    assert toy.optimizer == Rates(learning_rate=0.5)


def test_nothing_given_is_the_defaults(tmp_path: Path) -> None:
    assert settings.read(Toy) == Toy() == read("", tmp_path) == read("shape:\n", tmp_path)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("3", 3.0), ("2.5E+1", 25.0), (".5", 0.5), ("'0.1'", 0.1)]
)
def test_numbers_in_any_spelling_are_floats(text: str, value: float, tmp_path: Path) -> None:
    rate = read(f"optimizer: {{learning_rate: {text}}}", tmp_path).optimizer.learning_rate
    assert rate == value
    assert isinstance(rate, float)


@pytest.mark.parametrize("word", ["no", "on", "yes", "off", "2024-01-01", "1:30", "y"])
def test_words_that_yaml_1_1_reads_otherwise_stay_text(word: str, tmp_path: Path) -> None:
    assert read(f"name: {word}", tmp_path).name == word


@pytest.mark.parametrize(
    ("word", "value"),
    [("no", False), ("on", True), ("true", True), ("False", False), ("off", False)],
)
def test_true_or_false_in_any_spelling(word: str, value: bool, tmp_path: Path) -> None:
    assert read(f"wandb: {word}", tmp_path).wandb is value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optimizer: {learning_rate: fast}",
            "optimizer.learning_rate: expected a number, got 'fast'",
        ),
        (
            "optimizer: {learning_rate: true}",
            "optimizer.learning_rate: expected a number, got true",
        ),
        (
            "optimizer: {learning_rate: .nan}",
            "optimizer.learning_rate: expected a number, got nan",
        ),
        ("seed: 1.5", "seed: expected a whole number, got 1.5"),
        ("seed: .inf", "seed: expected a whole number, got inf"),
        ("seed: null", "seed: expected a whole number, got none"),
        ("seed: {a: 1}", "seed: expected a whole number, got {'a': 1}"),
        ("shape: {depth: x}", "shape.depth: expected a whole number or none, got 'x'"),
        ("name: 7", "name: expected text or none, got 7; write it in quotes"),
        ("wandb: 1", "wandb: expected true or false, got 1"),
        ("out: 3", "out: expected a path, got 3"),
        ("betas: [0.9]", "betas: expected a list of 2 values, got [0.9]"),
        ("seeds: [1, two]", "seeds: expected a list, each a whole number, got 'two'"),
        ("shape: 3", "shape: expected keys with values, got 3"),
        ("- 1\n- 2", "expected keys with values, got [1, 2]"),
        (
            "optimizer: {schedule: cosin}",
            "optimizer.schedule: expected one of linear, cosine, slanted_triangular, "
            "got 'cosin'; did you mean 'cosine'?",
        ),
    ],
)
def test_wrong_type_names_file_key_and_value(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(text, tmp_path)
    assert str(error.value) == f"{tmp_path / 'toy.yaml'}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer: {lerning_rate: 1}", "'optimizer.lerning_rate'; did you mean 'learning_rate'?"),
        ("sede: 1", "'sede'; did you mean 'seed'?"),
        (
            "learning_rate: 1",
            "'learning_rate'; did you mean 'optimizer.learning_rate', in the section 'optimizer'?",
        ),
        (
            "lerning_rate: 1",
            "'lerning_rate'; did you mean 'optimizer.learning_rate', in the section 'optimizer'?",
        ),
        ("shape: {seed: 1}", "'shape.seed'; did you mean 'seed', at the top level?"),
        ("optimizer: {zzz: 1}", "'optimizer.zzz'; choose one of learning_rate, schedule"),
        ("7: 1", "'7'; choose one of"),
        ("[a]: 1", "not readable as YAML"),
    ],
)
def test_unknown_key_names_the_nearest_one(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(text, tmp_path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "toy.yaml"))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("seed: 1\nname: [a\n", 3, "expected ',' or ']'"),
        ("seed: 1\nname: b\nseed: 2\n", 3, "key 'seed' is given twice, first in line 1"),
        ("shape:\n  width: 4\n  width: 8\n", 3, "key 'width' is given twice, first in line 2"),
        ("seed: 1\n\tname: b\n", 2, "cannot start any token"),
        ("seed: *x\n", 1, "expected values, got an alias (*name); write the value out"),
        ("seed: 1\nseeds: &a [1]\nname: *a\n", 3, "got an alias"),
    ],
)
def test_bad_yaml_names_file_and_line(text: str, line: int, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(text, tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'toy.yaml'}:{line}: not readable as YAML")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_bytes(b"name: \xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"toy.yaml: not readable as YAML: [^\n]*$"):
        settings.read(Toy, tmp_path / "toy.yaml")


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.yaml: cannot be read: No such file"):
        settings.read(Toy, tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        settings.read(Toy, tmp_path)


def test_what_the_dataclass_refuses_names_file_and_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read("shape: {width: 9}", tmp_path)
    assert str(error.value) == f"{tmp_path / 'toy.yaml'}: shape: heads (2) must divide width (9)"


def test_file_is_not_blamed_for_a_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^heads \(3\) must divide width \(16\)"):
        read("shape: {width: 16}", tmp_path, shape__heads="3")
    with pytest.raises(ConfigError, match=r"^heads \(3\)"):
        settings.read(Toy, None, {"shape.heads": "3"})


def test_flag_may_mend_what_the_file_alone_would_break(tmp_path: Path) -> None:
    assert read("shape: {width: 9}", tmp_path, shape__heads="3").shape.width == 9


def test_wrong_flag_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="^--learning-rate: expected a number, got 'fast'$"):
        settings.read(Toy, None, parse("--learning-rate", "fast"))
    with pytest.raises(ConfigError, match="^--schedule: expected one of .* did you mean 'linear'"):
        settings.read(Toy, None, parse("--schedule", "liner"))


def test_a_word_that_is_not_in_the_table_names_flag_or_key_and_the_choices(tmp_path: Path) -> None:
    problem = "pooling: expected one of cls, mean or none, got 'meen'; did you mean 'mean'?"
    file = write("pooling: meen", tmp_path)
    for given, name in (((None, {"pooling": "meen"}), "--"), ((file,), f"{file}: ")):
        with pytest.raises(ConfigError) as error:
            settings.read(Worded, *given)  # type: ignore[misc]
        assert str(error.value) == f"{name}{problem}"
    with pytest.raises(ConfigError, match="^pooling: expected one of"):
        from_keywords(Worded, {"pooling": "meen"})
    made = settings.read(Worded, None, {"pooling": "none", "device": "mps"})
    assert made == Worded(None, "mps")
    offered = {one.key: one.words for one in settings.settings_of(Worded)}
    assert offered == {"pooling": ("cls", "mean"), "device": ("cpu", "gpu")}


def test_unknown_setting_from_code_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'sede'; did you mean 'seed'"):
        settings.read(Toy, None, {"sede": 1})


def test_flags_of_every_kind() -> None:
    words = "--corpus a b,c --seeds 1,2,3 --name none --encoder x --no-wandb --devices 2 --width 16"
    toy = settings.read(Toy, None, parse(*words.split(), "--max-steps", "1e3"))
    assert toy.corpus == ["a", "b,c"]
    assert toy.seeds == [1, 2, 3]
    assert (toy.name, toy.start, toy.wandb, toy.devices) == (None, "x", False, 2)
    assert toy.shape.width == 16
    assert toy.length == Length(max_steps=1000, max_epochs=None)
    assert toy.optimizer == Rates(learning_rate=0.5)


def test_only_written_flags_are_given() -> None:
    assert parse("--seed", "3") == {"seed": "3"}


def test_none_is_a_word_where_the_setting_may_not_be_none() -> None:
    assert settings.read(Toy, None, {"start": "none"}).start == "none"


def test_setting_displaces_those_it_stands_instead_of(tmp_path: Path) -> None:
    assert read("length: {max_steps: 5}", tmp_path).length == Length(5, None)
    assert read("length: {max_steps: 5}", tmp_path, length__max_epochs="2").length == Length(
        None, 2
    )
    assert read("length: {max_steps: 5, max_epochs: 1}", tmp_path).length == Length(5, 1)


def test_optional_section_is_built_when_something_in_it_is_given(tmp_path: Path) -> None:
    assert read("other: {schedule: cosine}", tmp_path).other == Rates(schedule="cosine")
    assert read("other: {}", tmp_path).other == Rates()
    assert read("other: null", tmp_path).other is None
    assert settings.read(Toy, None, {"other.schedule": "cosine"}).other == Rates(schedule="cosine")


def test_derived_values_follow_what_is_given(tmp_path: Path) -> None:
    assert read("shape: {width: 16}", tmp_path).shape.inner == 64


def test_setting_without_default_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--corpus is missing; give it, or set 'corpus'"):
        settings.read(Strict)
    assert settings.read(Strict, None, {"corpus": "a"}).corpus == "a"


def test_dump_shows_all_and_reads_back_equal(tmp_path: Path) -> None:
    toy = Toy(
        corpus=["no", "1e-4", "ä: b", "null"],
        name="on",
        optimizer=Rates(learning_rate=1e-5, schedule="cosine"),
        length=Length(None, None),
        other=Rates(),
        devices="1e3x",
    )
    text = settings.dump(toy)
    assert "inner: 32" in text
    assert read(text, tmp_path) == toy
    assert read(settings.dump(Toy()), tmp_path) == Toy()


def test_help_shows_docs_defaults_choices_and_headings() -> None:
    text = help_text()
    assert "--learning-rate X Highest learning rate, above 0; 50% is kept. (default: 0.5)" in text
    assert "--seed N Number that all random draws depend on. (default: 1)" in text  # inherited
    assert "--schedule {linear,cosine,slanted_triangular}" in text
    assert "optimizer: How fast." in text
    assert "--wandb, --no-wandb" in text
    assert "--corpus PATH" not in text
    assert "--corpus TEXT [TEXT ...] Files to read. (default: [])" in text
    assert "--seeds N,N,… One run for each. (default: [1])" in text
    assert "(default: none)" in text
    assert "--secret" not in text
    assert "--inner" not in text
    assert "(required)" in help_text(Strict)


def test_two_settings_with_one_flag_are_refused() -> None:
    with pytest.raises(TypeError, match="one.learning_rate and two.learning_rate both ask for"):
        help_text(Clash)


def test_setting_of_an_unsupported_type_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be of type"):
        convert("a", dict)


def test_whole_numbers_stay_exact() -> None:
    assert convert("12345678901234567891", int) == 12345678901234567891
    assert convert(12345678901234567891, int) == 12345678901234567891
