"""The public face: every name is there, typed, and costs nothing until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import finetune


@pytest.mark.parametrize("name", finetune.__all__)
def test_public_name_is_there_and_has_a_docstring(name: str) -> None:
    assert getattr(finetune, name).__doc__


def test_public_names_are_sorted_and_each_given_once() -> None:
    assert finetune.__all__ == sorted(set(finetune.__all__))


def test_type_checkers_see_the_same_names() -> None:
    """They read the imports under TYPE_CHECKING; a program gets the names one by one."""
    tree = ast.parse(Path(str(finetune.__file__)).read_text(encoding="utf-8"))
    seen = {
        alias.name: f"{node.module}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"finetune.{package}" for name, package in finetune._HOMES.items()}
    assert sorted(seen) == finetune.__all__


def test_the_class_is_the_same_from_whichever_package_it_is_imported() -> None:
    from finetune import encoder

    assert finetune.Encoder is encoder.Encoder is encoder.encoder.Encoder


def test_the_names_are_offered_for_completion() -> None:
    assert dir(finetune) == finetune.__all__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Squad'"):
        finetune.Squad  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, finetune; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "numpy", "pytorch_lightning", "transformers", "datasets", "wandb"}
