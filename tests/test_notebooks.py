"""The notebooks: well-formed, executed from top to bottom, small, and made of the library's names.

The quick tests read the files as they are committed. `pytest -m slow tests/test_notebooks.py` runs
each from nothing in a folder of its own, as from a bare clone.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [
    "01_attention",
    "02_pretraining",
    "03_fine_tuning",
    "04_ulmfit",
    "05_looking_inside",
    "06_bring_your_own",
    "07_real_data",
    "08_build_your_own_gpt",
    "09_sequence_to_sequence",
    "10_recurrent_and_convolutional",
]
LARGEST = 300_000
"""Bytes of a file."""
LONGEST = 24
"""Lines of a function: more of them belong in the library."""
SECONDS = 600
"""Of a cell at most, on a machine that does other work too."""
LIBRARIES = {"IPython", "finetune", "matplotlib", "numpy", "tasks", "torch", "transformers"}
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def code(path: Path) -> Iterator[ast.AST]:
    for cell in cells(path, "code"):
        yield from ast.walk(ast.parse(source(cell)))


def outputs(path: Path) -> Iterator[dict[str, Any]]:
    for cell in cells(path, "code"):
        yield from cell["outputs"]


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Module and name of each import; None for a module as a whole."""
    for node in code(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def has_figure(cell: dict[str, Any]) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_no_notebook_is_missing() -> None:
    assert [path.stem for path in NOTEBOOKS] == NAMES


@each
def test_it_is_a_valid_notebook(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat checks notebooks (.[notebooks])")
    nbformat.validate(read(path))


@each
def test_it_was_executed_from_top_to_bottom_without_an_error(path: Path) -> None:
    counts = [cell["execution_count"] for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))
    assert all(output["output_type"] != "error" for output in outputs(path))


@each
def test_it_shows_figures_and_is_small(path: Path) -> None:
    assert sum(has_figure(cell) for cell in cells(path, "code")) >= 1
    assert path.stat().st_size < LARGEST


@each
def test_every_figure_has_its_caption_below(path: Path) -> None:
    content = read(path)["cells"]
    for cell, below in zip(content, [*content[1:], None], strict=True):
        if cell["cell_type"] == "code" and has_figure(cell):
            assert below is not None
            assert source(below).startswith("*"), source(cell)


@each
def test_outputs_tell_nothing_of_the_machine(path: Path) -> None:
    shown = json.dumps([*outputs(path)])
    assert not re.search(r"site-packages|/home/|/root/|/tmp/|Traceback|Warning", shown)


@each
def test_it_imports_public_names_that_exist(path: Path) -> None:
    for module, name in imports(path):
        root = module.split(".")[0]
        assert root in LIBRARIES | sys.stdlib_module_names, module
        if root not in ("finetune", "tasks"):
            continue
        assert "._" not in module.removesuffix(".__main__")  # the program itself
        assert not (name or "").startswith("_"), name
        assert name is None or hasattr(importlib.import_module(module), name), f"{module}.{name}"


@each
def test_it_holds_no_code_that_belongs_in_the_library(path: Path) -> None:
    for node in code(path):
        assert not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST, node.name
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), node.attr


@each
def test_its_links_lead_somewhere(path: Path) -> None:
    text = "\n".join(source(cell) for cell in cells(path, "markdown"))
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links
    assert all((FOLDER / link).is_file() for link in links)
    assert text.startswith(f"# {int(path.stem[:2])}. ")


def test_sample_is_small_and_says_its_licence() -> None:
    assert sorted(path.name for path in (FOLDER / "data").iterdir()) == [
        "README.md",
        "questions.csv",
    ]
    assert (FOLDER / "data" / "questions.csv").stat().st_size < 100_000
    about = (FOLDER / "data" / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 4.0" in about
    assert "Changes:" in about
    assert "notebooks/data/questions.csv" in (FOLDER.parent / "NOTICE").read_text()


@each
@pytest.mark.slow
def test_it_runs_from_nothing(path: Path, tmp_path: Path) -> None:
    reason = "notebooks are executed by nbclient and ipykernel (.[notebooks])"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    place = tmp_path / "notebooks"
    shutil.copytree(FOLDER / "data", place / "data")
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "FINETUNE_CACHE": str(tmp_path / "cache")}
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(place)}}
    )
    client.execute(env=environment)
    assert all(cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code")
