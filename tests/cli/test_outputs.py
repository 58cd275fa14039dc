"""Where answers and pages go: a file is written whole, a link followed, a device streamed into."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.report.collecting import collect
from finetune.runs.listing import list_runs
from tests.made.runs import class_rows, write_run

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

COMMANDS = ("predict", "report", "dashboard")
NULL, FULL = 3, 7
"""Minor numbers of the devices; the tests make their own, in a folder of theirs."""


def words_for(command: str, world: World, folder: Path, out: Path) -> list[object]:
    texts = folder / "texts.txt"
    texts.write_text("the cat sees\na dog\n")
    return {
        "predict": ["predict", world.tuned, "--input", texts, "--output", out],
        "report": ["report", world.tuned, "--out", out],
        "dashboard": ["dashboard", "--entity", "me", "--spec", out],
    }[command]


def device(path: Path, minor: int) -> Path:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        path.open("wb").close()
    except OSError:
        pytest.skip("devices cannot be made or opened here")
    return path


@pytest.mark.parametrize(("texts", "told"), [("a dog\n", "1 answer"), ("a\nb\n", "2 answers")])
def test_the_answers_are_counted(
    texts: str, told: str, world: World, tmp_path: Path, call: Call
) -> None:
    source, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    source.write_text(texts)
    outcome = call("predict", world.tuned, "--input", source, "--output", out)
    assert outcome.complaint == f"{told}: {out}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_stays_one(command: str, world: World, tmp_path: Path, call: Call) -> None:
    null, full = device(tmp_path / "null", NULL), device(tmp_path / "full", FULL)
    assert call(*words_for(command, world, tmp_path, null)).status == 0
    outcome = call(*words_for(command, world, tmp_path, full))
    assert outcome.status == 2
    assert "No space left on device" in outcome.complaint
    assert all(stat.S_ISCHR(os.lstat(path).st_mode) for path in (null, full))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_streamed_into(command: str, world: World, tmp_path: Path, call: Call) -> None:
    pipe, file, got = tmp_path / "pipe", tmp_path / "file", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert call(*words_for(command, world, tmp_path, pipe)).status == 0
    reader.join(30)
    assert call(*words_for(command, world, tmp_path, file)).status == 0
    assert len(got[0]) == file.stat().st_size > 0
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_is_followed(
    there: bool, command: str, world: World, tmp_path: Path, call: Call
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if there:
        target.write_text("old")
    link.symlink_to("target")
    assert call(*words_for(command, world, tmp_path, link)).status == 0
    assert os.readlink(link) == "target"
    assert target.stat().st_size > 3
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("place", ["folder", "texts.txt/below", "loop"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_is_refused(
    place: str, command: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    refuses(".*", *words_for(command, world, tmp_path, tmp_path / place))
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "loop", "texts.txt"}


def test_a_run_is_made_where_a_link_leads(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    (tmp_path / "link").symlink_to("later")
    assert call(*world.glue(tmp_path / "link", "--max-steps", 1)).status == 0
    assert (tmp_path / "later" / "results.json").is_file()
    (tmp_path / "loop").symlink_to("loop")
    refuses("--out .*: .* is a link to itself; name a folder", *world.glue(tmp_path / "loop"))


@pytest.mark.parametrize(
    ("kind", "content"),
    {
        "csv": "text\nthe cat\n",
        "tsv": "text\nthe cat\n",
        "jsonl": '{"text": "the cat"}\n',
        "text": "the cat\n",
    }.items(),
)
def test_every_format_is_read(
    kind: str, content: str, world: World, tmp_path: Path, call: Call
) -> None:
    texts = tmp_path / "texts"
    texts.write_text(content)
    outcome = call("predict", world.tuned, "--input", texts, "--format", kind)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("\n") == 1


def test_runs_and_reports_find_the_same_runs(tmp_path: Path) -> None:
    for depth in range(8):
        place = tmp_path.joinpath("runs", *map(str, range(depth)), f"run-{depth}")
        write_run(place, "classes", {"accuracy": 0.5}, class_rows(1, 0.5))
    listed = {run.folder for run in list_runs(tmp_path / "runs").runs}
    assert {run.folder.path for run in collect([tmp_path / "runs"]).runs} == listed
    assert len(listed) == 6
