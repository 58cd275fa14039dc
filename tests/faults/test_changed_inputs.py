"""A run goes on only with what it began with: any other input is refused, by its content."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from finetune.files.checksums import write_checksums
from tasks.__main__ import main
from tests.made.texts import sentences
from tests.made.world import GLUE, PRETRAIN, SHAPE

READ = PRETRAIN.replace("max_steps: 12", "max_steps: 2")
ADAPT = "".join(
    line.replace("data:", "text:")
    for line in READ.removeprefix(SHAPE).splitlines(keepends=True)
    if not line.startswith("vocabulary")
)
FIT = GLUE.replace("max_epochs: 2", "max_steps: 2")


def labelled(seed: int, count: int, between: str) -> list[str]:
    return [f"{text}{between}{int('the' in text.split())}" for text in sentences(seed, count)]


@dataclass(frozen=True)
class Place:
    """Inputs, and runs that were made from them."""

    inputs: Path
    runs: Path

    @classmethod
    def make(cls, root: Path) -> Place:
        made = cls(root / "inputs", root / "runs")
        for number in (1, 2):
            made.write(f"corpus/{number}.txt", "\n\n".join(sentences(number, 100)))
        for split, seed, count in (("train", 1, 24), ("dev", 2, 12)):
            made.write(
                f"glue_data/SST-2/{split}.tsv",
                "\n".join(["sentence\tlabel", *labelled(seed, count, "\t")]),
            )
        for split, seed, count in (("train", 3, 24), ("validation", 4, 12), ("test", 5, 6)):
            made.write(f"own/{split}.csv", "\n".join(["text,label", *labelled(seed, count, ",")]))
        for name, content in (("read", READ), ("adapt", ADAPT), ("fit", FIT)):
            made.write(f"{name}.yaml", content)
        tokenizer = made.inputs / "tokenizer"
        corpus = ["--corpus", made.inputs / "corpus"]
        assert made.call("tokenizer", *corpus, "--vocab-size", 60, "--out", tokenizer) == 0
        made.begin("pretrain with a tokenizer")
        best = made.run("pretrain with a tokenizer") / "checkpoints" / "best"
        shutil.copytree(best, made.inputs / "encoder")
        return made

    def write(self, name: str, text: str) -> None:
        path = self.inputs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def words(self, kind: str) -> list[object]:
        """The command line of a kind of run."""
        place = self.inputs
        read = ["pretrain", "--config", place / "read.yaml", "--corpus", place / "corpus"]
        start = ["--encoder", place / "encoder"]
        adapt = ["adapt", "--config", place / "adapt.yaml", *start]
        fit = ["glue", "sst2", "--config", place / "fit.yaml", "--data", place]
        own = [f"--{split}={place}/own/{split}.csv" for split in ("train", "validation", "test")]
        tokenizer = ["--tokenizer", place / "tokenizer"]
        return {
            "pretrain": read,
            "pretrain with a tokenizer": [*read, *tokenizer],
            "adapt": [*adapt, "--corpus", place / "corpus"],
            "adapt to a task": [*adapt, "--task", "glue/sst2", "--data", place],
            "fit": [*fit, *start],
            "fit from scratch": [*fit, "--encoder", "none", *tokenizer],
            "fit two seeds": [*fit, *start, "--seeds", "1,2"],
            "adapt and fit": [*fit, *start, "--adapt", "2steps"],
            "fit own files": ["classify", "--config", place / "fit.yaml", *start, *own],
        }[kind]

    def call(self, *words: object) -> int:
        return main([*map(str, words)])

    def run(self, kind: str) -> Path:
        return self.runs / kind.replace(" ", "-")

    def begin(self, kind: str) -> None:
        if not self.run(kind).exists():
            assert self.call(*self.words(kind), "--out", self.run(kind)) == 0

    def resume(self, kind: str) -> int:
        return self.call(*self.words(kind), "--out", self.run(kind), "--resume")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    patch = pytest.MonkeyPatch()
    root: Path = tmp_path_factory.mktemp("inputs")
    patch.setenv("FINETUNE_CACHE", str(root / "cache"))
    yield Place.make(root)
    patch.undo()


@pytest.fixture
def place(made: Place, tmp_path: Path) -> Iterator[Place]:
    """The inputs, which are put back after each test."""
    shutil.copytree(made.inputs, tmp_path / "kept")
    yield made
    shutil.rmtree(made.inputs)
    shutil.copytree(tmp_path / "kept", made.inputs)


def replace_text(name: str, old: str, new: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        path = place.inputs / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def swap_rows(place: Place) -> None:
    path = place.inputs / "glue_data" / "SST-2" / "train.tsv"
    header, first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, second, first, *rest]))


def change_a_label(place: Place) -> None:
    path = place.inputs / "own" / "train.csv"
    lines = path.read_text().splitlines()
    lines[1] = f"{lines[1][:-1]}{1 - int(lines[1][-1])}"
    path.write_text("\n".join(lines) + "\n")


def add_a_member(place: Place) -> None:
    (place.inputs / "corpus" / "3.txt").write_text("the cat\n")


def remove_a_member(place: Place) -> None:
    (place.inputs / "corpus" / "2.txt").unlink()


def train_other_weights(place: Place) -> None:
    weights = load_file(place.inputs / "encoder" / "model.safetensors")
    changed = {name: tensor + 0.01 for name, tensor in weights.items()}
    save_file(changed, place.inputs / "encoder" / "model.safetensors", metadata={"format": "pt"})
    write_checksums(place.inputs / "encoder")


def change_the_shape(place: Place) -> None:
    path = place.inputs / "encoder" / "config.json"
    description = json.loads(path.read_text())
    description["encoder"]["layer_norm_eps"] = 1e-3
    path.write_text(json.dumps(description))
    write_checksums(path.parent)


def learn_another_tokenizer(*folders: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        for folder in folders:
            path = place.inputs / folder / "tokenizer.json"
            content = json.loads(path.read_text())
            vocabulary = content["model"]["vocab"]
            first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
            path.write_text(json.dumps(content))
            if folder == "encoder":
                write_checksums(path.parent)

    return change


SST2 = "glue_data/SST-2"
CHANGES: dict[str, tuple[str, Callable[[Place], None], str, str]] = {
    "a corpus file": (
        "pretrain",
        replace_text("corpus/1.txt", " ", "  the "),
        r"corpus file \S+/1.txt",
        "changed",
    ),
    "a member more in the corpus": (
        "pretrain with a tokenizer",
        add_a_member,
        r"corpus file \S+/3.txt",
        "new",
    ),
    "a member less in the corpus": (
        "pretrain with a tokenizer",
        remove_a_member,
        r"corpus file \S+/2.txt",
        "missing",
    ),
    "the tokenizer of a pretraining": (
        "pretrain with a tokenizer",
        learn_another_tokenizer("tokenizer"),
        r"tokenizer \(\S+/inputs/tokenizer\)",
        "changed",
    ),
    "the corpus of an adaptation": (
        "adapt",
        replace_text("corpus/2.txt", " ", "  the "),
        r"corpus file \S+/2.txt",
        "changed",
    ),
    "the weights that an adaptation starts from": (
        "adapt",
        train_other_weights,
        r"encoder weights \(\S+/encoder\)",
        "changed",
    ),
    "the texts that an encoder is adapted to": (
        "adapt to a task",
        replace_text(f"{SST2}/train.tsv", " ", " the "),
        r"texts of glue/sst2",
        "changed",
    ),
    "a text to train on": (
        "fit",
        replace_text(f"{SST2}/train.tsv", " ", " the "),
        r"train examples \(\S+/train.tsv\)",
        "changed",
    ),
    "the order of the rows to train on": (
        "fit",
        swap_rows,
        r"train examples \(\S+/train.tsv\)",
        "changed",
    ),
    "a label to train on": (
        "fit own files",
        change_a_label,
        r"train examples \(\S+/train.csv\)",
        "changed",
    ),
    "a row to validate on": (
        "fit",
        replace_text(f"{SST2}/dev.tsv", " ", " the "),
        r"validation examples \(\S+/dev.tsv\)",
        "changed",
    ),
    "the user's validation file": (
        "fit own files",
        replace_text("own/validation.csv", " ", " the "),
        r"validation examples \(\S+/validation.csv\)",
        "changed",
    ),
    "the user's test file": (
        "fit own files",
        replace_text("own/test.csv", " ", " the "),
        r"test examples \(\S+/test.csv\)",
        "changed",
    ),
    "the encoder's weights": (
        "fit",
        train_other_weights,
        r"encoder weights \(\S+/encoder\)",
        "changed",
    ),
    "the encoder's settings": (
        "fit",
        change_the_shape,
        r"encoder config \(\S+/encoder\)",
        "changed",
    ),
    "the encoder's tokenizer": (
        "fit",
        learn_another_tokenizer("encoder"),
        r"tokenizer \(\S+/encoder\)",
        "changed",
    ),
    "the tokenizer of random weights": (
        "fit from scratch",
        learn_another_tokenizer("tokenizer"),
        r"tokenizer \(\S+/tokenizer\)",
        "changed",
    ),
    "the data of two seeds": (
        "fit two seeds",
        replace_text(f"{SST2}/train.tsv", " ", " the "),
        r"train examples \(\S+/train.tsv\)",
        "changed",
    ),
    "what an adaptation that has ended was made from": (
        "adapt and fit",
        train_other_weights,
        r"encoder weights \(\S+/encoder\)",
        "changed",
    ),
}
"""What is changed -> the run, the change, what the message names, and how it calls that."""


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_is_not_resumed_with_another_input(
    what: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change, name, how = CHANGES[what]
    place.begin(kind)
    before = contents(place.run(kind))
    change(place)
    capsys.readouterr()
    assert place.resume(kind) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("finetune:")]
    wanted = rf"finetune: \S+: {how} input since the run began: {name}; restore it .*"
    assert re.fullmatch(wanted, line), line
    assert contents(place.run(kind)) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_content_in_another_file_goes_on(place: Place) -> None:
    place.begin("fit")
    path = place.inputs / "glue_data" / "SST-2" / "train.tsv"
    with gzip.open(f"{path}.gz", "wt") as packed:
        packed.write(path.read_text())
    path.unlink()
    (place.inputs / "encoder" / "notes.txt").write_text("mine")
    assert place.resume("fit") == 0


def test_a_changed_input_is_refused_before_the_first_checkpoint_too(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.begin("fit")
    run = place.run("fit")
    kept = run.with_name("kept")
    shutil.copytree(run, kept)
    shutil.rmtree(run / "checkpoints")
    (run / "results.json").unlink()
    train_other_weights(place)
    assert place.resume("fit") == 2
    assert "encoder weights" in capsys.readouterr().err
    assert place.call(*place.words("fit"), "--out", run) == 0  # it had nothing to lose
    shutil.rmtree(run)
    kept.rename(run)


def test_a_run_of_an_earlier_version_goes_on_with_a_notice(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.begin("fit")
    record = place.run("fit") / "inputs.json"
    before = record.read_bytes()
    record.unlink()
    capsys.readouterr()
    assert place.resume("fit") == 0
    notice = "has no inputs.json (an earlier version began the run)"
    assert capsys.readouterr().err.count(notice) == 1
    assert record.read_bytes() == before
    assert place.resume("fit") == 0
    assert notice not in capsys.readouterr().err


def test_a_damaged_record_is_one_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.begin("fit")
    record = place.run("fit") / "inputs.json"
    before = record.read_bytes()
    for damaged in (b"", b"[]", b'{"a": 1}'):
        record.write_bytes(damaged)
        capsys.readouterr()
        assert place.resume("fit") == 2
        assert "inputs.json: expected the digests of what the run reads" in capsys.readouterr().err
    record.write_bytes(before)
