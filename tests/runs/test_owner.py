"""A run's files have one owner: who else writes their names would be a second reader of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.checkpoints import seed_folders as names

ROOT = Path(__file__).parent.parent.parent
OWNER = "finetune/checkpoints/seed_folders.py"
SOURCES = sorted([*(ROOT / "finetune").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])


def documentation(tree: ast.AST) -> set[ast.AST]:
    """Docstrings: strings that stand alone."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def written(file: Path) -> Iterator[str]:
    """The strings of a module, but for its documentation."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    ignored = documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in ignored:
            yield node.value


def joined(file: Path) -> Iterator[str]:
    """The strings that a path is continued with: `folder / "name"`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            pieces = node.right.values if isinstance(node.right, ast.JoinedStr) else [node.right]
            yield from (
                piece.value
                for piece in pieces
                if isinstance(piece, ast.Constant) and isinstance(piece.value, str)
            )


def place(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "name", [names.CONFIG, names.RESULTS, names.METRICS, names.TABLE, names.LOG]
)
def test_the_name_of_a_file_is_written_once(name: str) -> None:
    assert [place(file) for file in SOURCES if name in written(file)] == [OWNER]


@pytest.mark.parametrize("name", [names.PREDICTIONS, names.SUBMISSION, names.CHECKPOINTS])
def test_no_path_is_made_with_the_name_of_a_folder(name: str) -> None:
    makers = {place(file) for file in SOURCES for part in joined(file) if part.startswith(name)}
    assert makers <= {OWNER}


def test_no_path_is_made_with_the_folder_of_a_seed() -> None:
    makers = {place(file) for file in SOURCES for part in written(file) if part.startswith("seed-")}
    assert makers == {OWNER}
