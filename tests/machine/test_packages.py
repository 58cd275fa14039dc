"""A name stands for an installed package, or for ours, and not for what the user's folder holds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from finetune.errors import ConfigError
from finetune.machine.packages import import_own, is_installed

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
READ = [
    *(ROOT / name for name in ("README.md", "Makefile", "CHANGELOG.md")),
    *(path for path in (ROOT / "docs").glob("*.md")),
    *(path for path in (ROOT / "notebooks").glob("*.ipynb")),
    *(
        path
        for folder in ("finetune", "tasks", "benchmarks")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ),
]


def test_every_extra_that_is_named_anywhere_is_there() -> None:
    named = {
        (extra.strip(), path.name)
        for path in READ
        for group in re.findall(
            r"(?:finetune|['\"]\.)\[(\w[\w, -]*)\]['\"` ]", path.read_text("utf-8")
        )
        for extra in group.split(",")
    }
    table = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("| extra | for |")[1]
    rows = re.findall(r"^\| `([\w-]+)` \|", table.split("\n\n")[0], re.M)
    assert len(named) > 5
    assert len(rows) > 5
    assert [name for name in named if name[0] not in EXTRAS] == []
    assert set(rows) <= EXTRAS.keys()


@pytest.mark.parametrize("kind", ["folder", "package", "file"])
def test_a_name_in_the_working_folder_is_no_package(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if kind == "file":
        Path("nothing_of_the_kind.py").touch()
    else:
        Path("nothing_of_the_kind").mkdir()
    if kind == "package":
        Path("nothing_of_the_kind/__init__.py").touch()
    assert importlib.util.find_spec("nothing_of_the_kind") is not None
    assert not is_installed("nothing_of_the_kind")


def test_a_file_in_the_place_of_an_installed_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_installed("pytest")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sentencepiece", raising=False)
    Path("sentencepiece.py").touch()
    with pytest.raises(
        ConfigError, match=r"sentencepiece.py: expected the installed package .*; re"
    ):
        is_installed("sentencepiece")


def run_in(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("name", ["tasks.py", "tasks/__init__.py", "tests.py"])
def test_a_users_tasks_do_not_stand_before_ours(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("print('mine')\n")
    done = run_in(tmp_path, "-m", "finetune", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mine" not in done.stdout
    assert "fine-tune on a GLUE task" in done.stdout


PROGRAM = """
{first}
import finetune.runs.families
families = finetune.runs.families.families()
task = finetune.find_task("glue/sst2")
import tasks
assert tasks.MINE == 1, tasks
print(type(task).__module__, finetune.find_task("glue/ax").test_splits)
print(type(families["glue"].settings()(encoder_from="none", task="glue/wnli")).__module__)
"""


@pytest.mark.parametrize("first", ["import tasks", "pass"])
def test_both_live_in_one_process(first: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("MINE = 1\n")
    done = run_in(tmp_path, "-c", PROGRAM.format(first=first))
    assert done.stderr == ""
    assert done.stdout == "finetune_tasks.glue.task ('ax',)\nfinetune_tasks.run_settings\n"


def test_where_nothing_is_in_the_way_there_is_one_package_of_tasks() -> None:
    import tasks.families

    assert import_own("tasks.families") is tasks.families
    with pytest.raises(ModuleNotFoundError):
        import_own("tasks.no_such_module")
