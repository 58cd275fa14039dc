"""Find installed packages, even if a file of the same name is in the working folder.

Python looks into the working folder first. A folder `wandb` there, as Weights & Biases leaves it,
can be imported without the package; and a user's file `tasks.py` hides the package of tasks that
comes with this one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from finetune.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
"""The folder of this package and of the others of the same distribution."""
DISTRIBUTION = "finetune"
PREFIX = "finetune_"
"""Prefix of the name under which a hidden package of this distribution is imported."""


def lazy_names(package: str, names: Sequence[str], modules: Sequence[str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`, which imports a name from its module when it is first used.

    So whoever needs the settings of a network alone does not wait for torch.

    Args:
        package: The package's `__name__`.
        names: Its `__all__`.
        modules: Its modules that have these names, those first that are imported fast.
    """

    def find(name: str) -> Any:
        for module in modules if name in names else ():
            loaded = importlib.import_module(f"{package}.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def is_installed(package: str) -> bool:
    """Whether a package is installed, whatever the working folder contains.

    Args:
        package: The name by which it is imported.

    Raises:
        ConfigError: It is, but a file in the working folder hides it.
    """
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        if package not in importlib.metadata.packages_distributions():  # slow, and seldom needed
            return False
    _check_not_hidden(package)
    return True


def _check_not_hidden(package: str) -> None:
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    file = Path(spec.origin)
    top = file.parent.parent if file.name == "__init__.py" else file.parent
    if top.resolve() == Path.cwd() and "site-packages" not in top.parts:
        raise ConfigError(
            f"{file}: expected the installed package {package}, got this file, which hides it; "
            "rename it, or work in another folder"
        )


def load_entry(entry: importlib.metadata.EntryPoint) -> Any:
    """Load the object of an entry point; one of this distribution from the files beside it.

    Args:
        entry: An entry point of an installed distribution.
    """
    if entry.dist is None or entry.dist.name != DISTRIBUTION:
        return entry.load()
    return getattr(import_own(entry.module), entry.attr)


def import_own(module: str) -> ModuleType:
    """Import a module of a package of this distribution, even if another package hides its name.

    It is then imported as `finetune_NAME`, beside the other package in the same process.

    Args:
        module: Such as `package.module`.
    """
    package = module.partition(".")[0]
    if not _init(package).is_file() or _is_ours(package):
        return importlib.import_module(module)
    if not any(isinstance(one, _Finder) and one.package == package for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder(package))
    return importlib.import_module(PREFIX + module)


def _init(package: str) -> Path:
    return HERE / package / "__init__.py"


def _is_ours(package: str) -> bool:
    """Whether the name is, or would be, imported from this distribution."""
    if package in sys.modules:
        file = getattr(sys.modules[package], "__file__", None)
    else:
        spec = importlib.util.find_spec(package)
        file = None if spec is None else spec.origin
    return file is not None and os.path.realpath(file) == os.path.realpath(_init(package))


class _Finder(MetaPathFinder):
    """Finds the modules of a package of this distribution under its prefixed name."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, *below = name.split(".")
        if top != PREFIX + self.package:
            return None
        folder = HERE.joinpath(self.package, *below)
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if not file.is_file():
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_Loader(name, str(file)),
            submodule_search_locations=[str(folder)] if folder.is_dir() else None,
        )


class _Loader(SourceFileLoader):
    """Loads a module whose imports from its package use the prefixed name."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file again: the cached code imports by the plain name."""
        package = fullname.partition(".")[0].removeprefix(PREFIX)
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                if node.module.split(".")[0] == package:
                    node.module = PREFIX + node.module
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code
