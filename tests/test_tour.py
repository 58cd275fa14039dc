"""Every command of the README and of each docs page works as written, in order, on small data."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.__main__ import main
from tests.made.commands import ROOT
from tests.made.families import write_families
from tests.made.nets import hugging_face_model
from tests.made.official import GLUE, write_files
from tests.made.texts import learned_tokenizer, sentences, which_words, write_csv
from tests.tasks.own.test_text_sets import QUESTIONS, unpack
from tests.tasks.test_demo import shortened
from tests.test_readme import commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # small data give many of them
]
README = ROOT / "README.md"
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if commands(page.read_text("utf-8")))
ELSEWHERE = {
    "make": "it installs; `finetune demo` is run in its place",
    "pip": "it installs",
    "source": "it changes the shell",
    "export": "it changes the shell",
    "wandb": "it asks the network",
    "torchrun": "it starts processes: tests/cli/test_processes.py does",
    "srun": "SLURM is asked; tests/cli/test_processes.py stands in for it",
    "finetune dashboard --entity my-team --project finetune": "it asks the network",
}
"""How a command that is not run begins, and why it is not."""
OF_A_PART = {"finetune submit ": "--allow-subset", "finetune submit --check": "--allow-missing"}
"""What is added to commands that ask for the files of the whole benchmark."""
SMALL = {
    "encoder": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "vocabulary": {"vocab_size": 100},
    "loader": {"batch_size": 8},
    "trainer": {"log_every_steps": 2, "validate_every_steps": 3},
    "checkpoints": {"checkpoint_every_steps": 3},
    "tracking": {"wandb": False},
}
"""What differs from the shipped configs: all that takes time."""


def write_place(folder: Path) -> Path:
    """A folder with all that the pages name: configs, data, a published encoder, own files."""
    _write_configs(folder)
    _write_data(folder / "data")
    _write_own(folder)
    for name in ("sentence-transformers", "models"):
        place = folder / name / "all-MiniLM-L6-v2"
        hugging_face_model(
            "Model", learned_tokenizer(), place, vocab_size=60, max_position_embeddings=512
        )
    return folder


def _write_configs(folder: Path) -> None:
    for path in (ROOT / "configs").rglob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.parent.name != "sweeps":
            content = {"loader": {}, "tracking": {}, **content}
            for key in SMALL.keys() & content.keys():
                content[key] = {**content[key], **SMALL[key]}
        if path.parent.name == "pretrain":
            content["length"] = {"max_steps": 6}
        out = folder / path.relative_to(ROOT)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(yaml.safe_dump(content), encoding="utf-8")


def _write_data(root: Path) -> None:
    write_families(root.parent / "families").data.rename(root)
    shutil.rmtree(root.parent / "families")
    many = {name: _repeated(name, text) for name, text in GLUE.items()}
    write_files(root, many)
    unpack(root)
    (root / "trec").mkdir()
    for name in ("train_5500.label", "TREC_10.label"):
        (root / "trec" / name).write_text("\n".join(QUESTIONS * 3) + "\n", encoding="latin-1")
    corpus = root / "corpus"
    wiki, novel = corpus / "wikitext-2" / "wiki.train.tokens", corpus / "english_novels" / "a.txt"
    for path, texts in ((wiki, [*sentences(0, 300), *_many_words()]), (novel, sentences(1, 300))):
        path.parent.mkdir(parents=True)
        articles = [f" = Part {n} = \n\n {text} king\n" for n, text in enumerate(texts)]
        path.write_text("\n".join(articles), encoding="utf-8")


def _many_words() -> list[str]:
    """Texts of so many words that a vocabulary of 8,192 can be learned from them."""
    syllables = ("ba", "de", "fi", "go", "lu", "ma", "ne", "po", "ra", "si")
    words = ["".join(word) for word in itertools.product(syllables, repeat=4)]
    return [" ".join(words[start : start + 20]) for start in range(0, len(words), 20)] * 2


def _repeated(name: str, text: str) -> str:
    """A file of GLUE with its rows many times, each with an id and texts of its own."""
    lines = text.splitlines()
    headed = 0 if name in ("CoLA/train.tsv", "CoLA/dev.tsv") else 1
    more = iter(sentences(5, 1000))
    rows = [
        [f"{cell} {next(more)}" if " " in cell else cell for cell in row.split("\t")]
        for row in lines[headed:] * 20
    ]
    if lines[0].startswith(("index\t", "id\t")):
        rows = [[str(number), *row[1:]] for number, row in enumerate(rows)]
    return "".join(f"{line}\n" for line in [*lines[:headed], *map("\t".join, rows)])


def _write_own(folder: Path) -> None:
    for name, seed in (("train", 1), ("held-out", 2)):
        rows = [
            [text, which_words(text) or "none", text, len(text) / 7] for text in sentences(seed, 40)
        ]
        write_csv(folder / f"{name}.csv", ["text", "label", "body", "stars"], rows)
        split = {"train": "train", "held-out": "validation"}[name]
        own = folder / "data" / "own"
        shutil.copy(
            folder / "data" / "squad" / f"{split.replace('validation', 'dev')}-v2.0.json",
            folder / f"{name}.json",
        )
        shutil.copy(own / f"{split}-choices.jsonl", folder / f"{name}.jsonl")
    write_csv(folder / "new.csv", ["text"], [[text] for text in sentences(3, 5)])
    (folder / "texts.txt").write_text("\n".join(sentences(4, 5)) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def after_readme(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is there when the README's commands have been run."""
    folder = copied(place, tmp_path_factory.mktemp("readme") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FINETUNE_CACHE", str(folder / "cache"))
        run_page(README)
    for name, made in (("mnli-pretrained", "sst2"), ("mnli-scratch", "sst2-scratch")):
        copied(folder / "runs" / made, folder / "runs" / name)
    return folder


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def to_run(page: Path) -> Iterator[str]:
    for command in commands(page.read_text(encoding="utf-8")):
        command = command.replace("make demo", "finetune demo")
        if not command.startswith(tuple(ELSEWHERE)):
            more = [flag for start, flag in OF_A_PART.items() if command.startswith(start)]
            yield " ".join([command, *(flag for flag in more if flag not in command)])


def run_page(page: Path) -> None:
    """Run its commands in this folder."""
    for command in to_run(page):
        print(f"$ {command}", flush=True)
        if "'|'" in command:
            status, said = in_shell(command)
        else:
            status, said = in_this_process(command)
        assert status == 0, f"{command}\n{said}"


def in_this_process(command: str) -> tuple[int, str]:
    words = shlex.split(command)[1:]
    said = pytest.MonkeyPatch()
    lines: list[str] = []
    with said.context() as patch:
        patch.setattr("sys.stderr", _Kept(sys.stderr, lines))
        if words[0] == "demo":
            with shortened():
                return main(words), "".join(lines)
        return main(words), "".join(lines)


class _Kept:
    """A stream whose text is kept too."""

    def __init__(self, stream: Any, lines: list[str]) -> None:
        self.stream, self.lines = stream, lines

    def write(self, text: str) -> int:
        self.lines.append(text)
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def in_shell(command: str) -> tuple[int, str]:
    """A line with a pipe, `finetune` being this checkout's."""
    program = f"{shlex.quote(sys.executable)} -m finetune "
    line = command.replace("'|'", "|").replace("finetune ", program)
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stderr


def test_readme(after_readme: Path) -> None:
    assert (after_readme / "report.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_docs_page(
    page: Path, place: Path, after_readme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that it names and does not make itself are those of the README."""
    home = copied(place, tmp_path / "home")
    lines = list(to_run(page))
    made = {
        word
        for line in lines
        for before, word in zip(shlex.split(line), shlex.split(line)[1:], strict=False)
        if before == "--out"
    }
    for run in (after_readme / "runs").iterdir():
        if f"runs/{run.name}" not in made:
            copied(run, home / "runs" / run.name)
    if not any("--out glue.zip" in line for line in lines):
        shutil.copy(after_readme / "glue.zip", home)
    monkeypatch.chdir(home)
    run_page(page)
