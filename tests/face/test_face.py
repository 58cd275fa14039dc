"""The face that users and their programs see: help texts, keys in files, and reports of runs.

It is compared with what `recorded/` holds, so that it changes on purpose only. To record it anew:

    pytest tests/face --record-face

Look at `git diff tests/face` then, and add a line to CHANGELOG.md. Nothing here depends on where a
module lies, nor on the terminal, the machine or the optional packages.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import finetune
from finetune import cli
from finetune.__main__ import main
from finetune.runs.families import using_families
from tests.face.reduced import (
    as_lines,
    files_below,
    keys,
    keys_of_file,
    normalized,
    sections,
    tensors,
    visible,
)
from tests.made.families import Files, write_families
from tests.made.inside import write_inside
from tests.made.runs import FAMILIES, class_rows, metric_lines, write_run, write_world
from tests.made.texts import which_words, write_json, write_lines, write_tables

if TYPE_CHECKING:
    from tests.face.conftest import Compare
    from tests.made.commands import Call
    from tests.made.world import World


def test_public_names(compare_with_recorded: Compare) -> None:
    compare_with_recorded("names", {"finetune": "\n".join(finetune.__all__) + "\n"})


# --help


def test_help_of_every_command(
    call: Call, compare_with_recorded: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    overview = call("--help").out
    texts = {"finetune": overview}
    for word in _listed(overview):
        texts[word] = call(word, "--help").out
        whole = call(word, "--help-all").out
        if whole != texts[word]:
            texts[f"{word}-all"] = whole
        if f"usage: finetune {word} KIND" in texts[word]:
            for kind in _listed(texts[word]):
                texts[f"{word}-{kind}"] = call(word, kind, "--help").out
    compare_with_recorded("help", {name: _of_any_python(text) for name, text in texts.items()})


def _listed(overview: str) -> list[str]:
    """The words that begin the rows of an overview."""
    return re.findall(r"^  (\S+)  +\S", overview, re.MULTILINE)


def _of_any_python(text: str) -> str:
    """As Python 3.13 lays out an option of two names: the value once, behind the last of them."""
    return re.sub(r"(--\S+) ([A-Z]+), (?=--\S+ \2)", r"\1, ", text)


# Keys


@pytest.fixture(scope="module")
def runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each kind."""
    root: Path = tmp_path_factory.mktemp("runs")
    files = write_families(root)
    made = {"pretrain": world.pretrained, "glue": world.tuned}
    cache = ["--cache-dir", root / "cache", "--quiet"]
    for name, words in _commands(world, files):
        made[name] = root / name
        command = [*words, "--encoder", world.pretrained, "--out", made[name], *cache]
        assert main([str(word) for word in command]) == 0
    return made


def _commands(world: World, files: Files) -> Iterator[tuple[str, list[object]]]:
    data, two = files.data, ["--max-steps", 2]
    fit, spans = ["--config", files.config, *two], ["--config", files.span_config, *two]
    yield "adapt", ["adapt", "--corpus", world.corpus, "--no-wandb", "--max-length", 16, *two]
    glue = ["glue", "sst2", "--config", world.glue_config, "--data", world.data]
    phases = ["--unfreeze", "gradual", "--phase-epochs", 0.1, "--max-steps", 6]
    yield "glue-seeds", [*glue, "--seeds", "1,2", *phases]
    yield "squad", ["squad", "2.0", "--data", data, *spans]
    yield "race", ["race", "all", "--data", data, *fit]
    yield "classify", ["classify", *_own(files, ".csv"), *fit]
    regression = write_tables(files.data, lambda text: len(text) / 7, "-regression")
    yield "classify-regression", ["classify", *regression, *fit]
    labels = write_tables(files.data, which_words, "-several")
    several = ["--separator", ";", "--kind", "multi_label", *fit]
    yield "classify-multi-label", ["classify", *labels, *several]
    yield "answer", ["answer", *_own(files, "-answers.jsonl"), *spans]
    yield "choose", ["choose", *_own(files, "-choices.jsonl"), *fit]


def _own(files: Files, ending: str) -> list[object]:
    splits = ("train", "validation", "test")
    return [word for split in splits for word in (f"--{split}", files.own(f"{split}{ending}"))]


def test_keys_of_the_files_of_each_kind_of_run(
    world: World, runs: dict[str, Path], compare_with_recorded: Compare
) -> None:
    folders = {world.root: "WORLD", runs["adapt"].parent: "RUNS"}
    texts = {name: normalized(_keys_of_run(run), folders) for name, run in runs.items()}
    compare_with_recorded("keys", texts)


def _keys_of_run(run: Path) -> str:
    parts = {"files": files_below(run)}
    ends = ("config.yaml", "results.json", "metrics.jsonl", "predictions/*.jsonl", "inputs.json")
    for pattern in (*ends, "checkpoints/best/config.json"):
        parts |= {
            path.relative_to(run).as_posix(): keys_of_file(path) for path in run.glob(pattern)
        }
    for path in run.glob("checkpoints/best/*.safetensors"):
        parts[path.relative_to(run).as_posix()] = tensors(path)
    return sections(parts)


# Made runs, and what commands tell of them


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs`, all of them made from given numbers, and `inside`."""
    root: Path = tmp_path_factory.mktemp("made")
    place = write_world(root / "runs")
    stuck = [{**row, "prediction": "no"} for row in class_rows(4, 0.5)]
    write_run(place / "stuck", "classes", {"accuracy": 0.5}, stuck, seed=4, collapsed=True)
    write_lines(place / "stopped" / "metrics.jsonl", metric_lines(5, steps=120))
    (place / "stopped" / "config.yaml").write_text("task: made/classes\nseeds: [1, 2]\n")
    write_json(place / "broken" / "results.json", ["no results"])
    for log in place.rglob("metrics.jsonl"):  # fewer points to record
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(lines[4::5]))
    write_inside(root / "inside")
    return root


@pytest.fixture
def told(made: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command on made runs: what it prints, JSON in lines."""

    def run(*words: object) -> str:
        capsys.readouterr()
        with using_families(FAMILIES):
            status = cli.main([str(word) for word in words], {})
        out, err = capsys.readouterr()
        if "--json" in words:
            out = "\n".join(as_lines(json.loads(out)))
        parts = {"status": str(status), "stdout": out, "stderr": err}
        return normalized(sections(parts), {made: "MADE"})

    return run


def test_what_commands_tell_of_made_runs(
    made: Path, told: Callable[..., str], compare_with_recorded: Compare
) -> None:
    commands = {
        "runs": ["runs", made / "runs", "--sort", "task"],
        "compare": ["compare", made / "runs" / "fine", made / "runs" / "plain"],
    }
    texts = {}
    for name, words in commands.items():
        texts[name] = told(*words)
        texts[f"{name}-json"] = told(*words, "--json")
    compare_with_recorded("made", texts)


def test_the_page_of_made_runs(
    made: Path, told: Callable[..., str], compare_with_recorded: Compare
) -> None:
    page = made / "report.html"
    words = ["report", made / "runs", made / "nowhere", "--out", page, "--data", made]
    texts = {"report": told(*words), "report-json": told(*words, "--json")}
    words = [made / "runs" / "choices", "--out", page, "--data", made, "--inside", made / "inside"]
    whole = page.read_text(encoding="utf-8")
    texts["report-page"] = normalized(visible(whole), {made: "MADE"})
    with using_families(FAMILIES):
        assert cli.main([str(word) for word in ["report", *words]], {}) == 0
    inside = page.read_text(encoding="utf-8")
    texts["report-page-inside"] = normalized(visible(inside), {made: "MADE"})
    compare_with_recorded("page", texts)


def test_an_export_of_a_made_run(
    world: World, made: Path, told: Callable[..., str], compare_with_recorded: Compare
) -> None:
    """Made results beside a checkpoint that was trained, of which only names and keys are told."""
    run, out = made / "export" / "run", made / "export" / "out"
    shutil.copytree(made / "runs" / "fine" / "seed-1", run)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(world.tuned / "checkpoints" / "best", run / "checkpoints" / "best")
    words = ["export", run, "--format", "hf", "--out", out]
    texts = {"export": told(*words), "export-json": told(*words, "--overwrite", "--json")}
    card = (out / "README.md").read_text(encoding="utf-8")
    texts["export-card"] = normalized(card, {made: "MADE"})
    config = keys(json.loads((out / "config.json").read_text()))
    weights = tensors(out / "model.safetensors")
    texts["export-files"] = sections(
        {"files": files_below(out), "config.json": config, "model.safetensors": weights}
    )
    compare_with_recorded("export", texts)
