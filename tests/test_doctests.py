"""Every public name shows in its docstring how it is used, and what is shown there runs."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import finetune
from tests.made.texts import write_texts

MAKERS = {"runs/pretrained": "pretrain", "runs/own": "fit"}
"""Folder that examples read -> the name whose example makes it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run: `data/` with the files that they name, and what they leave."""
    folder: Path = tmp_path_factory.mktemp("examples")
    write_texts(folder / "data")
    return folder


def examples(name: str) -> list[doctest.DocTest]:
    """The examples of a name and of its methods; they see nothing that they do not import."""
    found = doctest.DocTestFinder().find(getattr(finetune, name), name, globs={})
    return [test for test in found if test.examples]


def run(name: str) -> None:
    """Run the examples of a name, and before them those whose folders they read."""
    for test in examples(name):
        for folder, maker in MAKERS.items():
            if maker != name and folder in f"{test.docstring}" and not Path(folder).exists():
                run(maker)
        told: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        result = runner.run(test, out=told.append)
        assert not result.failed, "".join(told)


@pytest.mark.parametrize("name", finetune.__all__)
def test_example_in_the_docstring_runs(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for folder, maker in MAKERS.items():
        if maker == name and Path(folder).exists():
            return  # it ran for another one
    assert examples(name), f"finetune.{name}: give its docstring an example"
    run(name)


def test_a_wrong_example_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune.HeadConfig, "__doc__", ">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match=r"Expected:\n +3"):
        run("HeadConfig")
