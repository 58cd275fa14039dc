"""The docs site: every command and example in it is understood, and it builds strictly."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import finetune
from finetune.cli.commands import command_table
from finetune.runs.families import families
from finetune.runs.settings import FitRun, PretrainRun
from finetune.runs.sweeps import read_sweep
from finetune.settings import fields as settings
from finetune.settings.renames import OTHER_TOOLS
from tasks.__main__ import COMMANDS as OWN_COMMANDS
from tests import test_doctests, test_readme
from tests.made.texts import write_texts
from tests.test_readme import _dry  # noqa: F401  (a fixture)

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}


def blocks(text: str, language: str) -> list[str]:
    """What stands between fences of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(text: str) -> list[str]:
    """The commands of a page; those that a pipe joins are two."""
    joined = [shlex.split(command) for command in test_readme.commands(text)]
    parts = []
    for words in joined:
        bars = [-1, *(place for place, word in enumerate(words) if word == "|"), len(words)]
        parts += [words[one + 1 : two] for one, two in zip(bars, bars[1:], strict=False)]
    return [shlex.join(words) for words in parts]


COMMANDS = [(name, command) for name, text in PAGES.items() for command in commands(text)]
OURS = [pytest.param(command, id=f"{n}-{command[:60]}") for n, command in COMMANDS]
OURS = [param for param in OURS if str(param.values[0]).startswith("finetune ")]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """What fills the pages in; it needs no mkdocs."""
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert PAGES
    assert set(re.findall(r"^ +- .*: (\S+\.md)$", navigation, re.M)) == set(PAGES)


@pytest.mark.usefixtures("_dry")
@pytest.mark.parametrize("command", OURS)
def test_finetune_command_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert test_readme.read(shlex.split(command)[1:]) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("_dry")
def test_other_commands_are_known() -> None:
    for name, command in COMMANDS:
        program, *words = shlex.split(command)
        if program in ("torchrun", "srun"):  # which start the command behind their options
            assert test_readme.read(words[words.index("finetune") + 1 :]) == 0, name
            continue
        assert program in {"finetune", "make", "pip", "export", "echo", "source", "wandb"}, name
        if program == "make":
            assert set(words) <= test_readme.TARGETS, name


def test_every_command_is_shown() -> None:
    shown = {shlex.split(command)[1] for _, command in COMMANDS if command.startswith("finetune ")}
    assert set(command_table(OWN_COMMANDS)) <= shown


def test_every_command_has_its_options_on_the_page_of_settings() -> None:
    told = re.findall(r"^\[\[options (.*)\]\]$", PAGES["settings.md"], re.M)
    table = command_table(OWN_COMMANDS)
    words = [f"{word} {kind}" for word in table for kind in table[word].kind_words()]
    words += [word for word in table if not table[word].kind_words()]
    assert sorted(", ".join(told).split(", ")) == sorted(words)


def test_names_beside_those_of_other_tools_exist() -> None:
    """Flags, words after `finetune` and names in Python, in the second column of each table."""
    rows = [row.split("|") for row in PAGES["coming-from.md"].splitlines() if row[:3] == "| `"]
    ours = " ".join(row[2] for row in rows)
    kinds = [FitRun, PretrainRun, *(family.settings() for family in families().values())]
    flags = {setting.flag for kind in kinds for setting in settings.settings_of(kind)}
    assert len(rows) > 40
    assert set(re.findall(r"--[\w-]+", ours)) <= flags
    assert set(re.findall(r"`finetune ([\w-]+)", ours)) <= command_table(OWN_COMMANDS).keys()
    assert set(re.findall(r"`finetune\.(\w+)", ours)) <= set(finetune.__all__)
    theirs = re.findall(r"`(\w+)`", " ".join(row[1] for row in rows))
    assert len(OTHER_TOOLS.keys() & set(theirs)) > 20


def test_files_that_are_named_are_there() -> None:
    for name, text in PAGES.items():
        for path in re.findall(r"\b(?:configs|tests|examples|tasks|docs)/[\w/.-]+\.\w+", text):
            assert (ROOT / path).is_file(), f"{name}: {path}"


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: finetune\.(\w+)$", PAGES["api.md"], re.M)
    assert sorted(named) == sorted(finetune.__all__)


def test_yaml_is_understood(tmp_path: Path) -> None:
    found = [block for text in PAGES.values() for block in blocks(text, "yaml")]
    assert found
    for block in found:
        file = tmp_path / "run.yaml"
        file.write_text(block, encoding="utf-8")
        if "command:" in block:
            read_sweep(file)
        else:
            settings.read(FitRun, file, {"encoder_from": "none"})


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [block for text in PAGES.values() for block in blocks(text, "python")]
    assert found
    write_texts(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for name in test_doctests.MAKERS.values():
        test_doctests.run(name)
    for block in found:
        exec(compile(block, "docs", "exec"), {})


def test_page_is_filled_in_from_the_code(hooks: ModuleType) -> None:
    page = hooks.on_page_markdown("a\n\n[[layers]]\n\n[[glue]]\n\n[[options glue, choose]]\n")
    assert "| 0 | `finetune.errors`, `finetune.console` |" in page
    assert "matthews correlation" in page
    assert page.count("`--learning-rate X`") == 1  # what two commands share is said once
    assert "`--train-wnli, --no-train-wnli`" in page
    assert "[[" not in page


def test_what_is_taken_from_another_page_leads_nowhere_else(hooks: ModuleType) -> None:
    page = hooks.on_page_markdown("[[section README.md, Results]]")
    assert "configs/README.md" in page
    assert "](" not in page
    with pytest.raises(LookupError, match=r"README.md: no heading 'None such'"):
        hooks.on_page_markdown("[[section README.md, None such]]")


def test_text_of_an_option_is_no_markup(hooks: ModuleType) -> None:
    assert hooks._text("a <b> | *c* `d|e`") == "a &lt;b&gt; \\| \\*c\\* `d|e`"


def test_links_that_lead_nowhere_are_found(hooks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">a</h1><a href="#top"></a><a href="b.html#there"></a><a href="#gone"></a>'
        '<a href="https://example.org/x"></a><a href="c.html"></a><a href="b.html#not"></a>'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<p id="there">b</p>')
    assert hooks.link_problems(tmp_path) == [
        "a.html: loads https://example.org/x.js",
        "a.html: the link #gone leads nowhere",
        "a.html: the link b.html#not leads nowhere",
        "a.html: the link c.html leads nowhere",
    ]


@pytest.mark.slow
def test_site_builds_strictly_and_loads_nothing_from_elsewhere(
    hooks: ModuleType, tmp_path: Path
) -> None:
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason="the site needs pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {page.name for page in tmp_path.glob("*.html")} >= {
        page.replace(".md", ".html") for page in PAGES
    }
    assert hooks.link_problems(tmp_path) == []
    reference = (tmp_path / "api.html").read_text(encoding="utf-8")
    for name in finetune.__all__:
        assert f'id="finetune.{name}"' in reference
