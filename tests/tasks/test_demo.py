"""The demo: its table holds what its runs reached, and the pretrained encoder wins for real."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.runs.folder import RunFolder
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.stopping import Interrupted
from tasks import demo
from tasks.__main__ import main
from tasks.sample import sample

TASKS = {task: metric for task, metric in demo.TASKS.items() if task != "glue/rte"}
"""One of each family."""


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """The demo on a smaller sample, with two steps a run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("pretraining", "fine_tuning"):
            patch.setattr(demo, name, functools.partial(two_steps, getattr(demo, name)))
        patch.setattr(demo, "TASKS", TASKS)
        patch.setattr(sample, "CORPUS_DOCUMENTS", 300)
        patch.setattr(sample, "EXAMPLES", {"train": 40, "dev": 40, "test": 40})
        yield


def two_steps(whole: Callable[..., Any], *arguments: Any) -> Any:
    return dataclasses.replace(whole(*arguments), length=LengthConfig(max_steps=2))


@dataclasses.dataclass(frozen=True)
class Demo:
    """A demo that has been run."""

    folder: Path
    lines: list[str]
    """On stdout."""
    told: str
    """On stderr."""


def run(folder: Path) -> Demo:
    out, err = io.StringIO(), io.StringIO()
    with shortened(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["demo", "--out", str(folder)]) == 0
    return Demo(folder, out.getvalue().splitlines(), err.getvalue())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run(tmp_path_factory.mktemp("runs") / "demo")


def test_the_table_holds_what_the_runs_reached(shown: Demo) -> None:
    assert "minutes on two cores" in shown.told
    for task, metric in TASKS.items():
        runs = [
            RunFolder(shown.folder / f"{task.replace('/', '-')}-{start}").read_results()
            for start in ("scratch", "pretrained")
        ]
        scores = [
            runs[0]["baselines"]["trivial"][metric],
            *(run["metrics"][metric] for run in runs),
        ]
        (row,) = (line for line in shown.lines if line.startswith(task))
        assert row.split()[1:] == [f"({metric})", *(f"{100 * score:.1f}" for score in scores)]


def test_it_ends_by_a_report_of_all_its_runs_and_says_where(shown: Demo) -> None:
    (line,) = (line for line in shown.lines if line.startswith("report: "))
    page = Path(line.removeprefix("report: "))
    assert page == shown.folder / "report.html"
    text = page.read_text(encoding="utf-8")
    folders = [
        f"{task.replace('/', '-')}-{start}" for task in TASKS for start in ("scratch", "pretrained")
    ]
    assert all(name in text for name in [*folders, "pretrained"])
    assert "Warnings" not in text or "is not in the form" not in text


def test_the_commands_to_try_next_work(
    shown: Demo, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where inspect writes its files
    commands = [shlex.split(line) for line in shown.lines if line.startswith("  finetune ")]
    assert [words[1] for words in commands] == ["evaluate", "predict", "inspect"]
    assert all(main(words[1:]) == 0 for words in commands)
    scored, *answers = capsys.readouterr().out.splitlines()
    pairs = [line.split() for line in answers[5:]]
    del answers[5:]
    assert pairs[-1][:2] == ["all", "800"]
    assert json.loads(scored)["split"] == "test"
    assert [set(json.loads(answer)) >= {"id", "prediction"} for answer in answers] == 5 * [True]


def test_a_second_demo_replaces_the_first_and_says_the_same(shown: Demo) -> None:
    tables = [
        [line for line in lines if " minutes; " not in line]
        for lines in (shown.lines, run(shown.folder).lines)
    ]
    assert tables[0] == tables[1]


def test_where_it_is_stopped_nothing_is_said_of_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(run: Any) -> None:
        raise Interrupted(signal.SIGINT, Path(run.out))

    monkeypatch.setattr("finetune.jobs.pretrain", stopped)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == ("finetune: the demo was stopped; finetune demo starts again from the beginning")


@pytest.mark.parametrize("task", list(demo.TASKS))
def test_both_starts_are_fine_tuned_under_the_same_settings(tmp_path: Path, task: str) -> None:
    runs = [
        dataclasses.asdict(demo.fine_tuning(task, start, tmp_path, tmp_path, 1))
        for start in ("none", str(tmp_path / "pretrained"))
    ]
    differing = {key for key in runs[0] if runs[0][key] != runs[1][key]}
    assert differing == {"encoder_from", "tokenizer", "out"}
    json.dumps(runs)


def test_every_family_that_the_sample_has_files_for_takes_part() -> None:
    assert {task.split("/")[0] for task in demo.TASKS} == {"glue", "squad", "race"}
    assert demo.EPOCHS.keys() == {"glue", "squad", "race"}


@pytest.mark.slow
def test_the_pretrained_encoder_wins(tmp_path: Path) -> None:
    scores = demo.run_demo(tmp_path / "demo", seed=1)
    for name, (baseline, scratch, pretrained) in scores.items():
        assert pretrained > scratch + 0.1, name
        assert pretrained > baseline + 0.1, name
        assert scratch >= baseline, name


def test_where_the_command_is_not_on_the_path_the_line_that_puts_it_there_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "")
    assert demo._activation() == "  source .venv/bin/activate\n"
    (script.parent / "finetune").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    assert demo._activation() == ""
