"""Who may import whom: one way, downwards; every import counts, also those inside functions.

And where a test lies: at the path of the module that it is about.
"""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
FILES = sorted([*(ROOT / "finetune").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])

# From the lowest to the highest: a package imports from lower layers only, and packages of one
# layer do not import each other.
LAYERS = (
    ("finetune.errors", "finetune.console"),
    ("finetune.files", "finetune.machine", "finetune.ranges"),
    ("finetune.settings", "finetune.encoder", "finetune.text", "finetune.metrics"),
    ("finetune.decoder",),
    ("finetune.comparison", "finetune.heads"),
    ("finetune.checkpoints", "finetune.task"),
    ("finetune.training", "finetune.tracking", "finetune.elementary"),
    ("finetune.runs",),
    ("finetune.jobs",),
    ("finetune.inspection",),
    ("finetune.report",),
    ("finetune.dashboards", "finetune.export"),
    ("finetune.cli",),
    ("finetune", "finetune.__main__"),  # the public face
    ("tasks",),
)
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
SHARED_LAYERS = {package for layer in LAYERS[:2] for package in layer}

# Where less is allowed than all that lies below.
ONLY = {
    "finetune.training": {
        f"finetune.{name}" for name in ("task", "heads", "encoder", "text", "metrics")
    },
    "finetune.decoder": {"finetune.encoder"},
    "finetune.checkpoints": {"finetune.encoder", "finetune.heads", "finetune.text"},
    "finetune.task": {"finetune.encoder", "finetune.heads", "finetune.text", "finetune.metrics"},
    "finetune.heads": {"finetune.encoder", "finetune.decoder"},
    "finetune.elementary": {"finetune.metrics", "finetune.task", "finetune.text"},
    "finetune.tracking": {"finetune.metrics", "finetune.checkpoints"},
    "tasks": {
        f"finetune.{name}"
        for name in ("task", "heads", "decoder", "encoder", "text", "metrics", "settings")
    },
}
# The command tables and what starts runs.
STARTS_RUNS = {
    "tasks.__main__",
    "tasks.anchors",
    "tasks.check",
    "tasks.demo",
    "tasks.families",
    "tasks.run_settings",
    "tasks.submit",
}

# Where users look for a way in, and not where the network needs it: inside that function alone.
WAYS_IN = {"finetune.encoder.encoder": {"finetune.checkpoints.hub"}}

# Third parties that only some packages may know, and those that are imported where they are used.
KNOWN_TO = {
    "pytorch_lightning": (
        "finetune.training",
        "finetune.tracking",
        "finetune.run",
        "finetune.jobs.session",
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
    "scipy",
    "sentencepiece",
    "sklearn",
    "transformers",
    "wandb",
    "wandb_workspaces",
)

# Copied into exported folders, where `finetune` may not be installed; nothing here imports it.
COPIED = "finetune.export.modeling_finetune"

# Tests of whole commands, and of several modules at once.
ABOUT_NO_MODULE = (
    "cli/",
    "face/",
    "faults/",
    "parity/",
    "report/test_browser.py",
    "report/test_command.py",
    "runs/test_owner.py",
    "training/test_devices.py",
    "training/test_own_trainer.py",
    "training/test_precision.py",
)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def package(module: str) -> str:
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
def test_package_has_a_layer(module: str) -> None:
    assert package(module) in LEVEL, f"{module}: give its package a layer, and the design a line"


@pytest.mark.parametrize("module", MODULES)
def test_package_imports_only_from_lower_layers(module: str) -> None:
    here = package(module)
    for name in own_imports(module):
        there = package(name)
        if there == here:
            continue
        assert LEVEL[there] < LEVEL[here], f"{module} imports {name}"
        if module not in STARTS_RUNS and there not in SHARED_LAYERS:
            assert there in ONLY.get(here, LEVEL), f"{module} may not import {name}"


def test_subpackages_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if MODULES[module].name == "__init__.py":
            continue  # a package's face imports from all its parts
        for name in own_imports(module):
            here, there = (_within(one, other) for one, other in ((module, name), (name, module)))
            if here != there:
                graph.setdefault(here, set()).add(there)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError and names the circle


def _within(module: str, other: str) -> str:
    """The part of the package that both are in, to which the first belongs."""
    parts, others = module.split("."), other.split(".")
    same = 0
    while same < min(len(parts), len(others)) and parts[same] == others[same]:
        same += 1
    return ".".join(parts[: same + 1])


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
        allowed = KNOWN_TO.get(name.split(".")[0], ("",))
        assert module.startswith(allowed), f"{module} imports {name}"


def test_code_of_an_exported_folder_stands_alone() -> None:
    known = {name.split(".")[0] for name in imports_of(COPIED)} - set(sys.stdlib_module_names)
    assert known == {"torch", "transformers"}
    assert not [module for module in MODULES if COPIED in imports_of(module)]


@pytest.mark.parametrize("module", sorted(set(MODULES) - {COPIED}))
def test_heavy_package_is_imported_inside_functions(module: str) -> None:
    heavy = {name for name in outside_functions(module) if name.split(".")[0] in INSIDE_FUNCTIONS}
    assert not heavy


@pytest.mark.parametrize("module", sorted(set(MODULES) - {COPIED}))  # it goes out as one file
def test_file_can_be_read_at_a_sitting(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("file", [path.relative_to(ROOT / "tests").as_posix() for path in TESTS])
def test_test_lies_at_the_path_of_its_module(file: str) -> None:
    """`a/test_b.py` and `a/test_b_in_some_respect.py` are about `a/b.py`."""
    folder, _, name = file.rpartition("/")
    if not folder or file.startswith(ABOUT_NO_MODULE):
        return
    package = ROOT / folder if folder.startswith("tasks") else ROOT / "finetune" / folder
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    names = ["_".join(words[: count + 1]) for count in range(len(words))]
    there = [one for one in names if (package / f"{one}.py").is_file() or (package / one).is_dir()]
    assert there, f"tests/{file}: no module of {package.relative_to(ROOT)} is called {name}"


@pytest.mark.parametrize("file", ABOUT_NO_MODULE)
def test_exception_is_still_there(file: str) -> None:
    assert (ROOT / "tests" / file).exists()


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


@pytest.mark.parametrize("words", ["evaluate none", "predict none --input x", "compare none none"])
def test_wrong_path_is_refused_before_torch_is_imported(words: str, tmp_path: Path) -> None:
    script = (
        "import sys; from tasks.__main__ import main; status = main(sys.argv[1:]); "
        "print(status, sorted({'torch', 'pytorch_lightning'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert (done.stdout, done.stderr[:15]) == ("2 []\n", "finetune: none:")


@pytest.mark.parametrize("words", ["describe configs/pretrain/tiny.yaml", "runs configs"])
def test_command_that_trains_nothing_imports_no_torch(words: str) -> None:
    script = (
        "import sys; from tasks.__main__ import main; status = main(sys.argv[1:]); "
        "heavy = {'torch', 'pytorch_lightning', 'lightning_fabric', 'transformers'}; "
        "print(status, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_listing_finished_runs_imports_no_numpy() -> None:
    script = (
        "import sys, finetune.runs.listing; from finetune.comparison import Run; "
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "[]\n"


def test_what_answers_imports_nothing_that_trains() -> None:
    """Lightning takes seconds to import, and a first answer would wait for it."""
    script = (
        "import sys, finetune.jobs.prediction, finetune.runs.fits, tasks.glue.task; "
        "heavy = {'pytorch_lightning', 'torchmetrics', 'transformers', 'scipy', 'sklearn'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "[]\n"
