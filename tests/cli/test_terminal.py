"""What commands say and to whom: --quiet, --json, colours, and the list of runs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from finetune.cli.commands import command_table
from finetune.cli.completion import read_pages
from finetune.cli.main import _warnings_in_one_line
from finetune.runs.folder import RunFolder
from tasks.__main__ import COMMANDS, main
from tests.made.commands import ROOT

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses, Start
    from tests.made.world import World

TABLE = command_table(COMMANDS)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


# --quiet and --json


def test_quiet_leaves_the_result_alone(world: World, tmp_path: Path, call: Call) -> None:
    outcome = call(*world.glue(tmp_path / "run", "--max-steps", 2, "--quiet"))
    assert outcome.status == 0
    assert outcome.err == ""
    assert outcome.json.keys() == {"task", "split", "metrics"}
    again = call("evaluate", tmp_path / "run", "--quiet")
    assert again.err == ""
    assert again.json["metrics"] == outcome.json["metrics"]


def test_quiet_still_tells_an_error(world: World, refuses: Refuses) -> None:
    refuses(".* already contains a run; .*", *world.glue(world.tuned, "--quiet"))


def test_quiet_still_tells_what_is_wrong_with_a_submission(tmp_path: Path, call: Call) -> None:
    (tmp_path / "bad.zip").write_text("no zip")
    outcome = call("submit", "--check", tmp_path / "bad.zip", "--quiet")
    assert outcome.status == 2
    assert outcome.err.startswith("finetune: ")


def test_json_is_all_that_the_run_folder_keeps(world: World, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    outcome = call(*world.glue(run, "--max-steps", 2, "--json", "--quiet"))
    assert outcome.err == ""
    assert outcome.json == read(run / "results.json")
    again = call("evaluate", run, "--json")
    assert again.json["metrics"] == outcome.json["metrics"]
    assert again.json["examples"] == 30


def test_json_of_a_pretraining(world: World, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    words = world.pretrain(run, "--tokenizer", world.tokenizer, "--max-steps", 2, "--json")
    assert call(*words).json == read(run / "results.json")


def test_json_of_what_is_no_run(world: World, tmp_path: Path, call: Call, refuses: Refuses) -> None:
    learnt = tmp_path / "tokenizer"
    words = ["tokenizer", "--corpus", world.corpus, "--vocab-size", 60, "--out", learnt, "--json"]
    assert call(*words).json == {"tokenizer": str(learnt), "vocab_size": 60}
    texts, answers = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    texts.write_text("the cat\na dog\n")
    asked = ["predict", world.tuned, "--input", texts, "--json"]
    assert call(*asked, "--output", answers).json == {"answers": 2, "output": str(answers)}
    refuses("--json goes with --output FILE: .*", *asked)


def test_json_of_an_inspection_is_the_file(world: World, tmp_path: Path, call: Call) -> None:
    words = ["inspect", "words", world.tuned, "cat", "--out", tmp_path / "out"]
    assert call(*words, "--json", "--quiet").json == read(tmp_path / "out" / "words.json")


# Colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_an_error_is_red_on_a_terminal(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["nonsense"]) == 2
    assert screen.getvalue().startswith("\x1b[31mfinetune:\x1b[0m " if coloured else "finetune: ")


# Streams that nobody reads


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_stream_that_is_closed_is_no_error(closed: str, runs: Path) -> None:
    command = f"{sys.executable} -m tasks runs {runs} {closed}"
    (runs / "bad").mkdir()
    (runs / "bad" / "results.json").write_text("{")
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("bad: " in done.stderr) == ("2>&-" not in closed)
    assert "bad: " not in done.stdout


def test_a_reader_that_goes_is_no_error(runs: Path) -> None:
    command = f"{sys.executable} -m tasks runs {runs} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("path", [page.path for page in read_pages(TABLE)])
def test_help_fits_a_terminal(path: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "--help-all"):
        shown = call(*path.split(), flag).out
        assert shown.startswith("usage: finetune ")
        assert [line for line in shown.splitlines() if len(line) > 80] == []


# Places that are none


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    file = tmp_path / "file"
    file.touch()
    for action in ("list", "clear"):
        words = ["cache", action, "--cache-dir", file]
        refuses(f"cache_dir {file}: {file}: Not a directory; name a folder that .*", *words)
    refuses(f"--out {file}: {file} is a file; name a folder", "demo", "--out", file)


def test_a_zip_that_is_not_there_is_told_in_words(tmp_path: Path, refuses: Refuses) -> None:
    told = "expected a zip, got none that can be read: No such file or directory"
    refuses(f".*none.zip: {told}", "submit", "--check", tmp_path / "none.zip")


# The list of runs


@pytest.fixture
def runs(world: World, tmp_path: Path) -> Path:
    """One that has ended of each kind, one that was interrupted and one that is degenerate."""
    place = tmp_path / "runs"
    for name, source in (
        ("pretrained", world.pretrained),
        ("good", world.tuned),
        ("cut", world.tuned),
        ("a-run-whose-name-is-longer-than-a-table-allows/flat", world.tuned),
    ):
        (place / name).mkdir(parents=True)
        for part in ("config.yaml", "results.json", "metrics.jsonl"):
            shutil.copy(source / part, place / name / part)
        if name != "pretrained":
            results = read(place / name / "results.json") | {"collapsed": name.endswith("flat")}
            (place / name / "results.json").write_text(json.dumps(results))
    (place / "cut" / "results.json").unlink()
    return place


def test_runs_are_listed_with_scores_and_states(runs: Path, call: Call) -> None:
    outcome = call("runs", runs, "--sort", "task")
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["run", "task", "encoder", "score", "seeds", "date", "state"]
    assert max(map(len, lines)) <= 80
    told = [(line.split()[0], line.split()[-1]) for line in lines[2:]]
    assert [state for _, state in told] == ["degenerate", "interrupted", "done", "done"]
    assert told[0][0].startswith("…")
    assert told[0][0].endswith("allows/flat")
    score = read(runs / "good" / "results.json")["metrics"]["accuracy"]
    assert re.search(
        f"^good +glue/sst2 +pretrained +accuracy {100 * score:.1f} +1 +\\S+ +done$", lines[4]
    )
    assert re.search("^cut +glue/sst2 +pretrained +step \\d+ +0/1 +\\S+ +interrupted$", lines[3])


def test_a_run_that_goes_on_is_listed_as_running_and_is_left_alone(
    runs: Path, world: World, call: Call, refuses: Refuses
) -> None:
    with RunFolder(runs / "cut").hold():
        assert "running" in call("runs", runs).out
        words = world.glue(runs / "cut", "--overwrite")
        refuses(
            f".*cut: expected a folder that no running process uses, .* {os.getpid()}; .*",
            *words,
        )
        assert (runs / "cut" / "metrics.jsonl").is_file()
    assert "running" not in call("runs", runs).out


def test_runs_as_json_in_any_order_and_only_some(runs: Path, call: Call) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "results.json").write_text("{")
    outcome = call("runs", runs, "--json", "--sort", "state")
    states = [run["state"] for run in outcome.json["runs"]]
    order = ["running", "done", "interrupted", "degenerate", "damaged"]
    assert states == sorted(states, key=order.index)
    ((problem,)) = outcome.json["problems"]
    assert problem["folder"] == str(runs / "bad")
    assert outcome.err.startswith(f"{runs}/bad: ")
    assert outcome.err.count("\n") == 1
    only = call("runs", runs, "--json", "--state", "degenerate").json["runs"]
    assert [run["degenerate"] for run in only] == [[1]]
    with pytest.warns(FutureWarning, match="--state collapsed is now --state degenerate"):
        assert call("runs", runs, "--json", "--state", "collapsed").json["runs"] == only
    for key in ("name", "score", "minutes", "date", "task"):
        assert len(call("runs", runs, "--json", "--sort", key).json["runs"]) == 5


def test_a_folder_without_runs(tmp_path: Path, call: Call, refuses: Refuses) -> None:
    assert call("runs", tmp_path).out == f"{tmp_path}: no runs\n"
    refuses(".*none: expected a folder of runs, got no such folder", "runs", tmp_path / "none")
    (tmp_path / "file").touch()
    refuses(".*file: expected a folder of runs, got a file", "runs", tmp_path / "file")


def test_a_run_in_another_process_is_seen_until_it_is_killed(
    world: World, tmp_path: Path, start: Start, call: Call
) -> None:
    run = tmp_path / "run"
    words = world.pretrain(run, "--tokenizer", world.tokenizer, "--max-steps", 10**6)
    process = start(*words, "--num-workers", 1)
    while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").stat().st_size:
        assert process.popen.poll() is None, process.end()
        time.sleep(0.05)
    assert call("runs", tmp_path, "--json").json["runs"][0]["state"] == "running"
    process.popen.kill()
    process.popen.wait()
    listed = call("runs", tmp_path, "--json").json["runs"][0]
    assert (listed["state"], listed["task"]) == ("interrupted", "pretrain")
    assert listed["step"] > 0


def test_a_warning_is_one_line_without_its_place_in_the_code() -> None:
    with _warnings_in_one_line():
        text = warnings.formatwarning("two\nlines", UserWarning, "file.py", 1)
    assert text == "finetune: warning: two lines\n"
