"""A user's type checker knows every public name: the package says so, and has no holes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import finetune

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tests" / "typed_use.py"


@pytest.mark.parametrize("package", ["finetune", "tasks"])
def test_the_package_says_that_it_is_typed(package: str) -> None:
    assert files(package).joinpath("py.typed").is_file()


def test_the_script_uses_every_public_name() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "finetune"
    }
    assert used >= set(finetune.__all__)


@pytest.mark.slow
def test_a_users_script_and_the_examples_are_well_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import finetune\nfinetune.load(3)\nfinetune.Encoder.from_pretraind('a')\n")
    examples = sorted((ROOT / "examples").glob("*.py"))
    done = subprocess.run(
        # Nothing of this project's own settings; its packages are where an installation has them.
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
        # Torch's `backward` has no types: calls of that kind are no fault of ours.
        + ["--allow-untyped-calls", "--cache-dir", str(tmp_path / "cache")]
        + [str(path) for path in (SCRIPT, *examples, wrong)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith("Found ")]
    own = [line for line in told if f"{ROOT / 'finetune'}" not in line]
    assert [line.partition(" error: ")[0] for line in own] == ["wrong.py:2:", "wrong.py:3:"], told
