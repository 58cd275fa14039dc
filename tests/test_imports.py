"""Who may import whom: one way, downwards; every import counts, also those inside functions."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "finetune").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])

# A room imports from lower floors only; those of GROUND are open to all.
FLOORS = {
    "tasks": 9,
    "finetune": 8,  # the public face
    "finetune.__main__": 8,
    "finetune.cli": 7,
    "finetune.runs": 6,
    "finetune.predictor": 6,
    "finetune.scoring": 6,
    "finetune.families": 6,
    "finetune.session": 6,
    "finetune.run_folder": 6,
    "finetune.run_inputs": 6,
    "finetune.run_settings": 6,
    "finetune.export": 6,
    "finetune.report": 6,
    "finetune.inspection": 6,
    "finetune.run_list": 6,
    "finetune.dashboards": 6,
    "finetune.pretrained": 5,
    "finetune.training": 5,
    "finetune.predictions": 5,
    "finetune.answers": 4,
    "finetune.task": 4,
    "finetune.hf": 4,
    "finetune.heads": 3,
    "finetune.checkpoint": 3,
    "finetune.benchmark": 3,
    "finetune.settings": 2,
    "finetune.encoder": 2,
    "finetune.text": 2,
    "finetune.metrics": 1,
    "finetune.tracking": 1,
    "finetune.comparison": 2,
    "finetune.tables": 1,
    "finetune.values": 1,
    "finetune.cache_folder": 1,
    "finetune.stored": 1,
    "finetune.checksums": 1,
    "finetune.run_lock": 1,
    "finetune.seed_folders": 1,
    "finetune.console": 0,
    "finetune.errors": 0,
    "finetune.files": 0,
    "finetune.memory": 0,
    "finetune.packages": 0,
    "finetune.placeholders": 0,
    "finetune.processes": 0,
    "finetune.ranges": 0,
    "finetune.renames": 0,
    "finetune.unpacking": 0,
}
GROUND = {room for room, floor in FLOORS.items() if floor == 0}
# Parts of one house: these may import each other, if only in one direction.
ONE_FLOOR = {
    "finetune.runs",
    "finetune.predictor",
    "finetune.scoring",
    "finetune.session",
    "finetune.run_folder",
    "finetune.run_inputs",
    "finetune.run_settings",
    "finetune.families",
    "finetune.export",
    "finetune.report",
    "finetune.inspection",
    "finetune.run_list",
    "finetune.dashboards",
}
ONE_FLOOR_OF_TASKS = {"finetune.answers", "finetune.task"}

# Where less is allowed than all that lies below.
_BELOW_TRAINING = {f"finetune.{room}" for room in ("task", "heads", "encoder", "text", "errors")}
ONLY = {
    "finetune.training": _BELOW_TRAINING,
    "finetune.predictions": {*_BELOW_TRAINING, "finetune.checksums"},
    "finetune.heads": {"finetune.encoder", "finetune.errors"},
    "finetune.benchmark": {"finetune.encoder", "finetune.errors"},
    "finetune.checkpoint": {
        "finetune.encoder",
        "finetune.text",
        "finetune.seed_folders",
        "finetune.stored",
        "finetune.checksums",
        "finetune.errors",
    },
    "finetune.encoder": {"finetune.errors"},
    "finetune.text": {"finetune.checksums", "finetune.errors"},
    "tasks": {*_BELOW_TRAINING, "finetune.answers", "finetune.metrics"},
}
# The command tables and what starts runs.
STARTS_RUNS = {
    "tasks.__main__",
    "tasks.anchors",
    "tasks.demo",
    "tasks.families",
    "tasks.run_settings",
    "tasks.submit",
}

# Where users look for a way in, and not where the network needs it: inside that function alone.
WAYS_IN = {"finetune.encoder.encoder": {"finetune.pretrained"}}

# Third parties that only some rooms may know, and those that are imported where they are used.
KNOWN_TO = {
    "pytorch_lightning": (
        "finetune.training",
        "finetune.tracking",
        "finetune.run",
        "finetune.session",
    ),
    "lightning_fabric": ("finetune.training", "finetune.tracking"),
    "wandb": ("finetune.tracking",),
    "torch": ("finetune.", "tasks."),
}
INSIDE_FUNCTIONS = (
    "datasets",
    "evaluate",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "sentencepiece",
    "transformers",
    "wandb",
    "wandb_workspaces",
)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] == "tasks" else ".".join(parts[:2])


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (_target(str(node.module), alias.name) for alias in node.names)


def _target(module: str, name: str) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in MODULES else module


@cache
def imports_of(module: str) -> frozenset[str]:
    return frozenset(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def own_imports(module: str) -> list[str]:
    names = imports_of(module) - WAYS_IN.get(module, set())
    return sorted(name for name in names if name.split(".")[0] in ("finetune", "tasks"))


def outside_functions(module: str) -> set[str]:
    """Modules that are imported with the module itself (those for types only are not)."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if typing_only else self.generic_visit(node)

    return set(imports(Strip().visit(tree)))


@pytest.mark.parametrize("module", MODULES)
def test_room_has_a_floor(module: str) -> None:
    assert room(module) in FLOORS, f"{module}: give its room a floor, and design section 3 a line"


@pytest.mark.parametrize("module", MODULES)
def test_room_imports_only_from_below(module: str) -> None:
    here = room(module)
    for name in own_imports(module):
        there = room(name)
        if there in {here, *GROUND} or any(
            {here, there} <= floor for floor in (ONE_FLOOR, ONE_FLOOR_OF_TASKS)
        ):
            continue
        assert FLOORS[there] < FLOORS[here], f"{module} imports {name}"
        if module not in STARTS_RUNS:
            assert there in ONLY.get(here, FLOORS), f"{module} may not import {name}"


@pytest.mark.parametrize("module", WAYS_IN)
def test_way_in_is_taken_only_when_it_is_called(module: str) -> None:
    assert imports_of(module) >= WAYS_IN[module]
    assert not outside_functions(module) & WAYS_IN[module]


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {module: set(own_imports(module)) - {module} for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError and names the circle


@pytest.mark.parametrize("module", MODULES)
def test_third_party_is_known_only_where_it_may_be(module: str) -> None:
    for name in imports_of(module):
        rooms = KNOWN_TO.get(name.split(".")[0], ("",))
        assert module.startswith(rooms), f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_heavy_package_is_imported_inside_functions(module: str) -> None:
    heavy = {name for name in outside_functions(module) if name.split(".")[0] in INSIDE_FUNCTIONS}
    assert not heavy


@pytest.mark.parametrize("module", MODULES)
def test_file_can_be_read_at_a_sitting(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tasks", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "finetune" in imported
    heavy = {"torch", "numpy", "pytorch_lightning", "lightning_fabric", *INSIDE_FUNCTIONS}
    assert not imported & heavy
    assert "pretrain" in done.stdout
